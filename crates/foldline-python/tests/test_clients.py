"""The wrapped clients of OpenAI and Anthropic: an agent of 60 turns in a window of 16k."""

import copy
import json

import pytest

from agents_of_tests import FORMATS, TASK, request_body, source, user

BUDGET = 16_000


def tools_of(format):
    return request_body(format, [])["tools"]


def read(path):
    number = int(path.split("_")[1].split(".")[0])
    return source(number, 60)


def test_openai_chat(provider):
    openai = pytest.importorskip("openai")
    from foldline.openai import wrap

    client = wrap(openai.OpenAI(base_url=provider.url), budget=BUDGET)
    messages, tools = [user("openai-chat", TASK)], tools_of("openai-chat")
    while True:
        before = copy.deepcopy(messages)
        reply = client.chat.completions.create(model="gpt-4o", messages=messages, tools=tools)
        assert messages == before
        message = reply.choices[0].message
        if not message.tool_calls:
            break
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            assert call.function.name == "read_file"
            content = read(json.loads(call.function.arguments)["path"])
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
    assert len(messages) == 121 and "unfold" not in json.dumps(messages)
    provider.check(BUDGET)


def test_openai_responses(provider):
    openai = pytest.importorskip("openai")
    from foldline.openai import wrap

    client = wrap(openai.OpenAI(base_url=provider.url), budget=BUDGET)
    items, tools = [user("openai-responses", TASK)], tools_of("openai-responses")
    while True:
        before = copy.deepcopy(items)
        reply = client.responses.create(model="gpt-4o", input=items, tools=tools, instructions="Be brief.")
        assert items == before
        calls = [item for item in reply.output if item.type == "function_call"]
        if not calls:
            break
        items.extend(item.model_dump(exclude_none=True) for item in reply.output)
        for call in calls:
            assert call.name == "read_file"
            output = read(json.loads(call.arguments)["path"])
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    assert len(items) == 121 and "unfold" not in json.dumps(items)
    provider.check(BUDGET)


def agent_of_anthropic(create):
    """Returns the steps of an agent loop: each calls the client and answers its tools."""
    messages, tools = [user("anthropic", TASK)], tools_of("anthropic")
    model = FORMATS["anthropic"]
    while True:
        before = copy.deepcopy(messages)
        reply = yield create(model=model, max_tokens=1_000, system="Be brief.", messages=messages, tools=tools)
        assert messages == before
        calls = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            break
        messages.append({"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in reply.content]})
        results = [{"type": "tool_result", "tool_use_id": it.id, "content": read(it.input["path"])} for it in calls]
        messages.append({"role": "user", "content": results})
    assert len(messages) == 121 and "unfold" not in json.dumps(messages)


def test_anthropic(provider):
    anthropic = pytest.importorskip("anthropic")
    from foldline.anthropic import wrap

    client = wrap(anthropic.Anthropic(base_url=provider.url.removesuffix("/v1")), budget=BUDGET)
    agent = agent_of_anthropic(client.messages.create)
    reply = next(agent)
    while True:
        try:
            reply = agent.send(reply)
        except StopIteration:
            break
    provider.check(BUDGET)


def test_async_anthropic(provider):
    anthropic = pytest.importorskip("anthropic")
    import asyncio

    from foldline.anthropic import wrap

    async def run():
        client = wrap(anthropic.AsyncAnthropic(base_url=provider.url.removesuffix("/v1")), budget=BUDGET)
        agent = agent_of_anthropic(client.messages.create)
        reply = await next(agent)
        while True:
            try:
                reply = await agent.send(reply)
            except StopIteration:
                break

    asyncio.run(run())
    provider.check(BUDGET)


def test_wrapped_client_sends_what_cannot_fit_unless_strict(provider):
    openai = pytest.importorskip("openai")
    import foldline
    from foldline.openai import wrap

    messages = [{"role": "user", "content": "word " * 3_000}]
    plain = openai.OpenAI(base_url=provider.url)
    wrap(plain, budget=500).chat.completions.create(model="gpt-4o", messages=messages)
    assert provider.bodies[-1]["messages"] == messages
    with pytest.raises(foldline.CannotFit):
        wrap(plain, budget=500, strict=True).chat.completions.create(model="gpt-4o", messages=messages)
    assert len(provider.bodies) == 1
