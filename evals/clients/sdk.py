"""A minimal agent on a provider's own library: it runs the tools that the model calls, until there are no more calls.

    python sdk.py chat|responses|messages stream|whole BASE_URL MODEL

Prints the number of turns and the final text as one line of JSON.
"""

import json
import sys

TASK = "Read every file you are told about, one after the other, and say when you are done."
READ_FILE = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def read_file(path):
    with open(path) as file:
        return file.read()


def chat(base, model, stream):
    from openai import OpenAI

    client = OpenAI(base_url=base + "/v1", api_key="fake", max_retries=0)
    tools = [{"type": "function", "function": {"name": "read_file", "description": "Reads a file", "parameters": READ_FILE}}]
    messages = [{"role": "system", "content": "You are a careful reader."}, {"role": "user", "content": TASK}]
    turns = 0
    while True:
        turns += 1
        if stream:
            with client.chat.completions.stream(model=model, messages=messages, tools=tools) as events:
                for _ in events:
                    pass
                message = events.get_final_completion().choices[0].message
        else:
            message = client.chat.completions.create(model=model, messages=messages, tools=tools).choices[0].message
        calls = message.tool_calls or []
        answer = {"role": "assistant", "content": message.content}
        if calls:
            answer["tool_calls"] = [
                {"id": it.id, "type": "function", "function": {"name": it.function.name, "arguments": it.function.arguments}}
                for it in calls
            ]
        messages.append(answer)
        if not calls:
            return turns, message.content
        for it in calls:
            text = read_file(**json.loads(it.function.arguments))
            messages.append({"role": "tool", "tool_call_id": it.id, "content": text})


def responses(base, model, stream):
    from openai import OpenAI

    client = OpenAI(base_url=base + "/v1", api_key="fake", max_retries=0)
    tools = [{"type": "function", "name": "read_file", "description": "Reads a file", "parameters": READ_FILE, "strict": False}]
    items = [{"role": "user", "content": TASK}]
    turns = 0
    asked = {"model": model, "tools": tools, "store": False, "include": ["reasoning.encrypted_content"]}
    while True:
        turns += 1
        if stream:
            with client.responses.stream(input=items, **asked) as events:
                for _ in events:
                    pass
                response = events.get_final_response()
        else:
            response = client.responses.create(input=items, **asked)
        items += [it.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for it in response.output]
        for it in items:
            for part in it.get("content") or [] if it.get("type") == "message" else []:
                part.pop("parsed", None)
        calls = [it for it in response.output if it.type == "function_call"]
        if not calls:
            return turns, response.output_text
        for it in calls:
            text = read_file(**json.loads(it.arguments))
            items.append({"type": "function_call_output", "call_id": it.call_id, "output": text})


def messages(base, model, stream):
    from anthropic import Anthropic

    client = Anthropic(base_url=base, api_key="fake", max_retries=0)
    tools = [{"name": "read_file", "description": "Reads a file", "input_schema": READ_FILE}]
    history = [{"role": "user", "content": TASK}]
    turns = 0
    asked = {"model": model, "tools": tools, "max_tokens": 2000, "system": "You are a careful reader."}
    asked["thinking"] = {"type": "adaptive"}
    while True:
        turns += 1
        if stream:
            with client.messages.stream(messages=history, **asked) as events:
                for _ in events:
                    pass
                message = events.get_final_message()
        else:
            message = client.messages.create(messages=history, **asked)
        content = [it.model_dump(exclude_none=True, include=KEPT[it.type]) for it in message.content]
        history.append({"role": "assistant", "content": content})
        calls = [it for it in message.content if it.type == "tool_use"]
        if not calls:
            return turns, message.content[-1].text
        results = [{"type": "tool_result", "tool_use_id": it.id, "content": read_file(**it.input)} for it in calls]
        history.append({"role": "user", "content": results})


# The fields of a block that are sent back; libraries add others.
KEPT = {
    "text": {"type", "text"},
    "thinking": {"type", "thinking", "signature"},
    "tool_use": {"type", "id", "name", "input"},
}

if __name__ == "__main__":
    api, way, base, model = sys.argv[1:]
    turns, text = {"chat": chat, "responses": responses, "messages": messages}[api](base, model, way == "stream")
    print(json.dumps({"turns": turns, "text": text}))
