"""kompact: its whole pipeline with its defaults, on the whole request each time, as its proxy does."""

from kompact.config import KompactConfig
from kompact.parser.messages import parse_request, serialize_request
from kompact.transforms.pipeline import run
from kompact.types import Provider

from pipe import serve, with_contents


def make(setup):
    config = KompactConfig()

    def render(messages):
        body = {"model": setup.get("model") or "gpt-4o", "messages": messages}
        if setup.get("tools"):
            body["tools"] = setup["tools"]
        rendered = serialize_request(run(parse_request(body, Provider.OPENAI), config).request)["messages"]
        if len(rendered) != len(messages):
            return rendered
        return with_contents(messages, [message.get("content") for message in rendered])

    return render


serve(make)
