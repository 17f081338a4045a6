"""Sessions of several conversations, found by their history. Shared by the adapters."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ._native import FoldlineError
from ._options import FoldSettings, Message, to_json
from ._session import FoldSession, Rendering

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger("foldline")


class SessionPool:
    """The most recently used sessions, each of one conversation.

    A rendering depends only on the history, so a session that was dropped costs time, never bytes.
    Use one pool per user: a model can unfold what any conversation of the pool folded.
    """

    def __init__(self, limit: int = 64, strict: bool = False, **settings: Unpack[FoldSettings]) -> None:
        self._settings = settings
        self._limit = limit
        #: True if an error of foldline is raised; otherwise the caller's messages are sent unchanged.
        self._strict = strict
        self._lock = threading.RLock()
        self._sessions: list[FoldSession] = []
        self._contexts: dict[int, str] = {}
        #: The last rendering, for statistics.
        self.last: Rendering | None = None

    def fold(
        self,
        messages: Sequence[Message],
        *,
        model: str | None = None,
        tools: Sequence[Any] | None = None,
        system: Any = None,
    ) -> Rendering | None:
        """Returns what to send for a history; ``None`` if it is to be sent as it is."""
        with self._lock:
            try:
                session = self._find(messages) or self._open(model)
                context = to_json([tools, system])
                if self._contexts.get(id(session)) != context:
                    session.set_context(tools=tools, system=system)
                    self._contexts[id(session)] = context
                self.last = session.fold(messages)
                return self.last
            except FoldlineError as error:
                if self._strict:
                    raise
                logger.warning("not folded, the request is sent as it is: %s", error)
                return None

    def _find(self, messages: Sequence[Message]) -> FoldSession | None:
        """Returns the session with the longest history that these messages continue."""
        matching = [session for session in self._sessions if session.is_continued_by(messages)]
        session = max(matching, key=len, default=None)
        if session is not None:
            self._sessions.remove(session)
            self._sessions.append(session)
        return session

    def _open(self, model: str | None) -> FoldSession:
        settings = self._settings if "model" in self._settings or model is None else {**self._settings, "model": model}
        session = FoldSession(**settings)
        self._sessions.append(session)
        for dropped in self._sessions[: -self._limit]:
            self._contexts.pop(id(dropped), None)
        del self._sessions[: -self._limit]
        return session

    def unfold(self, handle: str) -> str:
        """Returns the original of a handle of any conversation of the pool."""
        with self._lock:
            error: FoldlineError | None = None
            for session in reversed(self._sessions):
                try:
                    return session.unfold(handle)
                except FoldlineError as unknown:
                    error = error or unknown
            raise error or FoldlineError("no conversation was folded yet")

    def answer(self, arguments: str | dict[str, Any], room: int | None = None) -> str:
        """Returns the result of a model's call of the unfold tool, of at most ``room`` tokens."""
        with self._lock:
            answers = [session.answer(arguments, room) for session in reversed(self._sessions)]
            known = [answer for answer in answers if not answer.startswith(("No original has", "Not a handle"))]
            return (known or answers or ["Nothing was folded yet."])[0]
