"""A minimal agent on a provider's own library: it runs the tools that the model calls, until there are no more calls.

    python sdk.py chat|responses|messages whole|stream|async-whole|async-stream BASE_URL MODEL
    python sdk.py messages thread|thread-stream|thread-fallback|tool-runner|tool-runner-stream BASE_URL MODEL

The second form uses message threads: after the first turn a request has the new messages only. `thread-fallback` goes on
without threads if the provider does not support them, which a tool runner always does.

Prints the number of turns and the final text as one line of JSON.
"""

import asyncio
import json
import sys

TASK = "Read every file you are told about, one after the other, and say when you are done."
READ_FILE = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def read_file(path):
    with open(path) as file:
        return file.read()


def chat(model):
    """Yields requests and receives completions; the conversations of the other APIs below work the same way."""
    tools = [{"type": "function", "function": {"name": "read_file", "description": "Reads a file", "parameters": READ_FILE}}]
    messages = [{"role": "system", "content": "You are a careful reader."}, {"role": "user", "content": TASK}]
    while True:
        completion = yield {"model": model, "messages": messages, "tools": tools}
        message = completion.choices[0].message
        calls = message.tool_calls or []
        answer = {"role": "assistant", "content": message.content}
        if calls:
            answer["tool_calls"] = [
                {"id": it.id, "type": "function", "function": {"name": it.function.name, "arguments": it.function.arguments}}
                for it in calls
            ]
        messages.append(answer)
        if not calls:
            return message.content
        for it in calls:
            text = read_file(**json.loads(it.function.arguments))
            messages.append({"role": "tool", "tool_call_id": it.id, "content": text})


def responses(model):
    tools = [{"type": "function", "name": "read_file", "description": "Reads a file", "parameters": READ_FILE, "strict": False}]
    items = [{"role": "user", "content": TASK}]
    asked = {"model": model, "tools": tools, "store": False, "include": ["reasoning.encrypted_content"]}
    while True:
        response = yield {"input": items, **asked}
        items += [it.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for it in response.output]
        for it in items:
            for part in it.get("content") or [] if it.get("type") == "message" else []:
                part.pop("parsed", None)
        calls = [it for it in response.output if it.type == "function_call"]
        if not calls:
            return response.output_text
        for it in calls:
            text = read_file(**json.loads(it.arguments))
            items.append({"type": "function_call_output", "call_id": it.call_id, "output": text})


def messages(model):
    tools = [{"name": "read_file", "description": "Reads a file", "input_schema": READ_FILE}]
    history = [{"role": "user", "content": TASK}]
    asked = {"model": model, "tools": tools, "max_tokens": 2000, "system": "You are a careful reader."}
    asked["thinking"] = {"type": "adaptive"}
    while True:
        message = yield {"messages": history, **asked}
        content = [it.model_dump(exclude_none=True, include=KEPT[it.type]) for it in message.content]
        history.append({"role": "assistant", "content": content})
        calls = [it for it in message.content if it.type == "tool_use"]
        if not calls:
            return message.content[-1].text
        results = [{"type": "tool_result", "tool_use_id": it.id, "content": read_file(**it.input)} for it in calls]
        history.append({"role": "user", "content": results})


# The fields of a block that are sent back; libraries add others.
KEPT = {
    "text": {"type", "text"},
    "thinking": {"type", "thinking", "signature"},
    "tool_use": {"type", "id", "name", "input"},
}


def resource(api, base, is_async):
    """Returns the part of the library that sends requests, and the name of the method for a stream's final message."""
    import anthropic
    import openai

    settings = {"api_key": "fake", "max_retries": 2}
    if api == "messages":
        client = (anthropic.AsyncAnthropic if is_async else anthropic.Anthropic)(base_url=base, **settings)
        return client.messages, "get_final_message"
    client = (openai.AsyncOpenAI if is_async else openai.OpenAI)(base_url=base + "/v1", **settings)
    return (client.chat.completions, "get_final_completion") if api == "chat" else (client.responses, "get_final_response")


def talk(conversation, sender, final, stream):
    turns, asked = 1, next(conversation)
    while True:
        if stream:
            with sender.stream(**asked) as events:
                for _ in events:
                    pass
                answer = getattr(events, final)()
        else:
            answer = sender.create(**asked)
        try:
            turns, asked = turns + 1, conversation.send(answer)
        except StopIteration as end:
            return turns, end.value


async def talk_async(conversation, sender, final, stream):
    turns, asked = 1, next(conversation)
    while True:
        if stream:
            async with sender.stream(**asked) as events:
                async for _ in events:
                    pass
                answer = await getattr(events, final)()
        else:
            answer = await sender.create(**asked)
        try:
            turns, asked = turns + 1, conversation.send(answer)
        except StopIteration as end:
            return turns, end.value


def thread(base, model, way):
    """Talks in a message thread; returns the number of turns and the final text."""
    import anthropic

    client = anthropic.Anthropic(base_url=base, api_key="fake", max_retries=2)
    asked = next(messages(model))
    if way.startswith("tool-runner"):
        return tool_runner(client, {**asked, "tools": [read_tool(anthropic)]}, way.endswith("stream"))
    del asked["messages"]
    behavior = "continue_unthreaded" if way.endswith("fallback") else "error"
    thread = client.beta.messages.thread(**asked, unsupported_request_behavior=behavior)
    turns, new = 0, {"role": "user", "content": TASK}
    while True:
        if way.endswith("stream"):
            with thread.stream(new) as events:
                reply = events.get_final_message()
        else:
            reply = thread.send(new)
        turns += 1
        calls = [it for it in reply.content if it.type == "tool_use"]
        if not calls:
            return turns, reply.content[-1].text
        results = [{"type": "tool_result", "tool_use_id": it.id, "content": read_file(**it.input)} for it in calls]
        new = {"role": "user", "content": results}


def read_tool(anthropic):
    def tool(path: str) -> str:
        return read_file(path)

    return anthropic.beta_tool(tool, name="read_file", description="Reads a file")


def tool_runner(client, asked, stream):
    turns = 0
    for reply in client.beta.messages.tool_runner(**asked, stream=stream):
        turns += 1
        last = reply.get_final_message() if stream else reply
    return turns, last.content[-1].text


if __name__ == "__main__":
    api, way, base, model = sys.argv[1:]
    if way.startswith(("thread", "tool-runner")):
        turns, text = thread(base, model, way)
        print(json.dumps({"turns": turns, "text": text}))
        sys.exit()
    is_async = way.startswith("async")
    conversation = {"chat": chat, "responses": responses, "messages": messages}[api](model)
    sender, final = resource(api, base, is_async)
    talked = (talk_async if is_async else talk)(conversation, sender, final, way.endswith("stream"))
    turns, text = asyncio.run(talked) if is_async else talked
    print(json.dumps({"turns": turns, "text": text}))
