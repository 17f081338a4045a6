"""The APIs of the scripted providers: the rules that requests must keep, and responses, whole and as events."""

import json


def broken_pairs(messages):
    """Returns the rules about calls and results that messages of Chat Completions break."""
    broken, open_ids = set(), []
    for it in messages:
        if it["role"] == "tool":
            if it["tool_call_id"] not in open_ids:
                broken.add("result without a call")
            open_ids = [call for call in open_ids if call != it["tool_call_id"]]
            continue
        if open_ids:
            broken.add("call without a result")
        open_ids = [call["id"] for call in it.get("tool_calls") or []]
    return broken | ({"call without a result"} if open_ids else set())


def broken_chat(body):
    """Returns the rules of Chat Completions that a request breaks."""
    broken = broken_pairs(body["messages"])
    if not body.get("tools"):
        broken.add("tools declared")
    if body["messages"][-1]["role"] not in ("user", "tool"):
        broken.add("last role")
    for it in body["messages"]:
        calls, content = it.get("tool_calls"), it.get("content")
        parts = content if isinstance(content, list) else [{"text": content}]
        if calls == [] or not calls and not all(part.get("text") for part in parts):
            broken.add("empty message")
        if not all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls or []):
            broken.add("arguments are an object")
    return broken


def chat_message(turn, fields):
    """Returns the assistant's message, with fields of the provider. Its id of a call is valid at all providers."""
    message = {"role": "assistant", "content": turn.text, **fields}
    if turn.arguments:
        function = {"name": "read_file", "arguments": json.dumps(turn.arguments)}
        message["tool_calls"] = [{"id": call_id(turn), "type": "function", "function": function}]
    return message


def call_id(turn):
    return f"call{turn.number:05}"


def chat_body(turn, model, fields={}):
    end = "tool_calls" if turn.arguments else "stop"
    choice = {"index": 0, "message": chat_message(turn, fields), "finish_reason": end}
    usage = {"prompt_tokens": turn.size, "completion_tokens": 9, "total_tokens": turn.size + 9}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": model, "system_fingerprint": "f"}
    return body | {"choices": [choice], "usage": usage}


def chat_chunks(turn, model, fields={}):
    body = chat_body(turn, model, fields)
    message, usage = body["choices"][0]["message"], body.pop("usage")
    chunk = lambda delta, end=None: body | {
        "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": end}]
    }
    calls = message.pop("tool_calls", [])
    yield chunk({"role": message.pop("role"), "content": ""})
    # Reasoning comes before the text.
    for key in sorted(message, key="content".__eq__):
        value = message[key]
        pieces = ([it] for it in value) if isinstance(value, list) else (value[:5], value[5:])
        yield from (chunk({key: piece}) for piece in pieces)
    for call in calls:
        yield chunk({"tool_calls": [{"index": 0, **call}]})
    yield chunk({}, "tool_calls" if calls else "stop")
    yield body | {"object": "chat.completion.chunk", "choices": [], "usage": usage}


def neutral(block):
    """Returns the kind and the content of a block of Anthropic Messages or of Converse."""
    if "toolUse" in block:
        return "call", block["toolUse"]["toolUseId"]
    if "toolResult" in block:
        return "result", block["toolResult"]["toolUseId"]
    if block.get("type") == "tool_use":
        return "call", block["id"]
    if block.get("type") == "tool_result":
        return "result", block["tool_use_id"]
    return "text", block.get("text", "x")


def blocks(it):
    content = it["content"]
    return [("text", content)] if isinstance(content, str) else [neutral(block) for block in content]


def broken_laws(body, has_tools, is_converse):
    """Returns the laws that the messages of a request break. Anthropic Messages joins messages of the same role."""
    broken, messages = set(), body["messages"]
    if messages[0]["role"] != "user":
        broken.add("B2.2 first is user")
    for before, it in zip([None] + messages, messages):
        parts = blocks(it)
        if is_converse and before and before["role"] == it["role"]:
            broken.add("B2.1 alternation")
        if not parts or any(kind == "text" and not value.strip() for kind, value in parts):
            broken.add("B2.3 blank text")
        calls = [value for kind, value in blocks(before) if kind == "call"] if before else []
        results = [value for kind, value in parts if kind == "result"]
        if sorted(calls) != sorted(results):
            broken.add("B1.1 pairs")
        if (calls or results) and not has_tools:
            broken.add("B1.3 tools declared")
    return broken


def message_body(turn, tool="read_file"):
    """Returns a message of Anthropic."""
    call = {"type": "tool_use", "id": f"toolu_{turn.number}", "name": tool, "input": turn.arguments}
    body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5"}
    body["content"] = [{"type": "text", "text": turn.text}] + ([call] if turn.arguments else [])
    usage = {"input_tokens": turn.size, "output_tokens": 9}
    return body | {"stop_reason": "tool_use" if turn.arguments else "end_turn", "stop_sequence": None, "usage": usage}


def message_events(turn, tool="read_file"):
    """Returns the events of the same message."""
    whole = message_body(turn, tool)
    events = [{"type": "message_start", "message": whole | {"content": [], "stop_reason": None}}]
    for index, block in enumerate(whole["content"]):
        delta = {"type": "text_delta", "text": block.get("text")}
        start = {"type": "text", "text": ""}
        if block["type"] == "tool_use":
            delta, start = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}, block | {"input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 9}}, {"type": "message_stop"}]


def message_stream(turn):
    """Returns the events with their names."""
    return [f"event: {it['type']}\ndata: {json.dumps(it)}" for it in message_events(turn)]


def broken_gemini(body):
    """Returns the rules of Gemini that a request breaks. Each call must have the signature with which it was sent."""
    broken, before = set(), None
    count = lambda content, key: sum(key in part for part in content["parts"])
    for it in body["contents"]:
        if before is None and it["role"] != "user" or before and before["role"] == it["role"]:
            broken.add("roles alternate")
        if before and count(before, "functionCall") != count(it, "functionResponse"):
            broken.add("calls and responses")
        if any(part.get("text") == "" for part in it["parts"]) or not it["parts"]:
            broken.add("empty text")
        for part in it["parts"]:
            if "functionCall" in part and part.get("thoughtSignature") != gemini_signature(part["functionCall"]["args"]):
                broken.add("signature")
        before = it
    return broken


def gemini_signature(arguments):
    """Returns the signature of a call, in base64."""
    return f"signature{arguments.get('path', 'missing').removesuffix('.txt'):0>3}"


def gemini_chunks(turn):
    parts = [{"text": turn.text[:5]}, {"text": turn.text[5:]}]
    if turn.arguments:
        call = {"name": "read_file", "args": turn.arguments}
        parts.append({"functionCall": call, "thoughtSignature": gemini_signature(turn.arguments)})
    chunk = lambda part: {"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}], "modelVersion": "gemini-2.5-pro"}
    last = chunk({"text": ""})
    last["candidates"][0]["finishReason"] = "STOP"
    last["usageMetadata"] = {"promptTokenCount": turn.size, "candidatesTokenCount": 9, "totalTokenCount": turn.size + 9}
    return [*map(chunk, parts), last]


def gemini_body(turn):
    chunks = gemini_chunks(turn)
    parts = [part for it in chunks for part in it["candidates"][0]["content"]["parts"] if part.get("text") != ""]
    chunks[-1]["candidates"][0]["content"]["parts"] = parts
    return chunks[-1]
