"""foldline for Pydantic AI.

``Foldline`` is a capability: it folds the messages of each model request, once the model that serves
it is known, and offers the tool with which the model unfolds. The history of the run stays as it is.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.tools import Tool
from pydantic_ai.toolsets import FunctionToolset

from ._chat import Block, aligned_blocks, opaque_block, text_block, text_of, tool_call
from ._options import FoldSettings
from ._pool import SessionPool
from ._requests import unfold_tool

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Position of a part: its message, and its part; no part for a whole response.
Position = tuple[int, int | None]


class Foldline(AbstractCapability[Any]):
    """Folds the model requests of an agent: ``Agent(.., capabilities=[Foldline(budget=16_000)])``."""

    def __init__(self, *, strict: bool = False, **settings: Unpack[FoldSettings]) -> None:
        self.pool = SessionPool(strict=strict, **{**settings, "format": "openai-chat"})

    def get_toolset(self) -> FunctionToolset[Any]:
        """Returns the tool with which the model unfolds."""
        declared = unfold_tool("openai-chat")["function"]

        def unfold(**arguments: Any) -> str:
            return self.pool.answer(arguments)

        tool = Tool.from_schema(
            unfold,
            name=declared["name"],
            description=declared["description"],
            json_schema=declared["parameters"],
        )
        return FunctionToolset([tool])

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Returns the request with folded messages."""
        parameters = request_context.model_request_parameters
        tools = [
            {"name": tool.name, "description": tool.description, "parameters": tool.parameters_json_schema}
            for tool in (*parameters.function_tools, *parameters.output_tools)
        ]
        system = [part.content for part in parameters.instruction_parts or []]
        model = request_context.model.model_name
        messages = self.folded(request_context.messages, model=model, tools=tools, system=system or None)
        return replace(request_context, messages=messages)

    def folded(self, messages: list[ModelMessage], **context: Any) -> list[ModelMessage]:
        """Returns the messages to send for a history."""
        chat, positions = to_chat(messages)
        folded = self.pool.fold(chat, **context)
        if folded is None:
            return messages
        rendered: list[tuple[Position | None, dict[str, Any] | None]] = []
        for source, message in zip(folded.sources, folded.messages):
            # The session holds the chat messages of earlier requests, which are equal and not the same objects.
            is_same = source is not None and message == chat[source]
            rendered.append((None if source is None else positions[source], None if is_same else dict(message)))
        return from_chat(messages, rendered)


def to_chat(messages: Sequence[ModelMessage]) -> tuple[list[dict[str, Any]], list[Position]]:
    """Returns chat messages, one per part of a request and one per response, and their positions."""
    chat: list[dict[str, Any]] = []
    positions: list[Position] = []
    for at, message in enumerate(messages):
        if isinstance(message, ModelResponse):
            chat.append(_response_to_chat(message))
            positions.append((at, None))
            continue
        for index, part in enumerate(message.parts):
            chat.append(_request_part_to_chat(part))
            positions.append((at, index))
    return chat, positions


def _request_part_to_chat(part: Any) -> dict[str, Any]:
    if isinstance(part, SystemPromptPart):
        return {"role": "system", "content": part.content}
    if isinstance(part, UserPromptPart):
        content = part.content
        return {"role": "user", "content": content if isinstance(content, str) else [_user_block(it) for it in content]}
    if isinstance(part, ToolReturnPart):
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response_str()}
    if isinstance(part, RetryPromptPart) and part.tool_name is not None:
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": [opaque_block(part.model_response())]}
    return {"role": "user", "content": [opaque_block(str(getattr(part, "content", "")))]}


def _user_block(item: Any) -> Block:
    if isinstance(item, str):
        return text_block(item)
    if isinstance(item, ImageUrl):
        return {"type": "image_url", "image_url": {"url": item.url}}
    if isinstance(item, BinaryContent) and item.is_image:
        data = base64.b64encode(item.data).decode()
        return {"type": "image_url", "image_url": {"url": f"data:{item.media_type};base64,{data}"}}
    return opaque_block(repr(item))


def _response_to_chat(message: ModelResponse) -> dict[str, Any]:
    blocks: list[Block] = []
    for part in message.parts:
        if isinstance(part, TextPart):
            blocks.append(text_block(part.content))
        elif isinstance(part, ThinkingPart):
            blocks.append(opaque_block(part.content))
        elif not isinstance(part, ToolCallPart):
            blocks.append(opaque_block(repr(part)))
    chat: dict[str, Any] = {"role": "assistant", "content": blocks or None}
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    if calls:
        chat["tool_calls"] = [tool_call(part.tool_call_id, part.tool_name, part.args_as_json_str()) for part in calls]
    return chat


def from_chat(
    messages: Sequence[ModelMessage], rendered: Sequence[tuple[Position | None, dict[str, Any] | None]]
) -> list[ModelMessage]:
    """Returns the messages of a rendering: each position with its folded chat message, or none."""
    sent: list[ModelMessage] = []
    parts: list[Any] = []
    open_request: int | None = None

    def close() -> None:
        if open_request is not None:
            request = messages[open_request]
            sent.append(request if parts == list(request.parts) else replace(request, parts=list(parts)))

    for position, folded in rendered:
        at, index = position if position is not None else (None, None)
        if at != open_request or index is None:
            close()
            parts, open_request = [], None
        if at is None:
            sent.append(ModelRequest(parts=[UserPromptPart(text_of(folded or {}))]))
        elif index is None:
            response = messages[at]
            assert isinstance(response, ModelResponse)
            sent.append(response if folded is None else _folded_response(response, folded))
        else:
            part = messages[at].parts[index]
            parts.append(part if folded is None else _folded_part(part, folded))
            open_request = at
    close()
    return sent


def _folded_part(part: Any, folded: dict[str, Any]) -> Any:
    if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
        blocks = aligned_blocks([_user_block(item) for item in part.content], folded["content"] or [])
        items = [
            item if block is None or block == _user_block(item) else block.get("text", "")
            for item, block in zip(part.content, blocks)
        ]
        return replace(part, content=items)
    return replace(part, content=text_of(folded))


def _folded_response(response: ModelResponse, folded: dict[str, Any]) -> ModelResponse:
    before = _response_to_chat(response)
    blocks = iter(aligned_blocks(before["content"] or [], folded.get("content") or []))
    arguments = {call["id"]: call["function"]["arguments"] for call in folded.get("tool_calls", [])}
    parts: list[Any] = []
    for part in response.parts:
        if isinstance(part, ToolCallPart):
            changed = arguments.get(part.tool_call_id)
            is_same = changed is None or changed == part.args_as_json_str()
            parts.append(part if is_same else replace(part, args=changed))
            continue
        block = next(blocks)
        if isinstance(part, TextPart) and block is not None and block.get("text") != part.content:
            part = replace(part, content=block.get("text", ""))
        parts.append(part)
    return replace(response, parts=parts)
