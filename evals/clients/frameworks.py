"""An agent of each Python framework that reads files, with the framework's own loop.

    python frameworks.py langchain|openai-agents|pydantic-ai|litellm chat|responses|messages BASE_URL MODEL
"""

import asyncio
import json
import os
import sys

from sdk import READ_FILE, TASK
from sdk import read_file as content_of

INSTRUCTIONS = "You are a careful reader."
MAX_STEPS = 400


def read_file(path: str) -> str:
    """Reads a file."""
    return content_of(path)


def langchain(api, base, model):
    from langchain.agents import create_agent

    if api == "messages":
        from langchain_anthropic import ChatAnthropic

        thinking = {"type": "adaptive"}
        llm = ChatAnthropic(model=model, base_url=base, api_key="fake", max_tokens=2000, streaming=True, thinking=thinking)
    else:
        from langchain_openai import ChatOpenAI

        more = {"use_responses_api": True, "store": False, "include": ["reasoning.encrypted_content"]}
        more = more if api == "responses" else {}
        llm = ChatOpenAI(model=model, base_url=base + "/v1", api_key="fake", streaming=True, **more)
    agent = create_agent(llm, tools=[read_file], system_prompt=INSTRUCTIONS)
    state = agent.invoke({"messages": [("user", TASK)]}, {"recursion_limit": MAX_STEPS})
    return state["messages"][-1].text


def openai_agents(api, base, model):
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=base + "/v1", api_key="fake")
    kind = agents.OpenAIResponsesModel if api == "responses" else agents.OpenAIChatCompletionsModel
    settings = agents.ModelSettings(store=False, response_include=["reasoning.encrypted_content"]) if api == "responses" else agents.ModelSettings()
    agent = agents.Agent(
        name="reader",
        instructions=INSTRUCTIONS,
        tools=[agents.function_tool(read_file)],
        model=kind(model=model, openai_client=client),
        model_settings=settings,
    )

    async def run():
        result = agents.Runner.run_streamed(agent, TASK, max_turns=MAX_STEPS)
        async for _ in result.stream_events():
            pass
        return result.final_output

    return asyncio.run(run())


def pydantic_ai(api, base, model):
    from pydantic_ai import Agent
    from pydantic_ai.usage import UsageLimits

    if api == "messages":
        from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
        from pydantic_ai.providers.anthropic import AnthropicProvider

        llm = AnthropicModel(model, provider=AnthropicProvider(api_key="fake", base_url=base))
        settings = AnthropicModelSettings(max_tokens=2000, anthropic_thinking={"type": "adaptive"})
    else:
        from pydantic_ai.models import openai
        from pydantic_ai.providers.openai import OpenAIProvider

        kind = openai.OpenAIResponsesModel if api == "responses" else openai.OpenAIChatModel
        llm, settings = kind(model, provider=OpenAIProvider(api_key="fake", base_url=base + "/v1")), {}
        if api == "responses":
            settings = {"openai_store": False, "openai_include_encrypted_reasoning": True}
    agent = Agent(llm, instructions=INSTRUCTIONS, tools=[read_file], model_settings=settings, retries=2)
    return agent.run_sync(TASK, usage_limits=UsageLimits(request_limit=MAX_STEPS)).output


def litellm(api, base, model):
    import litellm as library

    library.suppress_debug_info = True
    if api == "messages":
        settings = {"model": "anthropic/" + model, "api_base": base, "max_tokens": 2000, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    else:
        settings = {"model": "openai/" + model, "api_base": base + "/v1"}
    tools = [{"type": "function", "function": {"name": "read_file", "description": "Reads a file", "parameters": READ_FILE}}]
    messages = [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": TASK}]
    while True:
        chunks = list(library.completion(messages=messages, tools=tools, stream=True, api_key="fake", num_retries=2, **settings))
        message = library.stream_chunk_builder(chunks, messages=messages).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            text = content_of(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


if __name__ == "__main__":
    framework, api, base, model = sys.argv[1:]
    os.environ.setdefault("OPENAI_API_KEY", "fake")
    run = {"langchain": langchain, "openai-agents": openai_agents, "pydantic-ai": pydantic_ai, "litellm": litellm}[framework]
    print(json.dumps({"text": run(api, base, model)}))
