"""Runs clients of Amazon Bedrock through the real proxy, against a server that imitates Bedrock.

    python bedrock.py PYTHON FOLDLINE [TURNS [WINDOW]]       PYTHON has boto3 and anthropic[bedrock] installed

The server checks every request as Bedrock does: an API key and no signature, alternating roles (Converse), a result for
every call in the next user message, no blank text, declared tools. The proxy serves TLS, because boto3 sends an API key to
no other endpoint. The streams are binary messages with checksums, which the clients verify. Each row of the table is one
session:

    turns            requests that the server accepted
    refused          prompts that did not fit
    broken           laws that requests broke; must be empty
    largest          tokens of the largest accepted prompt, as the server estimates them
    folded           requests that contain a marker; must not be 0
    done             true if the client received the final text
"""

import base64
import json
import re
import struct
import tempfile
import urllib.parse
import zlib

import session
from session import COMMON, DONE

MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


def message(event_type, payload):
    """Returns a binary message with its checksums."""
    headers = b""
    for name, value in ((":event-type", event_type), (":content-type", "application/json"), (":message-type", "event")):
        headers += bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
    data = json.dumps(payload).encode()
    start = struct.pack(">II", 16 + len(headers) + len(data), len(headers))
    start += struct.pack(">I", zlib.crc32(start))
    return start + headers + data + struct.pack(">I", zlib.crc32(start + headers + data))


def neutral(block):
    """Returns the kind and the content of a block of either API."""
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
    """Returns the laws that the messages of a request break. InvokeModel joins messages of the same role."""
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


class Bedrock:
    """The state of the server."""

    def __init__(self, turns, window):
        self.turns, self.window = turns, window
        self.log = {"turns": 0, "refused": 0, "broken": [], "largest": 0, "folded": 0}

    def answer(self, method, path, headers, data):
        """Returns the status, the content type and the body of a response."""
        if method != "POST" or not path.startswith("/model/"):
            return 404, "application/json", b"{}"
        model, method = re.fullmatch(r"/model/(.*)/([a-z-]+)", path).groups()
        body, size = json.loads(data), len(data) // 4
        is_converse = method.startswith("converse")
        broken = broken_laws(body, bool(body.get("toolConfig" if is_converse else "tools")), is_converse)
        if not (headers.get("Authorization") or "").startswith("Bearer "):
            broken.add("no API key")
        if urllib.parse.unquote(model) != MODEL:
            broken.add(f"model {model}")
        self.log["broken"] = sorted(broken | set(self.log["broken"]))
        if size > self.window:
            self.log["refused"] += 1
            error = {"message": f"prompt is too long: {size} tokens > {self.window} maximum"}
            return 400, "application/json", json.dumps(error).encode()
        self.log["turns"] += 1
        self.log["largest"] = max(self.log["largest"], size)
        self.log["folded"] += "[folded: " in json.dumps(body["messages"])
        number = self.log["turns"]
        text = DONE if number > self.turns else f"Reading file {number}."
        call = None if number > self.turns else (f"tooluse_{number}", {"path": f"{number}.txt"})
        kind = "application/vnd.amazon.eventstream" if method.endswith("stream") else "application/json"
        reply = {
            "converse": converse_body,
            "converse-stream": converse_stream,
            "invoke": invoke_body,
            "invoke-with-response-stream": invoke_stream,
        }[method]
        return 200, kind, reply(text, call, size)


