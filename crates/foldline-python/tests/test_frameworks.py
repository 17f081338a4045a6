"""Adapters inside the real frameworks: an agent of 60 turns in a window of 16k."""

import copy
import functools
import json

import pytest

from agents_of_tests import TASK, source

BUDGET = 16_000


def read_text(path):
    return source(int(path.split("_")[1].split(".")[0]), 60)


def test_openai_agents(provider):
    pytest.importorskip("agents")
    import asyncio

    from agents import Agent, OpenAIProvider, RunConfig, Runner, function_tool
    from foldline.openai_agents import Foldline

    @function_tool
    def read_file(path: str) -> str:
        """Reads a file."""
        return read_text(path)

    fold = Foldline(budget=BUDGET)
    agent = Agent(name="reader", model="gpt-4o", instructions="Be brief.", tools=[read_file, fold.tool])
    models = OpenAIProvider(base_url=provider.url, api_key="not-a-key", use_responses=True)
    config = RunConfig(model_provider=models, call_model_input_filter=fold.filter, tracing_disabled=True)
    result = asyncio.run(Runner.run(agent, TASK, run_config=config, max_turns=100))
    history = result.to_input_list()
    results = [item for item in history if item.get("type") == "function_call_output"]
    reads = [item["output"] for item in results if item["call_id"] != "unfold_1"]
    assert reads == [source(at, 60) for at in range(1, 61)]
    assert result.final_output == "Done."
    provider.check(BUDGET)


def test_openai_agents_session_keeps_the_raw_items(provider):
    pytest.importorskip("agents")
    import asyncio

    from agents import Agent, OpenAIProvider, RunConfig, Runner, SQLiteSession, function_tool
    from openai import AsyncOpenAI

    from foldline.openai_agents import Foldline

    @function_tool
    def read_file(path: str) -> str:
        """Reads a file."""
        return read_text(path)

    async def run(session):
        fold = Foldline(budget=BUDGET)
        agent = Agent(name="reader", model="gpt-4o", instructions="Be brief.", tools=[read_file, fold.tool])
        # A client of its own: the shared one belongs to the event loop of another test.
        client = AsyncOpenAI(base_url=provider.url, api_key="not-a-key")
        models = OpenAIProvider(openai_client=client, use_responses=True)
        config = RunConfig(model_provider=models, call_model_input_filter=fold.filter, tracing_disabled=True)
        await Runner.run(agent, TASK, run_config=config, session=session, max_turns=100)
        last = provider.bodies[-1]["input"]
        await Runner.run(agent, "Go on.", run_config=config, session=session)
        # The second run loads the raw items and sends what the first one sent.
        assert provider.bodies[-1]["input"][: len(last)] == last
        return await session.get_items()

    items = asyncio.run(run(SQLiteSession("one")))
    results = [item for item in items if item.get("type") == "function_call_output"]
    reads = [item["output"] for item in results if item["call_id"] != "unfold_1"]
    assert reads == [source(at, 60) for at in range(1, 61)]
    assert "[folded:" not in json.dumps([item for item in items if item.get("call_id") != "unfold_1"])
    provider.check(BUDGET)


def test_langchain(provider):
    pytest.importorskip("langchain")
    pytest.importorskip("langchain_openai")
    from langchain.agents import create_agent
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.checkpoint.memory import InMemorySaver

    from foldline.langchain import FoldlineMiddleware

    @tool
    def read_file(path: str) -> str:
        """Reads a file."""
        return read_text(path)

    def agent():
        model = ChatOpenAI(model="gpt-4o", base_url=provider.url)
        fold = FoldlineMiddleware(budget=BUDGET)
        return create_agent(model, [read_file], system_prompt="Be brief.", middleware=[fold], checkpointer=saver)

    saver = InMemorySaver()
    thread = {"configurable": {"thread_id": "1"}, "recursion_limit": 500}
    state = agent().invoke({"messages": [{"role": "user", "content": TASK}]}, thread)
    history = state["messages"]
    results = [message for message in history if message.type == "tool" and message.tool_call_id != "unfold_1"]
    assert [message.content for message in results] == [source(at, 60) for at in range(1, 61)]
    assert history[-1].content == "Done."
    provider.check(BUDGET)

    # Another process loads the checkpoint and sends the same bytes.
    last = copy.deepcopy(provider.bodies[-1]["messages"])
    agent().invoke({"messages": [{"role": "user", "content": "Go on."}]}, thread)
    assert provider.bodies[-1]["messages"][: len(last)] == last


