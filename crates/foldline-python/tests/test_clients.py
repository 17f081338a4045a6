"""The wrapped clients of OpenAI and Anthropic: an agent of 60 turns in a window of 16k."""

import copy
import json

import pytest

from agents_of_tests import FORMATS, TASK, source, tools_of, user

BUDGET = 16_000


def read(path):
    number = int(path.split("_")[1].split(".")[0])
    return source(number, 60)


def agent_of_chat(create):
    """Returns the steps of an agent loop: each calls the client and answers its tools."""
    messages, tools = [user("openai-chat", TASK)], tools_of("openai-chat")
    while True:
        before = copy.deepcopy(messages)
        reply = yield create(model="gpt-4o", messages=messages, tools=tools)
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


def agent_of_responses(create):
    """The same with items."""
    items, tools = [user("openai-responses", TASK)], tools_of("openai-responses")
    while True:
        before = copy.deepcopy(items)
        reply = yield create(model="gpt-4o", input=items, tools=tools, instructions="Be brief.")
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


def run(agent):
    """Runs an agent with a client that blocks."""
    reply = next(agent)
    while True:
        try:
            reply = agent.send(reply)
        except StopIteration:
            return


async def run_async(agent):
    """Runs an agent with an asynchronous client."""
    reply = await next(agent)
    while True:
        try:
            reply = await agent.send(reply)
        except StopIteration:
            return


def test_openai_chat(provider):
    openai = pytest.importorskip("openai")
    import foldline
    from foldline.openai import wrap

    client = wrap(openai.OpenAI(base_url=provider.url), budget=BUDGET)
    run(agent_of_chat(client.chat.completions.create))
    provider.check(BUDGET)
    # A call without tools gets none: it is folded without unfolds.
    messages, tools = [user("openai-chat", TASK)], tools_of("openai-chat")
    reply = client.chat.completions.create(model="gpt-4o", messages=messages, tools=tools)
    assert reply.choices[0].message.content == "Done." and foldline.unfold_tool() in provider.bodies[-1]["tools"]
    client.chat.completions.create(model="gpt-4o", messages=messages)
    assert "tools" not in provider.bodies[-1]


def test_openai_responses(provider):
    openai = pytest.importorskip("openai")
    from foldline.openai import wrap

    run(agent_of_responses(wrap(openai.OpenAI(base_url=provider.url), budget=BUDGET).responses.create))
    provider.check(BUDGET)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_async_openai(provider, api):
    openai = pytest.importorskip("openai")
    import asyncio

    from foldline.openai import wrap

    async def agent():
        client = wrap(openai.AsyncOpenAI(base_url=provider.url), budget=BUDGET)
        is_chat = api == "chat"
        await run_async(
            agent_of_chat(client.chat.completions.create) if is_chat else agent_of_responses(client.responses.create)
        )

    asyncio.run(agent())
    provider.check(BUDGET)


def test_anthropic(provider):
    anthropic = pytest.importorskip("anthropic")
    from foldline.anthropic import wrap

    client = wrap(anthropic.Anthropic(base_url=provider.url.removesuffix("/v1")), budget=BUDGET)
    run(agent_of_anthropic(client.messages.create))
    provider.check(BUDGET)


def test_async_anthropic(provider):
    anthropic = pytest.importorskip("anthropic")
    import asyncio

    from foldline.anthropic import wrap

    async def agent():
        client = wrap(anthropic.AsyncAnthropic(base_url=provider.url.removesuffix("/v1")), budget=BUDGET)
        await run_async(agent_of_anthropic(client.messages.create))

    asyncio.run(agent())
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
