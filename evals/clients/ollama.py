"""Runs clients of Ollama's own API through the real proxy, against a server that imitates Ollama.

    python ollama.py PYTHON FOLDLINE [TURNS [WINDOW [CLIENT..]]]       PYTHON has ollama and langchain-ollama installed

The server loads the model with the options of a request, and again when they change; it drops the oldest messages of a
prompt that does not fit, and cuts the last one, without an error. It checks that every result follows its call. Each row
of the table is one session:

    turns            requests that the server received
    loads            times that the model was loaded; must be 1
    dropped, cut     messages that were dropped and prompts that were cut because they did not fit; must be 0
    unpaired         results without a call before them and calls without a result; must be 0
    largest          tokens of the largest prompt, as the server estimates them
    done             true if the client received the final text
"""

import json

import agents
import session
from session import DONE

def tokens(value):
    """Returns about the number of tokens of a message or a list of tools."""
    return len(json.dumps(value)) // 4


class Ollama:
    """The state of the server."""

    def __init__(self, turns, window):
        self.turns, self.window = turns, window
        self.loaded, self.log = None, {"turns": 0, "loads": 0, "dropped": 0, "cut": 0, "unpaired": 0, "largest": 0}

    def chat(self, body):
        """Returns the lines of an answer."""
        options = body.get("options") or {}
        window = options.get("num_ctx") or self.window
        runner = (window, options.get("num_gpu"), body.get("shift"))
        if runner != self.loaded:
            self.loaded, self.log["loads"] = runner, self.log["loads"] + 1
        messages = list(body["messages"])
        self.check_pairs(messages)
        self.log["turns"] += 1
        size = lambda: sum(map(tokens, messages)) + tokens(body.get("tools") or [])
        self.log["largest"] = max(self.log["largest"], size())
        while size() > window:
            oldest = next(at for at, it in enumerate(messages) if it["role"] != "system")
            if oldest == len(messages) - 1:
                self.log["cut"] += 1
                break
            del messages[oldest]
            self.log["dropped"] += 1
        count = min(size(), window)
        number = self.log["turns"]
        end = {"done": True, "done_reason": "stop", "total_duration": 5, "prompt_eval_count": count, "eval_count": 9}
        if number > self.turns:
            return [self.line({"content": DONE}), self.line({"content": ""}) | end]
        call = {"id": f"call_{number}", "function": {"index": 0, "name": "read_file", "arguments": {"path": f"{number}.txt"}}}
        texts = [{"content": "", "thinking": "Which file is next?"}, {"content": f"Reading file {number}."}]
        return [*map(self.line, texts), self.line({"content": "", "tool_calls": [call]}), self.line({"content": ""}) | end]

    @staticmethod
    def line(message):
        created = "2026-11-18T00:00:00Z"
        return {"model": "qwen3:8b", "created_at": created, "message": {"role": "assistant", **message}, "done": False}

    def check_pairs(self, messages):
        open_calls = 0
        for it in messages:
            if it["role"] == "tool":
                self.log["unpaired"] += open_calls == 0
                open_calls = max(0, open_calls - 1)
            else:
                self.log["unpaired"] += open_calls
                open_calls = len(it.get("tool_calls") or [])


def joined(lines):
    """Returns the body of an answer without a stream."""
    message = {"role": "assistant", "content": ""}
    for it in lines:
        for key in ("content", "thinking"):
            if it["message"].get(key):
                message[key] = message.get(key, "") + it["message"][key]
        if it["message"].get("tool_calls"):
            message["tool_calls"] = it["message"]["tool_calls"]
    return lines[-1] | {"message": message}


def answer(ollama, method, path, data):
    """Returns the status, the content type and the body of a response."""
    if method == "GET":
        models = [{"name": "qwen3:8b", "context_length": ollama.loaded[0]}] if ollama.loaded else []
        return 200 if path == "/api/ps" else 404, "application/json", json.dumps({"models": models}).encode()
    if path == "/api/show":
        shown = {"model_info": {"qwen3.context_length": 40_960}, "capabilities": ["completion", "tools", "thinking"]}
        return 200, "application/json", json.dumps(shown).encode()
    if path != "/api/chat":
        return 404, "application/json", b'{"error":"not found"}'
    body = json.loads(data)
    lines = ollama.chat(body)
    if body.get("stream", True) is False:
        return 200, "application/json", json.dumps(joined(lines)).encode()
    return 200, "application/x-ndjson", "".join(json.dumps(it) + "\n" for it in lines).encode()


# The agents: each prints the final text.
AGENTS = {
    "ollama-python": agents.COMMON
    + """
import ollama
client = ollama.Client(host=base)
messages = [{"role": "system", "content": "You are a careful reader."}, {"role": "user", "content": TASK}]
for _ in range(turns + 2):
    asked = dict(model=model, messages=messages, tools=[read_file], options={"num_ctx": window})
    if way == "stream":
        text, thinking, calls = "", "", []
        for part in client.chat(stream=True, **asked):
            text += part.message.content or ""
            thinking += part.message.thinking or ""
            calls += part.message.tool_calls or []
        messages.append({"role": "assistant", "content": text, "thinking": thinking, "tool_calls": calls})
    else:
        message = client.chat(**asked).message
        text, calls = message.content, message.tool_calls or []
        messages.append(message)
    if not calls:
        print(text)
        break
    for call in calls:
        result = read_file(**call.function.arguments)
        messages.append({"role": "tool", "content": result, "tool_name": call.function.name})
""",
    "langchain-ollama": agents.langchain(
        "from langchain_ollama import ChatOllama\nllm = ChatOllama(model=model, base_url=base, num_ctx=window)\n"
    ),
}


def run(python, foldline, name, way, turns, window):
    ollama = Ollama(turns, window)
    environment = session.environment_without()
    reply = lambda method, path, headers, data: answer(ollama, method, path, data)
    with (
        session.serve(reply) as upstream,
        session.proxy(foldline, upstream, environment=environment) as (base, folder),
    ):
        is_done = session.run_agent(python, AGENTS[name], [base, "qwen3:8b", window, turns, way], environment, folder)
    row = {"client": name, "way": way, **ollama.log, "done": is_done}
    row["ok"] = row["done"] and row["loads"] == 1 and not (row["dropped"] or row["cut"] or row["unpaired"])
    return row


if __name__ == "__main__":
    session.main(AGENTS, run)
