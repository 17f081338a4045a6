"""LangChain's context editing: `ClearToolUsesEdit` with its defaults, applied before each model call to a copy
of the messages, as `ContextEditingMiddleware` does."""

from langchain.agents.middleware.context_editing import ClearToolUsesEdit
from langchain_core.messages import convert_to_messages
from langchain_core.messages.utils import count_tokens_approximately

from pipe import serve, with_contents, with_json_arguments


def make(setup):
    edit = ClearToolUsesEdit()

    def render(messages):
        copy = convert_to_messages(with_json_arguments(messages))
        before = [message.content for message in copy]
        edit.apply(copy, count_tokens=count_tokens_approximately)
        changed = [now.content if now.content != was else None for now, was in zip(copy, before, strict=True)]
        return with_contents(messages, changed)

    return render


serve(make)
