"""Real clients through the real proxy, against a provider that is scripted and strict.

    evals/clients/run.sh            installs the clients, builds, and runs everything
    python run.py ENVIRONMENTS FOLDLINE STRICT_PROVIDER [CASE..]

A client talks to a tap, which writes down what it sends; the tap to the proxy; the proxy to the provider, which writes down
what it receives. Each row of the table tells of one session:

    turns       requests that the client sent for its conversation
    exit        how the client ended
    laws        requests that a strict provider refused for another reason than their length; must be 0
    refused     requests that did not fit and were refused; the proxy folds more and sends again
    folded      tokens that the client sent and that the provider got, in the last request; creases
    unfolds     hidden calls that were answered inside of the proxy
    moved       times that a request did not begin with the one before it; at most the creases that were logged, and what
                the client itself moved (Claude Code does not send back all thoughts that it is given)
    same bytes  whether every body arrived as it was sent; looked at where nothing is to be folded
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

from tap import Tap

HERE = os.path.dirname(os.path.abspath(__file__))
TASK = "Read every file you are told about, one after the other, and say when you are done."
PATHS = {"/v1/chat/completions": "messages", "/v1/responses": "input", "/v1/messages": "messages"}


class Case:
    def __init__(self, name, command, window, turns=30, flags=(), window_mode="report", timeout=300):
        self.name, self.command, self.window, self.turns = name, command, window, turns
        self.flags, self.window_mode, self.timeout = list(flags), window_mode, timeout


def sdk(api, way, model):
    return lambda env: [env.python, os.path.join(HERE, "sdk.py"), api, way, env.base, model]


def claude(env):
    env.variables.update(
        ANTHROPIC_BASE_URL=env.base,
        ANTHROPIC_API_KEY="fake",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
    )
    return [env.npm("claude"), "-p", TASK, "--allowedTools", "Read", "--model", "claude-opus-4-6", "--output-format", "json"]


def codex(env):
    home = os.path.join(env.variables["HOME"], ".codex")
    os.makedirs(home, exist_ok=True)
    with open(os.path.join(home, "config.toml"), "w") as file:
        file.write(
            'model = "gpt-5.5"\nmodel_provider = "local"\n[model_providers.local]\nname = "local"\n'
            f'base_url = "{env.base}/v1"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n'
        )
    env.variables.update(OPENAI_API_KEY="fake", CODEX_HOME=home)
    return [env.npm("codex"), "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK]


def opencode(env):
    model = {"name": "gpt-4o", "tool_call": True, "limit": {"context": 1000000, "output": 4000}}
    config = {
        "provider": {
            "local": {
                "npm": "@ai-sdk/openai-compatible",
                "options": {"baseURL": env.base + "/v1", "apiKey": "fake"},
                "models": {"gpt-4o": model},
            }
        },
        "model": "local/gpt-4o",
        "small_model": "local/gpt-4o",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"*": "allow", "external_directory": "allow"},
    }
    with open(os.path.join(env.folder, "opencode.json"), "w") as file:
        json.dump(config, file)
    env.variables.update(OPENCODE_CONFIG=os.path.join(env.folder, "opencode.json"), OPENCODE_DISABLE_AUTOUPDATE="1")
    return [env.npm("opencode"), "run", TASK]


def aider(env):
    env.variables.update(OPENAI_API_BASE=env.base + "/v1", OPENAI_API_KEY="fake")
    flags = ["--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable"]
    return [env.aider, "--model", "openai/gpt-4o", "--message", TASK, *flags]


SDK = [
    (f"{library} {api} {way}", sdk(api, way, model))
    for library, api, model in [
        ("openai", "chat", "gpt-4o"),
        ("openai", "responses", "gpt-5.5"),
        ("anthropic", "messages", "claude-opus-4-6"),
    ]
    for way in ["whole", "stream"]
]
CASES = (
    [Case(name, command, 24_000, turns=40) for name, command in SDK]
    + [
        Case("anthropic, signed history", sdk("messages", "stream", "claude-opus-5-5"), 24_000, turns=40),
        Case("openai chat, window hidden", sdk("chat", "stream", "gpt-4o"), 24_000, turns=40, window_mode="hide"),
        Case("openai responses, window hidden", sdk("responses", "stream", "gpt-5.5"), 24_000, turns=40, window_mode="hide"),
        Case("anthropic, window hidden", sdk("messages", "stream", "claude-opus-4-6"), 24_000, turns=40, window_mode="hide"),
        Case("Claude Code", claude, 60_000),
        Case("codex", codex, 40_000),
        Case("opencode", opencode, 40_000),
        Case("aider", aider, 40_000),
    ]
    + [
        Case(f"{name}, {how}", command, 1_000_000, turns=6, flags=flags)
        for name, command in SDK + [("Claude Code", claude), ("codex", codex), ("opencode", opencode), ("aider", aider)]
        for how, flags in [("off", ["--mode", "off"]), ("observing", ["--mode", "observe"]), ("nothing to fold", ["--unfold", "false"])]
        if how == "nothing to fold" or name in ("openai chat stream", "anthropic messages stream", "Claude Code", "codex", "opencode")
    ]
)


class Environment:
    def __init__(self, installed, folder, base):
        self.folder, self.base, self.installed = folder, base, installed
        self.python = os.path.join(installed, "python", "bin", "python")
        self.aider = os.path.join(installed, "aider", "bin", "aider")
        home = os.path.join(folder, "home")
        os.makedirs(home)
        self.variables = {"HOME": home, "PATH": os.environ["PATH"], "TERM": "dumb", "NO_COLOR": "1", "LANG": "C.UTF-8"}

    def npm(self, name):
        return os.path.join(self.installed, "npm", "node_modules", ".bin", name)


def files(folder):
    """Source files of about 1,800 tokens each."""
    os.makedirs(folder)
    for number in range(60):
        lines = [f"def step_{number}_{line}(value): return value * {line * 7 + number} + table_{number}[{line}]" for line in range(60)]
        with open(os.path.join(folder, f"module_{number:02}.py"), "w") as file:
            file.write("\n".join(lines) + "\n")


def start(command):
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    return process, re.search(r"http://([\d.]+):(\d+)", process.stdout.readline())


def elements(path, body):
    """The messages of a body as a provider's cache sees them: without its marks, without nothings, a text as one part."""

    def plain(value):
        if isinstance(value, dict):
            value = {name: plain(it) for name, it in value.items() if name != "cache_control" and it is not None}
            if isinstance(value.get("content"), str) and "role" in value:
                value["content"] = [{"type": "text", "text": value["content"]}]
            return value
        return [plain(it) for it in value] if isinstance(value, list) else value

    body = json.loads(body)
    head = [body.get("system"), body.get("tools")]
    listed = body.get(PATHS[path])
    listed = [listed] if isinstance(listed, str) else listed
    return [json.dumps(plain(it), sort_keys=True) for it in head + listed]


