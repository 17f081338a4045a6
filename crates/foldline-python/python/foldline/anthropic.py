"""foldline for the Anthropic client.

``wrap`` returns a copy of a client whose ``messages.create`` folds what it sends. The lists of the
caller are not changed. If the caller sends tools, the model gets the tool ``unfold``, and its calls
are answered inside ``create``; streams get no such tool.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

import anthropic

from ._client import Endpoint, wrap_method
from ._options import FoldSettings
from ._pool import SessionPool

if TYPE_CHECKING:
    from typing_extensions import Unpack

Client = TypeVar("Client", anthropic.Anthropic, anthropic.AsyncAnthropic)


def wrap(client: Client, *, strict: bool = False, **settings: Unpack[FoldSettings]) -> Client:
    """Returns a copy of a client that folds; the client itself is not changed."""
    folding = client.copy()
    pool = SessionPool(strict=strict, **{**settings, "format": "anthropic"})
    wrap_method(folding.messages, _MESSAGES, pool, isinstance(client, anthropic.AsyncAnthropic))
    folding.foldline = pool  # type: ignore[union-attr]
    return folding


def _calls(response: Any) -> list[tuple[str, str, str]]:
    calls = [block for block in response.content if block.type.endswith("tool_use")]
    return [(block.id, block.name, json.dumps(block.input)) for block in calls]


def _round(response: Any, answers: list[tuple[str, str]]) -> list[Any]:
    content = [block.model_dump(exclude_none=True) for block in response.content]
    results = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, text in answers]
    return [{"role": "assistant", "content": content}, {"role": "user", "content": results}]


_MESSAGES = Endpoint("anthropic", "messages", "system", _calls, _round)
