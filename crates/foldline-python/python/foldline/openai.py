"""foldline for the OpenAI client.

``wrap`` returns a copy of a client whose ``chat.completions.create`` and ``responses.create`` fold
what they send. The lists of the caller are not changed. If the caller sends tools, the model gets
the tool ``unfold``, and its calls are answered inside ``create``; streams get no such tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import openai

from ._client import Endpoint, wrap_method
from ._options import FoldSettings
from ._pool import SessionPool

if TYPE_CHECKING:
    from typing_extensions import Unpack

Client = TypeVar("Client", openai.OpenAI, openai.AsyncOpenAI)


def wrap(client: Client, *, strict: bool = False, **settings: Unpack[FoldSettings]) -> Client:
    """Returns a copy of a client that folds; the client itself is not changed."""
    folding = client.copy()
    chat, responses = pools(strict, settings)
    is_async = isinstance(client, openai.AsyncOpenAI)
    wrap_method(folding.chat.completions, _CHAT, chat, is_async)
    wrap_method(folding.responses, _RESPONSES, responses, is_async)
    folding.foldline = {"chat": chat, "responses": responses}  # type: ignore[union-attr]
    return folding


def pools(strict: bool, settings: FoldSettings) -> tuple[SessionPool, SessionPool]:
    """Returns the sessions of both endpoints."""
    return (
        SessionPool(strict=strict, **{**settings, "format": "openai-chat"}),
        SessionPool(strict=strict, **{**settings, "format": "openai-responses"}),
    )


def _chat_calls(response: Any) -> list[tuple[str, str, str]]:
    calls = response.choices[0].message.tool_calls or [] if len(response.choices) == 1 else []
    return [(call.id, call.function.name, call.function.arguments) for call in calls if call.type == "function"]


def _chat_round(response: Any, answers: list[tuple[str, str]]) -> list[Any]:
    message = response.choices[0].message.model_dump(exclude_none=True)
    return [message, *({"role": "tool", "tool_call_id": call, "content": text} for call, text in answers)]


def _response_calls(response: Any) -> list[tuple[str, str, str]]:
    calls = [item for item in response.output if item.type.endswith("_call")]
    return [(item.call_id, getattr(item, "name", ""), getattr(item, "arguments", "")) for item in calls]


def _response_round(response: Any, answers: list[tuple[str, str]]) -> list[Any]:
    items = [item.model_dump(exclude_none=True) for item in response.output]
    return [*items, *({"type": "function_call_output", "call_id": call, "output": text} for call, text in answers)]


_CHAT = Endpoint("openai-chat", "messages", None, _chat_calls, _chat_round)
_RESPONSES = Endpoint("openai-responses", "input", "instructions", _response_calls, _response_round)
