"""foldline for the OpenAI Agents SDK.

``Foldline.filter`` is a ``call_model_input_filter``: it folds the items of each model call, and the
history of the run (and of a ``Session``) stays as it is. ``Foldline.tool`` gives an agent the tool
with which its model unfolds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agents import FunctionTool
from agents.run import CallModelData, ModelInputData
from agents.tool_context import ToolContext

from ._options import FoldSettings
from ._pool import SessionPool
from ._requests import unfold_tool

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Foldline:
    """Folds the model calls of runs. Pass ``strict=True`` to get errors of foldline raised."""

    def __init__(self, *, strict: bool = False, **settings: Unpack[FoldSettings]) -> None:
        self.pool = SessionPool(strict=strict, **{**settings, "format": "openai-responses"})

    @property
    def tool(self) -> FunctionTool:
        """The tool with which the model unfolds."""
        declared = unfold_tool("openai-responses")

        async def answer(_: ToolContext[Any], arguments: str) -> str:
            return self.pool.answer(arguments)

        return FunctionTool(
            name=declared["name"],
            description=declared["description"],
            params_json_schema=declared["parameters"],
            on_invoke_tool=answer,
            strict_json_schema=False,
        )

    def filter(self, data: CallModelData[Any]) -> ModelInputData:
        """Returns the items to send: a ``call_model_input_filter``."""
        given = data.model_data
        tools = [tool_json(tool) for tool in data.agent.tools]
        model = data.agent.model if isinstance(data.agent.model, str) else getattr(data.agent.model, "model", None)
        folded = self.pool.fold(given.input, model=model, tools=tools, system=given.instructions)
        return given if folded is None else ModelInputData(folded.messages, given.instructions)


def tool_json(tool: Any) -> dict[str, Any]:
    """Returns what counts for a tool's tokens."""
    return {
        "type": "function",
        "name": tool.name,
        "description": getattr(tool, "description", ""),
        "parameters": getattr(tool, "params_json_schema", {}),
    }
