"""Conversations of a scripted agent in every format, and what tests check about requests."""

import json
import re

#: Formats, each with a model.
FORMATS = {
    "openai-chat": "gpt-4o",
    "openai-responses": "gpt-4o",
    "anthropic": "claude-sonnet-4-6",
    "gemini": "gemini-2.5-pro",
    "ollama": "qwen3:8b",
    "converse": "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
}

TASK = "Make the parser in src/parser.rs faster and keep its tests green."


def source(file, lines=30):
    """Returns the text of a file, different for every file."""
    return "".join(f"let value_{file}_{line} = parse(input_{file}, {line});\n" for line in range(lines))


def conversation(format, rounds, lines=30):
    """Yields the messages before each request: the task, then one round at a time."""
    yield [user(format, TASK)]
    for at in range(1, rounds):
        yield round_of(format, f"c{at}", "read_file", {"path": f"src/file_{at}.rs"}, source(at, lines))


def user(format, text):
    """Returns a message of the user."""
    if format == "gemini":
        return {"role": "user", "parts": [{"text": text}]}
    return {"role": "user", "content": [{"text": text}] if format == "converse" else text}


def model_text(format, text):
    """Returns a message of the assistant."""
    if format == "gemini":
        return {"role": "model", "parts": [{"text": text}]}
    return {"role": "assistant", "content": [{"text": text}] if format == "converse" else text}


def round_of(format, call, name, arguments, result):
    """Returns a call of a tool and its result."""
    encoded = json.dumps(arguments)
    if format == "openai-chat":
        function = {"name": name, "arguments": encoded}
        return [
            {"role": "assistant", "content": None, "tool_calls": [{"id": call, "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": call, "content": result},
        ]
    if format == "openai-responses":
        return [
            {"type": "function_call", "call_id": call, "name": name, "arguments": encoded},
            {"type": "function_call_output", "call_id": call, "output": result},
        ]
    if format == "anthropic":
        use = {"type": "tool_use", "id": call, "name": name, "input": arguments}
        answer = {"type": "tool_result", "tool_use_id": call, "content": result}
        return [{"role": "assistant", "content": [use]}, {"role": "user", "content": [answer]}]
    if format == "ollama":
        return [
            {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": name, "arguments": arguments}}]},
            {"role": "tool", "tool_name": name, "content": result},
        ]
    if format == "converse":
        use = {"toolUseId": call, "name": name, "input": arguments}
        answer = {"toolUseId": call, "content": [{"text": result}]}
        return [
            {"role": "assistant", "content": [{"toolUse": use}]},
            {"role": "user", "content": [{"toolResult": answer}]},
        ]
    return [
        {"role": "model", "parts": [{"functionCall": {"name": name, "args": arguments}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": name, "response": {"output": result}}}]},
    ]


def request_body(format, messages):
    """Returns a request body with these messages and the tool of the conversations."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    named = {"name": "read_file", "description": "Reads a file."}
    if format in ("openai-chat", "ollama"):
        tools = [{"type": "function", "function": {**named, "parameters": schema}}]
        return {"model": FORMATS[format], "tools": tools, "messages": messages}
    if format == "openai-responses":
        tools = [{"type": "function", **named, "parameters": schema}]
        return {"model": FORMATS[format], "tools": tools, "input": messages}
    if format == "anthropic":
        tools = [{**named, "input_schema": schema}]
        return {"model": FORMATS[format], "max_tokens": 1_000, "tools": tools, "messages": messages}
    if format == "converse":
        tools = [{"toolSpec": {**named, "inputSchema": {"json": schema}}}]
        return {"toolConfig": {"tools": tools}, "messages": messages}
    return {"tools": [{"functionDeclarations": [{**named, "parameters": schema}]}], "contents": messages}


def tools_of(format):
    """Returns the declarations of the tool of the conversations."""
    body = request_body(format, [])
    return body["toolConfig"]["tools"] if format == "converse" else body["tools"]


def marker_handles(value):
    """Returns the handles in markers, in order."""
    return re.findall(r"unfold ([0-9a-z]{12})\b", json.dumps(value))