def test_pydantic_ai(provider):
    pytest.importorskip("pydantic_ai")
    pytest.importorskip("openai")
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    from foldline.pydantic_ai import Foldline

    models = OpenAIProvider(base_url=provider.url, api_key="not-a-key")
    agent = Agent(
        OpenAIChatModel("gpt-4o", provider=models),
        instructions="Be brief.",
        capabilities=[Foldline(budget=BUDGET)],
    )

    @agent.tool_plain
    def read_file(path: str) -> str:
        """Reads a file."""
        return read_text(path)

    result = agent.run_sync(TASK, usage_limits=UsageLimits(request_limit=200))
    returns = [part for message in result.all_messages() for part in message.parts if part.part_kind == "tool-return"]
    reads = [part.content for part in returns if part.tool_call_id != "unfold_1"]
    assert reads == [source(at, 60) for at in range(1, 61)]
    assert result.output == "Done."
    provider.check(BUDGET)


@pytest.mark.parametrize("door", ["acompletion", "router"])
def test_litellm(provider, door):
    pytest.importorskip("litellm")
    import asyncio

    import litellm

    from agents_of_tests import request_body, user
    from foldline.litellm import Foldline

    fold = Foldline(budget=BUDGET)
    tools = [*request_body("openai-chat", [])["tools"], fold.tool]
    deployment = {"model": "openai/gpt-4o", "api_base": provider.url, "api_key": "not-a-key"}

    async def run():
        # LiteLLM's proxy sends its requests by a router.
        router = litellm.Router(model_list=[{"model_name": "reader", "litellm_params": deployment}])
        given = {"model": "reader"} if door == "router" else deployment
        complete = functools.partial(router.acompletion if door == "router" else litellm.acompletion, **given)
        messages = [user("openai-chat", TASK)]
        while True:
            before = copy.deepcopy(messages)
            reply = await complete(messages=messages, tools=tools)
            assert messages == before
            message = reply.choices[0].message
            if not message.tool_calls:
                return messages
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                arguments = json.loads(call.function.arguments)
                is_unfold = call.function.name == "unfold"
                content = fold.answer(arguments) if is_unfold else read_text(arguments["path"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": content})

    callbacks, litellm.callbacks = litellm.callbacks, [fold]
    try:
        messages = asyncio.run(run())
    finally:
        litellm.callbacks = callbacks
    results = [it["content"] for it in messages if it["role"] == "tool" and it["tool_call_id"] != "unfold_1"]
    assert results == [source(at, 60) for at in range(1, 61)]
    provider.check(BUDGET)


def test_pydantic_ai_sends_unchanged_parts_of_earlier_requests_as_they_are():
    pytest.importorskip("pydantic_ai")
    from pydantic_ai.messages import ModelRequest, ModelResponse, RetryPromptPart, ToolCallPart, UserPromptPart

    from foldline.pydantic_ai import Foldline

    history = [
        ModelRequest(parts=[UserPromptPart(TASK)]),
        ModelResponse(parts=[ToolCallPart("read_file", {"path": 7}, tool_call_id="c1")]),
        ModelRequest(parts=[RetryPromptPart("path must be a string", tool_name="read_file", tool_call_id="c1")]),
    ]
    fold = Foldline(budget=BUDGET)
    assert fold.folded(history) == history
    history = [*history, ModelResponse(parts=[ToolCallPart("read_file", {"path": "a"}, tool_call_id="c2")])]
    assert fold.folded(history) == history
