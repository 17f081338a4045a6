"""Runs an agent through the real LiteLLM proxy, whose guardrail sends old rows to a compression service.

    python gateway.py LITELLM FOLDLINE [TURNS [WINDOW]]       LITELLM is the command of litellm[proxy]

The agent reads files through LiteLLM; halfway the user writes again. A scripted provider checks every request (a result for
every call), and imitates a prompt cache: of each prompt, tools first, the longest prefix that an earlier prompt had is
cached, in blocks of 128 tokens. Near the end it calls the retrieval tool of the guardrail, if it is declared. The services:

    none             no guardrail
    recompressing    a stub that shortens each row again at each call, to what its age allows
    foldline         this repository's proxy
    foldline kept    the same, without the retrieval tool, which LiteLLM adds when the first row is folded

Each row of the table is one session:

    turns            requests that the provider accepted
    broken           laws that requests broke; must be empty
    prompt           tokens of all prompts, as the provider estimates them, and of the largest
    cached           share of the prompt tokens that the cache had
    units            prompt tokens with cached ones at a tenth of the price
    retrieved        true if the provider got the original that it requested; none if it did not
    done             true if the agent received the final text
"""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, nullcontext

import session
from apis import broken_pairs
from session import DONE

BLOCK_TOKENS = 128
TASK = "Read every file that is listed, one after the other, and report the end."
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS = [{"type": "function", "function": {"name": "read_file", "description": "Reads a file.", "parameters": SCHEMA}}]
RETRIEVAL_TOOL = "headroom_retrieve"
# LiteLLM does not start without one.
MASTER_KEY = f"sk-{secrets.token_hex(32)}"


def read_file(path):
    return "".join(f"{path}: line {at} of the file has the value {at * 7919 % 1009}\n" for at in range(150))


class Provider:
    """The state of the provider."""

    def __init__(self, turns):
        self.turns, self.prompts = turns, []
        self.log = {"turns": 0, "broken": [], "prompt": 0, "largest": 0, "cached": 0, "folded": 0, "retrieved": None}
        self.requested = None

    def answer(self, method, path, headers, data):
        """Returns the status, the content type and the body of a response."""
        if method != "POST" or not path.endswith("/chat/completions"):
            return 404, "application/json", b"{}"
        body = json.loads(data)
        messages, names = body["messages"], [it["function"]["name"] for it in body.get("tools") or []]
        self.log["broken"] = sorted(broken_pairs(messages) | set(self.log["broken"]))
        prompt = json.dumps([body.get("tools"), messages])
        size, cached = len(prompt) // 4, self.cached_tokens(prompt)
        self.prompts.append(prompt)
        self.log["prompt"] += size
        self.log["cached"] += cached
        self.log["largest"] = max(self.log["largest"], size)
        hashes = re.findall(r"hash=([0-9a-f]{12,24})", prompt)
        self.log["folded"] += bool(hashes)
        if self.requested and messages[-1]["role"] == "tool":
            self.log["retrieved"] = messages[-1]["content"].startswith("1.txt: line 0 ") and "line 149" in messages[-1]["content"]
            self.requested = None
        elif hashes and RETRIEVAL_TOOL in names and self.log["retrieved"] is None and self.log["turns"] > self.turns * 3 // 4:
            self.requested, self.log["retrieved"] = hashes[0], False
            return self.completion("I need the first file again.", RETRIEVAL_TOOL, {"hash": hashes[0]}, size, cached)
        self.log["turns"] += 1
        number = self.log["turns"]
        if number > self.turns:
            return self.completion(DONE, None, None, size, cached)
        if number == self.turns // 2:
            return self.completion("Half of them are read.", None, None, size, cached)
        return self.completion(f"Reading file {number}.", "read_file", {"path": f"{number}.txt"}, size, cached)

    def cached_tokens(self, prompt):
        """Returns the tokens of a prompt that the cache has."""
        longest = max((len(os.path.commonprefix([prompt, it])) for it in self.prompts[-8:]), default=0)
        return longest // 4 // BLOCK_TOKENS * BLOCK_TOKENS

    def completion(self, text, tool, arguments, size, cached):
        message = {"role": "assistant", "content": text}
        if tool:
            function = {"name": tool, "arguments": json.dumps(arguments)}
            message["tool_calls"] = [{"id": f"call_{len(self.prompts)}", "type": "function", "function": function}]
        usage = {"prompt_tokens": size, "completion_tokens": 9, "total_tokens": size + 9, "prompt_tokens_details": {"cached_tokens": cached}}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if tool else "stop"}
        body = {"id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o", "choices": [choice], "usage": usage}
        return 200, "application/json", json.dumps(body).encode()


