"""The classic strategies: plain functions over a provider's messages, for a loop without sessions.

Each takes the whole history, returns it with old messages shortened, and reports what it did::

    from foldline.strategies import apply_all, compact_to_budget

    view = apply_all(history).messages
    view = compact_to_budget(history, 16_000, model="gpt-4o").messages

Common to all: instructions and messages of users are unchanged (``terminal_truncate`` may cut old
ones), the newest round is kept whole, a text never grows, and applying a function twice changes
nothing. The given messages are never changed. The functions know no prompt cache, and what they
remove cannot be unfolded: where that matters, use ``FoldSession``. Thresholds and their defaults:
docs/reference/strategies.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from . import _native
from ._options import Format, Message, to_json

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = [
    "CompressedText",
    "Shortened",
    "apply_all",
    "compact_to_budget",
    "compress",
    "dedup_tool_calls",
    "dedup_tool_outputs",
    "estimate_tokens",
    "prune_low_entropy",
    "prune_thinking",
    "repair_orphans",
    "snippet_stale_tool_outputs",
    "terminal_truncate",
    "total_tokens",
    "trim_middle",
]

Retention: TypeAlias = Literal["keep_all", "drop_finished_turns", "drop_old"]


class RepeatedCallOptions(TypedDict, total=False):
    """Options of ``dedup_tool_calls``."""

    #: Number of newest messages that are never changed. Default: 8.
    keep_last: int
    #: Minimum length of arguments that are replaced, in bytes. Default: 64.
    min_bytes: int


class RepeatedOutputOptions(TypedDict, total=False):
    """Options of ``dedup_tool_outputs``."""

    #: Number of newest messages that are never changed. Default: 8.
    keep_last: int
    #: Minimum length of a repeat that is replaced, in bytes. Default: 256.
    min_bytes: int
    #: Whole results only, or also runs of whole lines. Default: lines.
    scope: Literal["whole", "lines"]


class SnippetOptions(TypedDict, total=False):
    """Options of ``snippet_stale_tool_outputs``."""

    #: Number of newest messages that are never changed. Default: 8.
    keep_last: int
    #: Minimum size of a result that is cut, in bytes. Default: 4096.
    min_bytes: int
    #: Bytes kept of the head. Default: 1024.
    head_bytes: int
    #: Bytes kept of the tail. Default: 1024.
    tail_bytes: int


class ProseOptions(TypedDict, total=False):
    """Options of ``prune_low_entropy``."""

    #: Number of newest messages that are never changed. Default: 6.
    keep_last: int
    #: Minimum saving for texts to be changed, in bytes. Default: 64.
    min_saved_bytes: int


class ThinkingOptions(TypedDict, total=False):
    """Options of ``prune_thinking``."""

    #: Number of newest messages that are never changed. Default: 4.
    keep_last: int
    #: Old reasoning that may be dropped. Default: drop_old.
    retention: Retention
    #: Number of messages that become old at a time. Default: 1.
    step_messages: int


class TrimTokens(TypedDict):
    """Sizes that decide instead of the number of newest messages."""

    #: Nothing is dropped until the messages have more tokens than this.
    trigger: int
    #: Tokens of the newest messages that are kept.
    keep_last: int


class TrimOptions(TypedDict, total=False):
    """Options of ``trim_middle``."""

    #: Number of oldest messages that are kept. Default: 2.
    keep_first: int
    #: Number of newest messages that are kept. Default: 16.
    keep_last: int
    #: Minimum number of messages for anything to be dropped. Default: 22.
    min_messages: int
    tokens: TrimTokens


class CombinedOptions(TypedDict, total=False):
    """Options of ``apply_all``. Strategies that lose unique text are off unless they are given, such as ``snippets={}``."""

    thinking: ThinkingOptions
    outputs: RepeatedOutputOptions
    prose: ProseOptions
    #: Whole rounds in the middle; off by default.
    middle: TrimOptions
    #: Repeated calls; off by default.
    calls: RepeatedCallOptions
    #: Long old results; off by default.
    snippets: SnippetOptions


class TruncateOptions(TypedDict, total=False):
    """Options of ``terminal_truncate``."""

    #: Model whose tokens are counted. Default: an estimate by bytes.
    model: str
    #: Number of newest messages that are kept. Default: 4.
    keep_last: int


class CompactOptions(TruncateOptions, total=False):
    """Options of ``compact_to_budget``."""

    #: Minimum length of an elided text, in characters. Default: 256.
    min_chars: int
    #: Fraction of the budget down to which texts are elided. Default: 1.0; use 0.75 in a loop.
    target_ratio: float


@dataclass(frozen=True, slots=True)
class Shortened:
    """Messages after a strategy."""

    #: The messages to send. Unchanged ones are the given objects.
    messages: list[Message]
    #: For each message the index of the given one; ``None`` for a new one, such as a marker.
    sources: list[int | None]
    #: Indexes of the given messages that were dropped, or joined with another one (gemini and converse).
    dropped: list[int]
    #: What the strategy did, such as ``{"hits": 3, "bytes_saved": 1_200}``.
    stats: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CompressedText:
    """A text after ``compress``."""

    text: str
    #: Tokens before and after.
    before: int
    after: int
    omitted_lines: int


def apply_all(
    messages: Sequence[Message], *, format: Format = "openai-chat", **options: Unpack[CombinedOptions]
) -> Shortened:
    """Applies all enabled strategies in order, and repairs calls and results."""
    return _apply("apply_all", messages, format, options)


def prune_thinking(
    messages: Sequence[Message], *, format: Format = "openai-chat", **options: Unpack[ThinkingOptions]
) -> Shortened:
    """Drops old reasoning; signed reasoning only from finished turns."""
    return _apply("prune_thinking", messages, format, options)


def dedup_tool_outputs(
    messages: Sequence[Message], *, format: Format = "openai-chat", **options: Unpack[RepeatedOutputOptions]
) -> Shortened:
    """Replaces repeated results, or repeated runs of lines, with a reference to the first copy."""
    return _apply("dedup_tool_outputs", messages, format, options)


def dedup_tool_calls(
    messages: Sequence[Message], *, format: Format = "openai-chat", **options: Unpack[RepeatedCallOptions]
) -> Shortened:
    """Replaces the arguments of a repeated call with a reference to the first call; JSON stays JSON."""
    return _apply("dedup_tool_calls", messages, format, options)


def snippet_stale_tool_outputs(
    messages: Sequence[Message], *, format: Format = "openai-chat", **options: Unpack[SnippetOptions]
) -> Shortened:
    """Cuts long old results to head, tail and the lines between them that report a failure."""
    return _apply("snippet_stale_tool_outputs", messages, format, options)


def prune_low_entropy(
    messages: Sequence[Message], *, format: Format = "openai-chat", **options: Unpack[ProseOptions]
) -> Shortened:
    """Removes blanks, blank lines and lines of dots from old texts of the assistant."""
    return _apply("prune_low_entropy", messages, format, options)


def trim_middle(
    messages: Sequence[Message], *, format: Format = "openai-chat", **options: Unpack[TrimOptions]
) -> Shortened:
    """Drops whole rounds between the oldest and the newest messages."""
    return _apply("trim_middle", messages, format, options)


def compact_to_budget(
    messages: Sequence[Message],
    budget: int,
    *,
    format: Format = "openai-chat",
    **options: Unpack[CompactOptions],
) -> Shortened:
    """Replaces old results, then long arguments and prose, with markers until the messages have ``budget`` tokens.

    ``stats["fits"]`` is false if that is not possible. Tools and instructions outside the messages are
    not counted: subtract them from the budget.
    """
    return _apply("compact_to_budget", messages, format, {**options, "budget": budget})


def terminal_truncate(
    messages: Sequence[Message],
    budget: int,
    *,
    format: Format = "openai-chat",
    **options: Unpack[TruncateOptions],
) -> Shortened:
    """Keeps instructions, texts of the user and the newest messages: the last resort.

    ``stats["fits"]`` is false if even that has more than ``budget`` tokens.
    """
    return _apply("terminal_truncate", messages, format, {**options, "budget": budget})


def repair_orphans(messages: Sequence[Message], *, format: Format = "openai-chat") -> Shortened:
    """Restores the pairing of calls and results."""
    return _apply("repair_orphans", messages, format, {})


def estimate_tokens(text: str) -> int:
    """Estimates the tokens of a text by its bytes: more text is never fewer tokens."""
    return _native.estimate_tokens(text)


def total_tokens(messages: Sequence[Message] | dict[str, Any], format: Format = "openai-chat") -> int:
    """Estimates the tokens of messages or of a request body by their bytes."""
    return _native.estimate_tokens(to_json(messages), format)


def compress(
    text: str, budget: int, *, model: str | None = None, max_chunk_bytes: int | None = None
) -> CompressedText:
    """Compresses a text to a budget: the parts of the highest rank stay, gaps state the omitted lines."""
    given = {"budget": budget, "model": model, "max_chunk_bytes": max_chunk_bytes}
    options = {key: value for key, value in given.items() if value is not None}
    return CompressedText(**json.loads(_native.compress_text(text, to_json(options))))


def _apply(name: str, messages: Sequence[Message], format: str, options: Any) -> Shortened:
    given = list(messages)
    settings = {key: value for key, value in options.items() if value is not None}
    changed, stats = _native.apply_strategy(name, to_json(given), to_json({**settings, "format": format}))
    sources = [index for index, _ in changed]
    kept = set(sources)
    shortened = [given[index] if text is None else json.loads(text) for index, text in changed]  # type: ignore[index]
    dropped = [index for index in range(len(given)) if index not in kept]
    return Shortened(shortened, sources, dropped, json.loads(stats))
