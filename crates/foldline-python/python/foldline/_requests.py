"""Functions over single request bodies and recordings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import _native
from ._options import FoldSettings, Format, Policy, to_json, to_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


class FoldedRequest:
    """A folded request body."""

    def __init__(self, native: _native.Folded) -> None:
        self._native = native
        #: The body to send.
        self.body: dict[str, Any] = json.loads(native.body)
        #: Its tokens.
        self.tokens: int = native.tokens
        #: Tokens of the body that was given.
        self.received_tokens: int = native.received_tokens

    @property
    def text(self) -> str:
        """The body as JSON; every byte outside of folds is the caller's."""
        return self._native.body

    def unfold(self, handle: str) -> str:
        """Returns the original of a handle."""
        return self._native.unfold(handle).decode("utf-8", "replace")


def fold(body: dict[str, Any] | str, **settings: Unpack[FoldSettings]) -> FoldedRequest:
    """Folds one request body of any format to a budget. The body itself is not changed."""
    text = body if isinstance(body, str) else to_json(body)
    return FoldedRequest(_native.fold(text, to_options(settings)))


def count_tokens(value: Any, model: str | None = None, format: Format | None = None) -> int:
    """Counts the tokens of a text, or of messages or a request body.

    For models without a public tokenizer this is an estimate.
    """
    if isinstance(value, str) and format is None:
        return _native.count_tokens(value, model)
    text = value if isinstance(value, str) else to_json(value)
    return _native.count_tokens(text, model, format or "openai-chat")


def broken_laws(
    body: dict[str, Any], *, before: dict[str, Any] | None = None, format: Format | None = None
) -> list[str]:
    """Returns the provider's rules that a body breaks and ``before`` obeys, each as a sentence."""
    return _native.broken_laws(to_json(body), None if before is None else to_json(before), format)


def unfold_tool(format: Format = "openai-chat") -> dict[str, Any]:
    """Returns the declaration of the tool with which a model unfolds."""
    return json.loads(_native.tool_declaration(format))


def replay(
    *paths: str | os.PathLike[str],
    budget: int = 128_000,
    policy: Policy = "balanced",
    prices: str = "anthropic-5m",
    min_calls: int = 10,
) -> dict[str, Any]:
    """Replays recorded sessions and returns what folding would have saved, cost and lost.

    The result has ``sessions``, ``calls`` and ``engines``: no compaction, then foldline. Nothing
    leaves the machine.
    """
    return json.loads(_native.replay(_files(paths), _replay_options(budget, policy, prices, min_calls)))


def replay_shard(
    *paths: str | os.PathLike[str],
    shard: str,
    budget: int = 128_000,
    policy: Policy = "balanced",
    prices: str = "anthropic-5m",
    min_calls: int = 10,
) -> str:
    """Replays one shard of recorded sessions, such as ``"2/8"``, and returns its result.

    A session belongs to a shard by its name. Every shard reads all recordings, because statistics
    are those of the whole set, and replays its own, which takes almost all of the time. Pass the
    results of all shards to ``merge_replays``. They quote lines of the sessions.
    """
    options = _replay_options(budget, policy, prices, min_calls)
    return _native.replay_shard(_files(paths), options, shard)


def merge_replays(results: Iterable[str]) -> dict[str, Any]:
    """Merges the results of all shards, in any order, into what ``replay`` returns.

    A missing shard, or one of other recordings, settings or versions, raises ``InvalidInput``.
    """
    return json.loads(_native.merge_replays(list(results)))


def _files(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    return [os.fspath(path) for path in paths]


def _replay_options(budget: int, policy: Policy, prices: str, min_calls: int) -> str:
    return to_json({"budget": budget, "policy": policy, "prices": prices, "min_calls": min_calls})
