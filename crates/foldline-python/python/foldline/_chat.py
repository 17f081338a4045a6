"""Chat messages for hosts with message types of their own, and their folds mapped back.

A host's message becomes one chat message whose content is a list of blocks, so that a fold of one
block is a fold of one part of the host's message.
"""

from __future__ import annotations

from typing import Any

Block = dict[str, Any]


def text_block(text: str) -> Block:
    """Returns a block of text."""
    return {"type": "text", "text": text}


def opaque_block(value: Any) -> Block:
    """Returns a block that is counted and never folded."""
    return {"type": "opaque", "value": value}


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """Returns a call of a tool."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text_of(message: dict[str, Any]) -> str:
    """Returns the text of a note or of a folded message."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content or [])


def aligned_blocks(before: list[Block], after: list[Block]) -> list[Block | None]:
    """Returns for each block of a message its folded form; ``None`` if it was dropped."""
    if len(before) == len(after):
        return list(after)
    rest, aligned = list(after), []
    for block in before:
        is_kept = bool(rest) and (rest[0] == block or rest[0].get("type") == block.get("type"))
        aligned.append(rest.pop(0) if is_kept else None)
    return aligned
