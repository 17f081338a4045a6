"""Runs clients of Amazon Bedrock through the real proxy, against a server that imitates Bedrock.

    python bedrock.py PYTHON FOLDLINE [TURNS [WINDOW [CLIENT..]]]

PYTHON has boto3 and anthropic[bedrock], or langchain-aws, installed.

The server checks every request as Bedrock does: an API key and no signature, alternating roles (Converse), a result for
every call in the next user message, no blank text, declared tools. The proxy serves TLS, because boto3 sends an API key to
no other endpoint. The streams are binary messages with checksums, which the clients verify. The table:
`session.py`.
"""

import base64
import json
import re
import struct
import tempfile
import urllib.parse
import zlib

import agents
import session
from apis import broken_laws, message_body, message_events

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


class Bedrock(session.Provider):
    """The state of the server."""

    def answer(self, method, path, headers, data):
        """Returns the status, the content type and the body of a response."""
        if method != "POST" or not path.startswith("/model/"):
            return session.json_response({}, 404)
        model, method = re.fullmatch(r"/model/(.*)/([a-z-]+)", path).groups()
        body, size = json.loads(data), len(data) // 4
        is_converse = method.startswith("converse")
        broken = broken_laws(body, bool(body.get("toolConfig" if is_converse else "tools")), is_converse)
        if not (headers.get("Authorization") or "").startswith("Bearer "):
            broken.add("no API key")
        if urllib.parse.unquote(model) != MODEL:
            broken.add(f"model {model}")
        turn = self.receive(size, broken, body["messages"])
        return refusal(size, self.window) if turn is None else REPLIES[method](turn)


def refusal(size, window):
    return session.json_response({"message": f"prompt is too long: {size} tokens > {window} maximum"}, 400)


def event_stream(messages):
    """Returns the status, the content type and the body of a stream of binary messages."""
    return 200, "application/vnd.amazon.eventstream", b"".join(messages)


def tool_use(turn):
    return {"toolUseId": f"tooluse_{turn.number}", "name": "read_file"}


def converse_body(turn):
    content = [{"text": turn.text}] + ([{"toolUse": tool_use(turn) | {"input": turn.arguments}}] if turn.arguments else [])
    usage = {"inputTokens": turn.size, "outputTokens": 9, "totalTokens": turn.size + 9}
    stop = "tool_use" if turn.arguments else "end_turn"
    message = {"role": "assistant", "content": content}
    return session.json_response({"output": {"message": message}, "stopReason": stop, "usage": usage, "metrics": {"latencyMs": 1}})


def converse_stream(turn):
    half = len(turn.text) // 2
    delta = lambda index, it: message("contentBlockDelta", {"contentBlockIndex": index, "delta": it, "p": "abcdef"})
    out = [message("messageStart", {"role": "assistant", "p": "ab"})]
    out += [delta(0, {"text": turn.text[:half]}), delta(0, {"text": turn.text[half:]}), message("contentBlockStop", {"contentBlockIndex": 0})]
    if turn.arguments:
        text = json.dumps(turn.arguments)
        out.append(message("contentBlockStart", {"contentBlockIndex": 1, "start": {"toolUse": tool_use(turn)}}))
        out += [delta(1, {"toolUse": {"input": piece}}) for piece in ("", text[:5], text[5:])]
        out.append(message("contentBlockStop", {"contentBlockIndex": 1}))
    out.append(message("messageStop", {"stopReason": "tool_use" if turn.arguments else "end_turn"}))
    usage = {"inputTokens": turn.size, "outputTokens": 9, "totalTokens": turn.size + 9}
    return event_stream([*out, message("metadata", {"usage": usage, "metrics": {"latencyMs": 1}})])


def invoke_body(turn, tool="read_file"):
    return session.json_response(message_body(turn, tool))


def invoke_stream(turn, tool="read_file"):
    encoded = (base64.b64encode(json.dumps(it).encode()).decode() for it in message_events(turn, tool))
    return event_stream(message("chunk", {"bytes": it}) for it in encoded)


REPLIES = {
    "converse": converse_body,
    "converse-stream": converse_stream,
    "invoke": invoke_body,
    "invoke-with-response-stream": invoke_stream,
}


# The agents: each prints the final text.
AGENTS = {
    "boto3 converse": agents.COMMON
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
    "AnthropicBedrock": agents.messages(
        "import os\nfrom anthropic import AnthropicBedrock\n"
        'client = AnthropicBedrock(base_url=base, api_key=os.environ["AWS_BEARER_TOKEN_BEDROCK"], aws_region="us-east-1")\n'
    ),
    "langchain-aws": agents.langchain(
        "from langchain_aws import ChatBedrockConverse\n"
        'llm = ChatBedrockConverse(model=model, endpoint_url=base, region_name="us-east-1", max_tokens=1000)\n'
    ),
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
            is_done = session.run_agent(python, AGENTS[name], [base, MODEL, window, turns, way], environment | key, folder)
    return bedrock.row(name, way, is_done)


if __name__ == "__main__":
    session.main(AGENTS, run)
