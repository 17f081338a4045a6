"""Runs real clients through the real proxy, against a scripted and strict provider.

    evals/clients/run.sh            installs the clients, builds, and runs everything
    python run.py ENVIRONMENTS FOLDLINE STRICT_PROVIDER [CASE..]     part of a name, or =NAME

A client connects to a tap, which records what it sends; the tap connects to the proxy; the proxy connects to the provider,
which records what it receives. Each row of the table is one session:

    turns            requests that the client sent for its conversation
    exit             exit code of the client
    laws             requests that the provider refused for another reason than their length; must be 0
    laws by client   those of them that arrived as the client sent them (Gemini CLI cuts a conversation for its loop check)
    refused          requests that did not fit and were refused; the proxy folds more and sends again
    failed           hidden rounds that the provider failed on purpose
    threads          requests that continued a message thread and were refused by the proxy; the client then sends everything
    received, sent   prompt tokens that the proxy received and sent
    creases          creases that the proxy counted
    unfolds          hidden calls that were answered inside the proxy
    moved            requests that did not begin with the previous one; at most the creases, plus those that the
                     client moved (Claude Code does not send back all reasoning that it receives)
    pairs            hidden calls with their results in the client's next request, of those that were answered
    task             requests with the user's task verbatim
    new results      new results that arrived whole, of those that fit; in brackets those that did not fit
    same bytes       true if every body arrived unchanged; checked if there is nothing to fold

FOLDLINE_EVAL_TIMEOUT is the time for a client, in seconds (600).
FOLDLINE_EVAL_KEEP names a folder for the records and logs of every session, and for the rows as lines of JSON.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request

import measure
from clients import AIDER_TASK, CLAUDE_THREADS, Environment, aider, claude, cline, codex, framework, gemini, mini, opencode, package, pi, sdk
from sdk import TASK
from tap import Tap

COLUMNS = (
    "turns", "exit", "laws", "laws by client", "refused", "failed", "threads", "received", "sent", "creases", "unfolds", "moved", "moved by client",
    "pairs", "task", "new results", "same bytes", "ok",
)  # fmt: skip


class Case:
    """A session: a client, the window, and the options of the provider."""

    def __init__(self, name, commands, window, turns=30, flags=(), options=(), lines=60, task=TASK):
        self.name, self.commands, self.window, self.turns = name, commands, window, turns
        self.flags, self.options, self.lines, self.task = list(flags), list(options), lines, task

    @property
    def has_tools(self):
        return self.task == TASK

    @property
    def folds(self):
        return self.window < 500_000


TIMEOUT = int(os.environ.get("FOLDLINE_EVAL_TIMEOUT", "600"))
CHAT, RESPONSES, MESSAGES = "gpt-4o", "gpt-5.5", "claude-opus-4-6"
SDK = {
    f"{library} python, {api}, {way.replace('-', ' ')}": sdk(api, way, model)
    for library, api, model in [("openai", "chat", CHAT), ("openai", "responses", RESPONSES), ("anthropic", "messages", MESSAGES)]
    for way in ["whole", "stream", "async-whole", "async-stream"]
}
LIBRARIES = {
    "openai npm, chat": package("openai", "chat", CHAT),
    "openai npm, responses": package("openai", "responses", RESPONSES),
    "Vercel AI SDK, chat": package("ai", "chat", CHAT),
    "Vercel AI SDK, responses (default)": package("ai", "responses", RESPONSES),
    "Vercel AI SDK, messages": package("ai", "messages", MESSAGES),
    "Vercel AI SDK, messages, base URL without /v1": package("ai", "messages", MESSAGES, FOLDLINE_EVAL_ROOT_URL="1"),
    "LangChain, chat": framework("langchain", "chat", CHAT),
    "LangChain, responses": framework("langchain", "responses", RESPONSES),
    "LangChain, messages": framework("langchain", "messages", MESSAGES),
    "openai-agents, responses": framework("openai-agents", "responses", RESPONSES),
    "openai-agents, chat": framework("openai-agents", "chat", CHAT),
    "pydantic-ai, chat": framework("pydantic-ai", "chat", CHAT),
    "pydantic-ai, responses": framework("pydantic-ai", "responses", RESPONSES),
    "pydantic-ai, messages": framework("pydantic-ai", "messages", MESSAGES),
    "litellm, chat": framework("litellm", "chat", CHAT),
    "litellm, messages": framework("litellm", "messages", MESSAGES),
}
AGENTS = {
    "codex": codex,
    "opencode, chat": opencode("@ai-sdk/openai-compatible", CHAT),
    "opencode, responses": opencode("@ai-sdk/openai", RESPONSES),
    "opencode, messages": opencode("@ai-sdk/anthropic", MESSAGES),
    "pi, chat": pi("openai-completions", CHAT),
    "pi, responses": pi("openai-responses", RESPONSES),
    "pi, messages": pi("anthropic-messages", MESSAGES),
    "cline, chat": cline("openai-compatible", CHAT),
    "cline, messages": cline("anthropic", MESSAGES),
    "Gemini CLI": gemini,
    "mini-swe-agent, chat": mini,
}
CLAUDE = [
    Case("Claude Code", claude(), 60_000),
    # Three files per turn, of 25 and 12 kB: next to instructions and tools they fit.
    Case("Claude Code, window 100,000, three reads", claude(), 100_000, options=["parallel=3"], lines=400, turns=20),
    Case("Claude Code, window 64,000, three reads", claude(), 64_000, options=["parallel=3"], lines=200, turns=20),
    Case("Claude Code, sub-agents", claude(), 60_000, options=["subtasks"]),
    Case("Claude Code, /compact", claude("/compact", "Go on with the next files."), 60_000),
    Case("Claude Code, threads", claude(**CLAUDE_THREADS), 60_000),
]
THREADS = {
    "anthropic python, thread": sdk("messages", "thread", MESSAGES),
    "anthropic python, thread, stream": sdk("messages", "thread-stream", MESSAGES),
    "anthropic python, thread, with fallback": sdk("messages", "thread-fallback", MESSAGES),
    "anthropic python, tool runner": sdk("messages", "tool-runner", MESSAGES),
    "anthropic python, tool runner, stream": sdk("messages", "tool-runner-stream", MESSAGES),
}
DELAYED = {
    "codex": (codex, 40_000),
    "opencode, responses": (AGENTS["opencode, responses"], 40_000),
    "Claude Code": (claude(), 60_000),
    "Gemini CLI": (gemini, 40_000),
    "openai python, chat, stream": (SDK["openai python, chat, stream"], 24_000),
    "openai python, responses, stream": (SDK["openai python, responses, stream"], 24_000),
    "anthropic python, messages, stream": (SDK["anthropic python, messages, stream"], 24_000),
    "LangChain, chat": (LIBRARIES["LangChain, chat"], 24_000),
    "litellm, chat": (LIBRARIES["litellm, chat"], 24_000),
}
UNCHANGED = {
    **{name: SDK[name] for name in SDK if "async" not in name},
    "Claude Code": claude(),
    "codex": codex,
    "opencode, chat": AGENTS["opencode, chat"],
    "pi, messages": AGENTS["pi, messages"],
    "cline, messages": AGENTS["cline, messages"],
    "Gemini CLI": gemini,
}
CASES = [
    *(Case(name, commands, 24_000, turns=40) for name, commands in {**SDK, **LIBRARIES}.items()),
    Case("anthropic python, signed history", sdk("messages", "stream", "claude-opus-5-5"), 24_000, turns=40),
    Case("openai python, chat, window not reported", sdk("chat", "stream", CHAT), 24_000, turns=40, options=["hide"]),
    Case("openai python, responses, window not reported", sdk("responses", "stream", RESPONSES), 24_000, turns=40, options=["hide"]),
    Case("anthropic python, window not reported", sdk("messages", "stream", MESSAGES), 24_000, turns=40, options=["hide"]),
    *(Case(name, commands, 24_000, turns=40) for name, commands in THREADS.items()),
    *CLAUDE,
    *(Case(name, commands, 40_000, turns=40) for name, commands in AGENTS.items()),
    Case("aider, chat (no tools)", aider(40), 16_000, options=["talk=60"], task=AIDER_TASK),
    *(
        Case(f"{name}, body ends {delay} ms late", commands, window, options=[f"end-delay={delay}"])
        for name, (commands, window) in DELAYED.items()
        for delay in [0, 2, 20, 200]
    ),
    *(
        Case(f"{name}, hidden rounds fail: {failure}", commands, window, options=[f"fail={failure}"])
        for name, (commands, window) in DELAYED.items()
        for failure in ["429", "500", "529", "reset", "529:3"]
    ),
    *(
        Case(f"{name}, {how}", commands, 1_000_000, turns=6, flags=flags)
        for name, commands in UNCHANGED.items()
        for how, flags in [("off", ["--mode", "off"]), ("observing", ["--mode", "observe"]), ("nothing to fold", ["--unfold", "false"])]
    ),
    *(
        Case(f"{name}, passed", commands, 1_000_000, turns=6, flags=["--threads", "pass"])
        for name, commands in {**THREADS, "Claude Code, threads": claude(**CLAUDE_THREADS)}.items()
    ),
]


def files(folder, count=60, lines=60):
    """Writes source files of about 30 tokens per line."""
    os.makedirs(folder)
    for number in range(count):
        text = [f"def step_{number}_{line}(value): return value * {line * 7 + number} + table_{number}[{line}]" for line in range(lines)]
        with open(os.path.join(folder, f"module_{number:03}.py"), "w") as file:
            file.write("\n".join(text) + "\n")


def start(command, log=None):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
    return process, re.search(r"http://([\d.]+):(\d+)", process.stdout.readline())


def metric(base, name, labels=""):
    """Returns the sum of a metric over all series that contain these labels."""
    with urllib.request.urlopen(base + "/foldline/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"foldline_{name}(_total)?[{{ ]", line) and labels in line)


def run(case, installed, foldline, provider):
    folder = tempfile.mkdtemp(prefix="foldline-clients-")
    started = []
    try:
        sources, records = os.path.join(folder, "work", "sources"), os.path.join(folder, "records")
        files(sources, 130 if "parallel=3" in case.options else 60, case.lines)
        upstream, at = start([provider, sources, records, str(case.window), str(case.turns), *case.options])
        started.append(upstream)
        archive = os.path.join(folder, "archive.db")
        command = [foldline, "serve", "--listen", "127.0.0.1:0", "--upstream", at[0], "--archive", archive, *case.flags]
        with open(os.path.join(folder, "proxy.log"), "w") as log:
            proxy, at = start(command, log)
        started.append(proxy)
        own = at[0]
        tap = Tap(at[1], int(at[2]))
        environment = Environment(installed, folder, f"http://127.0.0.1:{tap.port}")
        try:
            with open(os.path.join(folder, "client.log"), "w") as log:
                for command in case.commands(environment):
                    client = subprocess.Popen(
                        command,
                        cwd=os.path.join(folder, "work"),
                        env=environment.variables,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                    started.append(client)
                    end = str(client.wait(timeout=TIMEOUT))
        except subprocess.TimeoutExpired:
            end = "timeout"
        row = report(case, tap, records, own, end)
        tap.close()
        return row
    finally:
        for process in reversed(started):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
        end_leftovers(folder)
        keep = os.environ.get("FOLDLINE_EVAL_KEEP")
        if keep:
            shutil.copytree(folder, os.path.join(keep, re.sub(r"\W+", "-", case.name)), dirs_exist_ok=True, ignore_dangling_symlinks=True)
        shutil.rmtree(folder, ignore_errors=True)


def end_leftovers(folder):
    """Ends the processes that a client left behind: those that work in a folder of the session."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{process}/cwd").startswith(folder + os.sep):
                os.kill(int(process), signal.SIGTERM)
        except OSError:
            pass


