"""foldline for LangChain and LangGraph agents.

``FoldlineMiddleware`` folds the messages of each model call. The history in the graph's state, and
therefore in the checkpoint, stays as it is; the middleware registers the tool with which the model
unfolds.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from ._chat import Block, aligned_blocks, opaque_block, text_block, text_of, tool_call
from ._options import FoldSettings
from ._pool import SessionPool
from ._requests import unfold_tool

if TYPE_CHECKING:
    from typing_extensions import Unpack

_ROLES = {"human": "user", "ai": "assistant", "tool": "tool", "system": "system"}


class FoldlineMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Folds the model calls of an agent: ``create_agent(.., middleware=[FoldlineMiddleware()])``.

    The checkpoint holds the raw history, and a rendering depends only on that history: another
    process that loads the checkpoint sends the same bytes.
    """

    def __init__(self, *, strict: bool = False, **settings: Unpack[FoldSettings]) -> None:
        super().__init__()
        self.pool = SessionPool(strict=strict, **{**settings, "format": "openai-chat"})
        declared = unfold_tool("openai-chat")["function"]

        def unfold(**arguments: Any) -> str:
            return self.pool.answer({key: value for key, value in arguments.items() if value is not None})

        self.tools = [
            StructuredTool.from_function(
                func=unfold,
                name=declared["name"],
                description=declared["description"],
                args_schema=declared["parameters"],
            )
        ]

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Sends the folded messages."""
        return handler(self.folded(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Sends the folded messages."""
        return await handler(self.folded(request))

    def folded(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        """Returns the request with folded messages."""
        messages = request.messages
        model = getattr(request.model, "model_name", None) or getattr(request.model, "model", None)
        tools = [tool if isinstance(tool, dict) else convert_to_openai_tool(tool) for tool in request.tools]
        chat = [to_chat(message) for message in messages]
        rendering = self.pool.fold(chat, model=model, tools=tools, system=request.system_prompt)
        if rendering is None:
            return request
        sent: list[AnyMessage] = []
        for source, message in zip(rendering.sources, rendering.messages):
            if source is None:
                sent.append(HumanMessage(text_of(dict(message))))
            elif message is chat[source] or message == chat[source]:
                sent.append(messages[source])
            else:
                sent.append(from_chat(messages[source], chat[source], dict(message)))
        return request.override(messages=sent)


def to_chat(message: BaseMessage) -> dict[str, Any]:
    """Returns the chat message of a message: its texts and calls can be folded, the rest is counted."""
    chat: dict[str, Any] = {"role": _ROLES.get(message.type, "user"), "content": message.content}
    if not isinstance(message.content, str):
        chat["content"] = [_to_block(block) for block in message.content]
    if isinstance(message, ToolMessage):
        chat["tool_call_id"] = message.tool_call_id
    if isinstance(message, AIMessage) and message.tool_calls:
        chat["tool_calls"] = [
            tool_call(call["id"] or "", call["name"], json.dumps(call["args"], ensure_ascii=False))
            for call in message.tool_calls
        ]
    return chat


def _to_block(block: str | dict[str, Any]) -> Block:
    if isinstance(block, str):
        return text_block(block)
    if block.get("type") in ("text", "image_url"):
        return block
    return opaque_block(block)


def from_chat(message: BaseMessage, before: dict[str, Any], after: dict[str, Any]) -> AnyMessage:
    """Returns a copy of a message with the folds of its chat message."""
    update: dict[str, Any] = {}
    if isinstance(message.content, str):
        update["content"] = text_of(after)
    else:
        blocks = zip(message.content, aligned_blocks(before["content"], after["content"] or []))
        update["content"] = [
            block if folded is None or folded == _to_block(block) else folded for block, folded in blocks
        ]
    if isinstance(message, AIMessage) and message.tool_calls:
        calls = {call["id"]: call["function"]["arguments"] for call in after.get("tool_calls", [])}
        update["tool_calls"] = [
            {**call, "args": json.loads(calls.get(call["id"] or "", "null")) or call["args"]}
            for call in message.tool_calls
        ]
    return message.model_copy(update=update)
