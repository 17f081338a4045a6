"""LlamaIndex `Memory` with its defaults and without long-term blocks: the newest messages in its queue. It receives
the messages as the conversation grows, and keeps its state between requests. System messages precede its output, as in its
agents."""

import asyncio
from functools import lru_cache

from llama_index.core.base.llms.types import ChatMessage, MessageRole
from llama_index.core.memory import Memory
from llama_index.core.utils import get_tokenizer

from pipe import serve


def make(setup):
    # It counts its whole queue again at each message; caching the counts changes only the run time.
    tokenizer = lru_cache(maxsize=100_000)(get_tokenizer())
    memory = Memory.from_defaults(session_id="replay", tokenizer_fn=tokenizer)
    loop = asyncio.new_event_loop()
    raw = []

    def render(messages):
        for at, message in enumerate(messages[len(raw):], start=len(raw)):
            raw.append(message)
            if message["role"] in ("system", "developer"):
                continue
            # Only the counted text is stored; the index leads back to the message.
            calls = message.get("tool_calls") or []
            call_text = "".join(call["function"]["name"] + call["function"]["arguments"] for call in calls)
            entry = ChatMessage(
                role=MessageRole(message["role"]),
                content=(message.get("content") or "") + call_text,
                additional_kwargs={"at": at},
            )
            loop.run_until_complete(memory.aput(entry))
        system = [message for message in raw if message["role"] in ("system", "developer")]
        kept = loop.run_until_complete(memory.aget())
        return system + [raw[message.additional_kwargs["at"]] for message in kept]

    return render


serve(make)