def read_records(folder):
    """Returns the notes of the provider with the bodies that it received."""
    found = []
    for name in sorted(os.listdir(folder)):
        if name.endswith(".note"):
            with open(os.path.join(folder, name)) as note, open(os.path.join(folder, name.replace(".note", ".body")), "rb") as body:
                found.append((json.load(note), body.read()))
    return found


def report(case, tap, folder, own, end):
    records = read_records(folder)
    notes = [note for note, _ in records]
    sent = [measure.Body(path, body) for path, body in tap.bodies() if measure.api(path)]
    refused_threads = int(metric(own, "refused_threads"))
    if refused_threads:
        sent = [body for body in sent if not body.continues_thread]
    received = [(note, measure.Body(note["path"], body)) for note, body in records if note["status"] == 200 and measure.api(note["path"])]
    bodies = [body for _, body in received]
    last = [note["reply"] for note in notes if note.get("reply") not in (None, "aside", "counted")][-1:]
    unchanged = {body.data for body in sent}
    broken = [body in unchanged for note, body in records if note.get("laws")]
    moved = measure.moves(bodies, case.has_tools)
    whole, due, cut = measure.new_results(sent, received, case.window) if received else (0, 0, 0)
    row = {
        "case": case.name,
        "turns": len(sent),
        "exit": end,
        "ended": last == ["last"] or (not case.has_tools and end == "0"),
        "laws": broken.count(False),
        "laws by client": broken.count(True),
        "refused": sum(note["status"] == 400 and not note.get("laws") for note in notes),
        "failed": sum(note.get("reply") == "failed" for note in notes),
        "threads": refused_threads,
        "received": int(metric(own, "prompt_tokens", 'stage="received"')),
        "sent": int(metric(own, "prompt_tokens", 'stage="sent"')),
        "creases": int(metric(own, "creases")),
        "unfolds": int(metric(own, "unfolds")),
        "errors": int(metric(own, "internal_errors")),
        "moved": len(moved),
        "moved by client": len(measure.moves(sent, case.has_tools)) + measure.left_out(moved, sent),
        "pairs": measure.hidden_pairs(received),
        "task": measure.tasks(received, case.task),
        "new results": (whole, due),
        "cut": cut,
        "same bytes": None,
        "why": [note["laws"] for note in notes if note.get("laws")][:1],
    }
    if not case.folds:
        own_paths = [body for note, body in records if measure.api(note["path"])]
        row["same bytes"] = sorted(body.data for body in sent) == sorted(own_paths)
    complete = all(row[it][0] == row[it][1] for it in ("pairs", "task", "new results"))
    row["ok"] = (
        row["exit"] == "0"
        and row["ended"]
        and row["laws"] == 0
        and row["moved"] <= row["creases"] + row["moved by client"]
        and complete
        and (row["creases"] > 0 if case.folds else row["same bytes"])
        and row["errors"] == 0
    )
    return row


def cell(row, column):
    value = row[column]
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    if isinstance(value, tuple):
        more = f" (+{row['cut']} cut)" if column == "new results" and row["cut"] else ""
        return f"{value[0]} of {value[1]}{more}"
    return str(value)


def main():
    installed, foldline, provider = (os.path.abspath(it) for it in sys.argv[1:4])
    print("| client | " + " | ".join(COLUMNS) + " |\n" + "|---" * (len(COLUMNS) + 1) + "|", flush=True)
    good, keep = True, os.environ.get("FOLDLINE_EVAL_KEEP")
    for case in CASES:
        if sys.argv[4:] and not any(it in case.name or it == "=" + case.name for it in sys.argv[4:]):
            continue
        row = run(case, installed, foldline, provider)
        good &= row["ok"]
        print(f"| {case.name} | " + " | ".join(cell(row, it) for it in COLUMNS) + " |", flush=True)
        if not row["ok"]:
            print(json.dumps(row), file=sys.stderr, flush=True)
        if keep:
            with open(os.path.join(keep, "rows.jsonl"), "a") as rows:
                rows.write(json.dumps(row) + "\n")
    sys.exit(not good)


if __name__ == "__main__":
    main()