def moves(conversation):
    """The requests that do not begin with the one before them, of those that offer tools, each with that one."""
    found, before = [], []
    for path, body in conversation:
        now = elements(path, body)
        if '"name"' not in now[1]:
            continue
        if now[: len(before)] != before and now != before[: len(now)]:
            found.append((before, now))
        before = now
    return found


def thoughts(element):
    """The seals of the thoughts in a message, and the message without them."""
    message = json.loads(element)
    blocks = message.get("content") if isinstance(message, dict) else None
    if not isinstance(blocks, list):
        return set(), element
    thought = [block for block in blocks if block.get("type") == "thinking"]
    message["content"] = [block for block in blocks if block not in thought]
    return {block["signature"] for block in thought}, json.dumps(message, sort_keys=True)


def left_out(found, sent):
    """Of those, where all that is missing are thoughts that the client was given and never sent back."""
    count = 0
    for before, now in found:
        (was, old), (are, new) = (zip(*map(thoughts, side)) for side in (before, now))
        gone = set().union(*was) - set().union(*are)
        count += old == new[: len(old)] and bool(gone) and not any(it.encode() in body for it in gone for _, body in sent)
    return count


def metric(base, name, labels=""):
    with urllib.request.urlopen(base + "/foldline/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"foldline_{name}(_total)?[{{ ]", line) and labels in line)


def run(case, installed, foldline, provider):
    folder = tempfile.mkdtemp(prefix="foldline-clients-")
    started = []
    try:
        sources, records = os.path.join(folder, "sources"), os.path.join(folder, "records")
        files(sources)
        upstream, at = start([provider, sources, records, str(case.window), str(case.turns), case.window_mode])
        started.append(upstream)
        archive = os.path.join(folder, "archive.db")
        command = [foldline, "serve", "--listen", "127.0.0.1:0", "--upstream", at[0], "--archive", archive, *case.flags]
        proxy, at = start(command)
        started.append(proxy)
        own = at[0]
        tap = Tap(at[1], int(at[2]))
        environment = Environment(installed, folder, f"http://127.0.0.1:{tap.port}")
        work = os.path.join(folder, "work")
        os.makedirs(work)
        try:
            with open(os.path.join(folder, "client.log"), "w") as log:
                client = subprocess.Popen(
                    case.command(environment),
                    cwd=work,
                    env=environment.variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                started.append(client)
                end = str(client.wait(timeout=case.timeout))
        except subprocess.TimeoutExpired:
            end = "too late"
        row = report(case, tap, records, own, end)
        tap.close()
        keep = os.environ.get("FOLDLINE_EVAL_KEEP")
        if keep:
            shutil.copytree(folder, os.path.join(keep, re.sub(r"\W+", "-", case.name)), dirs_exist_ok=True)
        return row
    finally:
        for process in reversed(started):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def report(case, tap, records, own, end):
    notes, received = [], []
    for name in sorted(os.listdir(records)):
        if name.endswith(".note"):
            with open(os.path.join(records, name)) as file:
                notes.append(json.load(file))
            with open(os.path.join(records, name.replace(".note", ".body")), "rb") as file:
                received.append((notes[-1]["path"], file.read()))
    sent = [(path, body) for path, body in tap.bodies() if path in PATHS]
    answered = [it for note, it in zip(notes, received) if note["status"] == 200 and it[0] in PATHS]
    conversation = [note for note in notes if note.get("reply") not in (None, "aside", "counted")]
    creases = metric(own, "creases")
    last = [note["reply"] for note in conversation][-1:]
    folds = case.window < 500_000
    row = {
        "case": case.name,
        "turns": len(sent),
        "exit": end,
        "ended": last == ["last"] or (case.name.startswith("aider") and end == "0"),
        "laws": sum(bool(note.get("laws")) for note in notes),
        "refused": sum(note["status"] == 400 and not note.get("laws") for note in notes),
        "raw": int(metric(own, "prompt_tokens", 'stage="received"')),
        "sent": int(metric(own, "prompt_tokens", 'stage="sent"')),
        "creases": int(creases),
        "unfolds": int(metric(own, "unfolds")),
        "internal errors": int(metric(own, "internal_errors")),
        "moved": len(moves(answered)),
        "moved by client": len(moves(sent)) + left_out(moves(answered), sent),
        "same bytes": None if folds else sorted(sent) == sorted(it for it in received if it[0] in PATHS),
        "why": [note["laws"] for note in notes if note.get("laws")][:1],
    }
    row["ok"] = (
        row["exit"] == "0"
        and row["ended"]
        and row["laws"] == 0
        and row["moved"] <= creases + row["moved by client"]
        and (row["same bytes"] if not folds else row["creases"] > 0 or case.name == "aider")
        and row["internal errors"] == 0
    )
    return row


def main():
    installed, foldline, provider, *wanted = sys.argv[1:]
    columns = ["turns", "exit", "laws", "refused", "raw", "sent", "creases", "unfolds", "moved", "moved by client", "same bytes", "ok"]
    print("| client | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    good = True
    for case in CASES:
        if wanted and not any(it in case.name for it in wanted):
            continue
        row = run(case, os.path.abspath(installed), os.path.abspath(foldline), os.path.abspath(provider))
        good &= row["ok"]
        shown = ["" if row[it] is None else {True: "yes", False: "no"}.get(row[it], row[it]) if isinstance(row[it], bool) else row[it] for it in columns]
        print(f"| {case.name} | " + " | ".join(str(it) for it in shown) + " |", flush=True)
        if not row["ok"]:
            print(json.dumps(row), file=sys.stderr, flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
