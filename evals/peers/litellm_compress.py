"""LiteLLM `compress(messages, model)`: messages of low relevance to the last user message become stubs, on the whole
request each time.

    litellm_compress.py            its default: above 200,000 tokens, down to 0.7 of them
    litellm_compress.py budget     above the budget, down to 0.7 of it
"""

import os
import sys

# Its table of prices would be downloaded; the package ships the same file.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from litellm.compression import compress  # noqa: E402

from pipe import serve, with_contents  # noqa: E402


def make(setup):
    limits = {"compression_trigger": setup["budget"]} if "budget" in sys.argv[1:] else {}

    def render(messages):
        # It fails on a message without content, as a turn with only tool calls is: such a message has an empty text here.
        texts = [message if message.get("content") is not None else {**message, "content": ""} for message in messages]
        rendered = compress(texts, model=setup.get("model") or "gpt-4o", **limits)["messages"]
        if len(rendered) != len(messages):
            return rendered
        return with_contents(messages, [message.get("content") or None for message in rendered])

    return render


serve(make)
