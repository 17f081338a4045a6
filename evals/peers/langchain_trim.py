"""LangChain `trim_messages`, as its how-to shows it: the last messages that fit, with the system message.

The how-to starts on a human message. An agent's session often has only one, at its beginning, so that
nothing would be left; here the result may also start on a model's turn."""

from langchain_core.messages import convert_to_messages, trim_messages
from langchain_core.messages.utils import count_tokens_approximately

from pipe import serve, with_json_arguments


def make(setup):
    def render(messages):
        numbered = convert_to_messages(with_json_arguments(messages))
        for at, message in enumerate(numbered):
            message.id = str(at)
        kept = trim_messages(
            numbered,
            strategy="last",
            token_counter=count_tokens_approximately,
            max_tokens=setup["budget"],
            start_on=("human", "ai"),
            end_on=("human", "tool"),
            include_system=True,
        )
        return [messages[int(message.id)] for message in kept]

    return render


serve(make)
