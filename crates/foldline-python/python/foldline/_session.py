"""A conversation that grows message by message."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ._native import Session, tool_declaration
from ._options import FoldSettings, Message, to_json, to_options

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True, slots=True)
class Rendering:
    """What to send now."""

    #: The messages to send. Those without a fold are the objects that were pushed.
    messages: list[Message]
    #: For each message the index of the pushed one; ``None`` for a note that replaces whole rounds.
    sources: list[int | None]
    #: Position of the first message that differs from the last rendering.
    first_changed: int
    #: True if messages that were sent before changed, so the cached prefix ends at ``first_changed``.
    creased: bool
    #: Tokens of the request, including system and tools.
    tokens: int
    #: The same without any fold.
    received_tokens: int
    #: Maximum tokens of a request.
    budget: int


@dataclass(frozen=True, slots=True)
class OriginalHit:
    """An original that was found by its words."""

    handle: str
    tool: str | None
    line: int
    snippet: str


class FoldSession:
    """A growing conversation in a provider's own messages, and the requests that fit its model.

    Add messages with ``push`` and call ``request`` before each call to the model; or pass the whole
    history to ``fold``. The pushed messages are never changed. A session may be used by several
    threads, one call at a time; the interpreter lock is released while it works.
    """

    def __init__(self, **settings: Unpack[FoldSettings]) -> None:
        self._settings = settings
        self._format: str = settings.get("format") or "openai-chat"
        self._start()

    def _start(self) -> None:
        self._native = Session(to_options(self._settings))
        self._pushed: list[Message] = []
        self._messages: list[Message] = []
        self._sources: list[int | None] = []

    def __len__(self) -> int:
        return len(self._pushed)

    @property
    def budget(self) -> int:
        """Maximum tokens of a request."""
        return self._native.budget

    def push(self, *messages: Message) -> None:
        """Adds messages; none if one of them is not a message of the session's format."""
        if messages:
            self._native.push(to_json(messages))
            self._pushed.extend(messages)

    def request(self) -> Rendering:
        """Decides what to send now. Originals of new folds are stored before it returns."""
        changed = self._native.request()
        first = changed.first
        del self._messages[first:], self._sources[first:]
        for index, text in changed.messages:
            self._messages.append(self._pushed[index] if text is None else json.loads(text))  # type: ignore[index]
            self._sources.append(index)
        return Rendering(
            self._messages.copy(),
            self._sources.copy(),
            first,
            changed.creased,
            changed.tokens,
            changed.received_tokens,
            self._native.budget,
        )

    def fold(self, messages: Sequence[Message]) -> Rendering:
        """Returns what to send for this whole history.

        Messages that the session has are not added again. If the history does not begin with them
        (it was edited, or another branch is continued), the session starts over.
        """
        if not self.is_continued_by(messages):
            self._start()
        self.push(*messages[len(self._pushed) :])
        return self.request()

    def is_continued_by(self, messages: Sequence[Message]) -> bool:
        """Returns true if this history begins with the messages of the session."""
        if len(self._pushed) > len(messages):
            return False
        # The newest message differs first where histories branch.
        pairs = zip(reversed(self._pushed), reversed(messages[: len(self._pushed)]))
        return all(a is b or a == b for a, b in pairs)

    def set_context(self, *, tools: Iterable[Any] | None = None, system: Any = None) -> None:
        """Sets the tools and the system prompt that are sent from now on, for the count of tokens."""
        tools = None if tools is None else list(tools)
        context = (None if tools is None else to_json(tools), None if system is None else to_json(system))
        self._settings = {**self._settings, "tools": tools or [], "system": system}
        self._native.set_context(*context)

    def unfold(self, handle: str) -> str:
        """Returns the original of a handle, of this conversation or of its archive."""
        return self.unfold_bytes(handle).decode("utf-8", "replace")

    def unfold_bytes(self, handle: str) -> bytes:
        """Returns the exact bytes of an original."""
        return self._native.unfold(handle)

    def answer(self, arguments: str | dict[str, Any], room: int | None = None) -> str:
        """Returns the result of a model's call of ``tool``, of at most ``room`` tokens.

        Errors are texts that the model can act on.
        """
        return self._native.answer(arguments if isinstance(arguments, str) else to_json(arguments), room)

    def search(self, words: str, limit: int = 8) -> list[OriginalHit]:
        """Finds folded originals by words: those of the archive, or without one of this conversation."""
        return [OriginalHit(*hit) for hit in self._native.search(words, limit)]

    @property
    def tool(self) -> dict[str, Any]:
        """Declaration of the tool with which the model unfolds; ``answer`` answers its calls."""
        return json.loads(tool_declaration(self._format))