def recompress(method, path, headers, data):
    """Answers as a service that decides again at each call: the older a row, the fewer of its lines are kept."""
    body = json.loads(data or b"{}")
    rows = body.get("messages") or []
    before = sum(len(json.dumps(it)) for it in rows) // 4
    for age, row in enumerate(reversed(rows)):
        if row["role"] == "tool":
            lines = row["content"].splitlines(keepends=True)
            row["content"] = "".join(lines[: max(2, len(lines) // (age + 1))])
    after = sum(len(json.dumps(it)) for it in rows) // 4
    answer = {"messages": rows, "tokens_before": before, "tokens_after": after, "tokens_saved": before - after}
    return 200, "application/json", json.dumps(answer | {"compression_ratio": after / max(1, before), "ccr_hashes": []}).encode()


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


@contextmanager
def gateway(command, provider, service, has_retrieval):
    """Starts LiteLLM, and yields its URL."""
    config = {
        "model_list": [
            {"model_name": "gpt-4o", "litellm_params": {"model": "openai/gpt-4o", "api_base": f"{provider}/v1", "api_key": "invented"}}
        ],
        "litellm_settings": {"telemetry": False},
        "general_settings": {"master_key": MASTER_KEY},
    }
    if service:
        params = {"guardrail": "headroom", "mode": "pre_call", "api_base": service, "default_on": True, "ccr_retrieval": has_retrieval}
        config["guardrails"] = [{"guardrail_name": "fold", "litellm_params": params}]
    environment = session.environment_without("OPENAI_", "HEADROOM_", "LITELLM_") | {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/log", "w+") as log:
        # YAML contains JSON.
        with open(f"{folder}/config.yaml", "w") as file:
            json.dump(config, file)
        arguments = [command, "--config", f"{folder}/config.yaml", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen(arguments, stdout=log, stderr=log, env=environment, cwd=folder)
        try:
            base = f"http://127.0.0.1:{port}"
            for _ in range(240):
                try:
                    urllib.request.urlopen(f"{base}/health/liveliness", timeout=5).read()
                    break
                except OSError:
                    time.sleep(0.5)
            else:
                log.seek(0)
                sys.exit(f"LiteLLM did not start: {log.read()[-2_000:]}")
            yield base
        finally:
            process.terminate()
            process.wait(30)


def run_agent(base, turns):
    """Runs the agent. Returns true if it received the final text."""
    messages = [{"role": "system", "content": "You are a careful reader."}, {"role": "user", "content": TASK}]
    for _ in range(turns + 2):
        data = json.dumps({"model": "gpt-4o", "messages": messages, "tools": TOOLS, "max_tokens": 500}).encode()
        request = urllib.request.Request(f"{base}/v1/chat/completions", data, {"Content-Type": "application/json", "Authorization": f"Bearer {MASTER_KEY}"})
        try:
            message = json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]["message"]
        except urllib.error.HTTPError as error:
            print(error.read()[:2_000], file=sys.stderr)
            return False
        calls = message.get("tool_calls") or []
        messages.append({"role": "assistant", "content": message["content"]} | ({"tool_calls": calls} if calls else {}))
        if message["content"] == DONE:
            return True
        if not calls:
            messages.append({"role": "user", "content": "Go on with the others."})
        for it in calls:
            result = read_file(**json.loads(it["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": it["id"], "content": result})
    return False


def run(command, foldline, name, turns, window):
    provider = Provider(turns)
    environment = session.environment_without()
    with session.serve(provider.answer) as upstream:
        if name == "none":
            service = nullcontext((None, None))
        elif name == "recompressing":
            service = session.serve(recompress)
        else:
            service = session.proxy(foldline, upstream, "--window", str(window), environment=environment)
        with service as served:
            url = served if isinstance(served, str) else served[0]
            with gateway(command, upstream, url, name == "foldline") as base:
                is_done = run_agent(base, turns)
    log = provider.log
    units = round(log["prompt"] - 0.9 * log["cached"])
    row = {"service": name, **log, "cached": round(log["cached"] / max(1, log["prompt"]), 3), "units": units, "done": is_done}
    has_folded = not name.startswith("foldline") or row["largest"] <= window and (name != "foldline" or row["retrieved"])
    row["ok"] = is_done and not row["broken"] and bool(has_folded)
    return row


if __name__ == "__main__":
    command, foldline = sys.argv[1:3]
    turns, window = (int(it) for it in (sys.argv[3:5] + ["40", "32768"][len(sys.argv[3:5]) :]))
    rows = [run(command, foldline, name, turns, window) for name in ("none", "recompressing", "foldline", "foldline kept")]
    for row in rows:
        print(json.dumps(row))
    sys.exit(not all(row["ok"] for row in rows))
