"""Keeps an LLM agent's conversation inside its model's window, by folds that can be unfolded.

A fold replaces an old part of a request by a short marker, and the original can be restored byte for
byte. ``FoldSession`` holds a conversation that grows; ``fold`` shortens one request body.
"""

from ._native import (
    ArchiveError,
    CannotFit,
    FoldlineError,
    InvalidInput,
    UnknownHandle,
    __version__,
)
from ._options import Format, Message, Policy
from ._requests import (
    FoldedRequest,
    broken_laws,
    count_tokens,
    fold,
    merge_replays,
    replay,
    replay_shard,
    unfold_tool,
)
from ._session import FoldSession, OriginalHit, Rendering

__all__ = [
    "ArchiveError",
    "CannotFit",
    "FoldSession",
    "FoldedRequest",
    "FoldlineError",
    "Format",
    "InvalidInput",
    "Message",
    "OriginalHit",
    "Policy",
    "Rendering",
    "UnknownHandle",
    "__version__",
    "broken_laws",
    "count_tokens",
    "fold",
    "merge_replays",
    "replay",
    "replay_shard",
    "unfold_tool",
]
