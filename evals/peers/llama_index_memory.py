"""LlamaIndex `Memory` with its defaults and without long-term blocks: the newest messages in its queue. It is fed as
the conversation grows, and keeps its state between requests. System messages stand in front of what it gives, as its
agents put them there."""

import asyncio
from functools import lru_cache

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import Memory
from llama_index.core.utils import get_tokenizer

from pipe import serve


def make(setup):
    # It counts its whole queue again at each message; remembering the counts changes nothing but the time.
    tokenizer = lru_cache(maxsize=100_000)(get_tokenizer())
    memory = Memory.from_defaults(session_id="replay", tokenizer_fn=tokenizer)
    loop = asyncio.new_event_loop()
    raw = []

    def render(messages):
        for at, message in enumerate(messages[len(raw):], start=len(raw)):
            raw.append(message)
            if message["role"] in ("system", "developer"):
                continue
            # The message itself travels beside the text that is counted.
            calls = message.get("tool_calls") or []
            asked = "".join(call["function"]["name"] + call["function"]["arguments"] for call in calls)
            entry = ChatMessage(
                role=MessageRole(message["role"]),
                content=(message.get("content") or "") + asked,
                additional_kwargs={"at": at},
            )
            loop.run_until_complete(memory.aput(entry))
        system = [message for message in raw if message["role"] in ("system", "developer")]
        kept = loop.run_until_complete(memory.aget())
        return system + [raw[message.additional_kwargs["at"]] for message in kept]

    return render


serve(make)