def converse_body(text, call, size):
    content = [{"text": text}] + ([{"toolUse": {"toolUseId": call[0], "name": "read_file", "input": call[1]}}] if call else [])
    usage = {"inputTokens": size, "outputTokens": 9, "totalTokens": size + 9}
    stop = "tool_use" if call else "end_turn"
    body = {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": stop, "usage": usage, "metrics": {"latencyMs": 1}}
    return json.dumps(body).encode()


def converse_stream(text, call, size):
    half = len(text) // 2
    delta = lambda index, it: message("contentBlockDelta", {"contentBlockIndex": index, "delta": it, "p": "abcdef"})
    out = [message("messageStart", {"role": "assistant", "p": "ab"})]
    out += [delta(0, {"text": text[:half]}), delta(0, {"text": text[half:]}), message("contentBlockStop", {"contentBlockIndex": 0})]
    if call:
        start = {"toolUse": {"toolUseId": call[0], "name": "read_file"}}
        out.append(message("contentBlockStart", {"contentBlockIndex": 1, "start": start}))
        out += [delta(1, {"toolUse": {"input": piece}}) for piece in ("", json.dumps(call[1])[:5], json.dumps(call[1])[5:])]
        out.append(message("contentBlockStop", {"contentBlockIndex": 1}))
    out.append(message("messageStop", {"stopReason": "tool_use" if call else "end_turn"}))
    usage = {"inputTokens": size, "outputTokens": 9, "totalTokens": size + 9}
    return b"".join(out + [message("metadata", {"usage": usage, "metrics": {"latencyMs": 1}})])


def invoke_body(text, call, size, tool="read_file"):
    content = [{"type": "text", "text": text}] + ([{"type": "tool_use", "id": call[0], "name": tool, "input": call[1]}] if call else [])
    stop = "tool_use" if call else "end_turn"
    body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", "content": content}
    body |= {"stop_reason": stop, "stop_sequence": None, "usage": {"input_tokens": size, "output_tokens": 9}}
    return json.dumps(body).encode()


def invoke_stream(text, call, size, tool="read_file"):
    start = json.loads(invoke_body(text, call, size)) | {"content": [], "stop_reason": None}
    events = [{"type": "message_start", "message": start}]
    events.append({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    events.append({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})
    events.append({"type": "content_block_stop", "index": 0})
    if call:
        block = {"type": "tool_use", "id": call[0], "name": tool, "input": {}}
        events.append({"type": "content_block_start", "index": 1, "content_block": block})
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
        events += [{"type": "content_block_delta", "index": 1, "delta": delta}, {"type": "content_block_stop", "index": 1}]
    stop = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    events += [{"type": "message_delta", "delta": stop, "usage": {"output_tokens": 9}}, {"type": "message_stop"}]
    return b"".join(message("chunk", {"bytes": base64.b64encode(json.dumps(it).encode()).decode()}) for it in events)


# The agents: each prints the final text.
COMMON += "base, model, turns, way = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]\n"
AGENTS = {
    "boto3 converse": COMMON
    + """
import boto3
client = boto3.client("bedrock-runtime", endpoint_url=base, region_name="us-east-1")
messages = [{"role": "user", "content": [{"text": TASK}]}]
tools = {"tools": [{"toolSpec": {"name": "read_file", "inputSchema": {"json": SCHEMA}}}]}
for _ in range(turns + 2):
    asked = dict(modelId=model, messages=messages, system=[{"text": "You are a careful reader."}], toolConfig=tools, inferenceConfig={"maxTokens": 1000})
    if way == "stream":
        content, stop = {}, None
        for event in client.converse_stream(**asked)["stream"]:
            if "contentBlockStart" in event:
                it = event["contentBlockStart"]
                content[it["contentBlockIndex"]] = {"toolUse": {**it["start"]["toolUse"], "input": ""}}
            if "contentBlockDelta" in event:
                it = event["contentBlockDelta"]
                if "text" in it["delta"]:
                    block = content.setdefault(it["contentBlockIndex"], {"text": ""})
                    block["text"] += it["delta"]["text"]
                else:
                    content[it["contentBlockIndex"]]["toolUse"]["input"] += it["delta"]["toolUse"]["input"]
            stop = event.get("messageStop", {}).get("stopReason", stop)
        content = [content[at] for at in sorted(content)]
        for block in content:
            if "toolUse" in block:
                block["toolUse"]["input"] = json.loads(block["toolUse"]["input"] or "{}")
        message = {"role": "assistant", "content": content}
    else:
        answer = client.converse(**asked)
        message, stop = answer["output"]["message"], answer["stopReason"]
    messages.append(message)
    if stop != "tool_use":
        print(message["content"][0]["text"])
        break
    calls = [block["toolUse"] for block in message["content"] if "toolUse" in block]
    results = [{"toolResult": {"toolUseId": it["toolUseId"], "content": [{"text": read_file(**it["input"])}]}} for it in calls]
    messages.append({"role": "user", "content": results})
""",
    "AnthropicBedrock": COMMON
    + """
import os
from anthropic import AnthropicBedrock
client = AnthropicBedrock(base_url=base, api_key=os.environ["AWS_BEARER_TOKEN_BEDROCK"], aws_region="us-east-1")
messages = [{"role": "user", "content": TASK}]
tools = [{"name": "read_file", "description": "Reads a file.", "input_schema": SCHEMA}]
for _ in range(turns + 2):
    asked = dict(model=model, messages=messages, system="You are a careful reader.", tools=tools, max_tokens=1000)
    if way == "stream":
        with client.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(**asked)
    messages.append({"role": "assistant", "content": [it.model_dump(exclude_none=True) for it in answer.content]})
    calls = [it for it in answer.content if it.type == "tool_use"]
    if not calls:
        print(answer.content[0].text)
        break
    results = [{"type": "tool_result", "tool_use_id": it.id, "content": read_file(**it.input)} for it in calls]
    messages.append({"role": "user", "content": results})
""",
}


def run(python, foldline, name, way, turns, window):
    bedrock = Bedrock(turns, window)
    environment = session.environment_without("AWS_", "ANTHROPIC_")
    with (
        tempfile.TemporaryDirectory() as certificates,
        session.serve(bedrock.answer, [("x-amzn-errortype", "ValidationException")]) as upstream,
    ):
        certificate, tls = session.tls_arguments(certificates)
        key = {"AWS_BEARER_TOKEN_BEDROCK": "bedrock-api-key-invented", "AWS_CA_BUNDLE": certificate, "SSL_CERT_FILE": certificate}
        proxy = session.proxy(foldline, upstream, "--window", str(window), *tls, environment=environment)
        with proxy as (base, folder):
            is_done = session.run_agent(python, AGENTS[name], [base, MODEL, turns, way], environment | key, folder)
    row = {"client": name, "way": way, **bedrock.log, "done": is_done}
    row["ok"] = row["done"] and not row["broken"] and row["folded"] > 0
    return row


if __name__ == "__main__":
    session.main(AGENTS, run)
