"""foldline for LiteLLM.

``Foldline`` is a callback: it folds the messages of every ``acompletion``, also of a ``Router``, just
before the request is sent, after a deployment was chosen. LiteLLM calls it for asynchronous requests
only: ``completion`` sends its messages as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litellm.integrations.custom_logger import CustomLogger

from ._options import FoldSettings
from ._pool import SessionPool
from ._requests import unfold_tool

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Calls whose messages are chat messages.
_CHAT_CALLS = ("completion", "acompletion")


class Foldline(CustomLogger):
    """Folds chat requests: ``litellm.callbacks = [Foldline(budget=16_000)]``."""

    def __init__(self, *, strict: bool = False, **settings: Unpack[FoldSettings]) -> None:
        super().__init__()
        self.pool = SessionPool(strict=strict, **{**settings, "format": "openai-chat"})
        #: The tool with which a model unfolds; add it to ``tools``, and answer its calls with ``answer``.
        self.tool: dict[str, Any] = unfold_tool("openai-chat")

    def answer(self, arguments: str | dict[str, Any]) -> str:
        """Returns the result of a call of ``tool``."""
        return self.pool.answer(arguments)

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        """Replaces the messages of a request; the caller's list is not changed."""
        name = getattr(call_type, "value", call_type)
        messages = kwargs.get("messages")
        if not messages or (name is not None and name not in _CHAT_CALLS):
            return None
        model = str(kwargs.get("model") or "").rsplit("/", 1)[-1] or None
        folded = self.pool.fold(messages, model=model, tools=kwargs.get("tools"))
        return None if folded is None else {**kwargs, "messages": folded.messages}
