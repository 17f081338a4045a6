"""Runs real clients as a new user does, with `foldline run -- CLIENT`: no setup, a fake key in the environment. Gemini CLI
has the sign-in method of a user who chose the key at its first start; without one it refuses any base URL.

    evals/clients/run.sh            installs the clients, builds, and runs this after everything else
    python newcomer.py ENVIRONMENTS FOLDLINE STRICT_PROVIDER [CLIENT..]

Each client runs twice: with the provider given by --upstream, and by base URLs in the environment. A row shows whether the
client finished its task, how many requests reached the provider through the proxy, and why requests were refused.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from clients import GEMINI_FLAGS, GEMINI_SETTINGS, Environment
from run import files, start
from sdk import TASK

AIDER = ["--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable"]
CLIENTS = {
    "claude": (60_000, ["claude", "-p", TASK, "--allowedTools", "Read", "--model", "claude-opus-4-6"]),
    "codex": (40_000, ["codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "gpt-5.5", TASK]),
    "opencode, openai": (40_000, ["opencode", "run", "--model", "openai/gpt-4o", TASK]),
    "opencode, anthropic": (40_000, ["opencode", "run", "--model", "anthropic/claude-opus-4-6", TASK]),
    "gemini": (40_000, ["gemini", *GEMINI_FLAGS, "-p", TASK]),
    "aider, openai": (40_000, ["aider", "--model", "openai/gpt-4o", "--message", TASK, *AIDER]),
    "aider, anthropic": (40_000, ["aider", "--model", "anthropic/claude-opus-4-6", "--message", TASK, *AIDER]),
}


def meet(client, how, installed, foldline, provider):
    window, command = CLIENTS[client]
    folder = tempfile.mkdtemp(prefix="foldline-newcomer-")
    work, records = os.path.join(folder, "work"), os.path.join(folder, "records")
    os.makedirs(work)
    files(os.path.join(work, "sources"))
    upstream, at = start([provider, os.path.join(work, "sources"), records, str(window), "30", "report"])
    try:
        environment = Environment(installed, folder, at[0])
        environment.write(".gemini/settings.json", GEMINI_SETTINGS)
        packages = [os.path.join(installed, name, "node_modules", ".bin") for name in ("npm", "gemini")]
        places = [*packages, os.path.join(installed, "aider", "bin")]
        variables = {**environment.variables, "OPENAI_API_KEY": "fake", "ANTHROPIC_API_KEY": "fake", "GEMINI_API_KEY": "fake"}
        variables["PATH"] = os.pathsep.join([*places, variables["PATH"]])
        flags = ["--archive", os.path.join(folder, "archive.db")]
        if how == "--upstream":
            flags += ["--upstream", at[0]]
        else:
            variables.update(OPENAI_BASE_URL=at[0] + "/v1", ANTHROPIC_BASE_URL=at[0], GOOGLE_GEMINI_BASE_URL=at[0])
        with open(os.path.join(folder, "output"), "w+", errors="replace") as output:
            try:
                ended = subprocess.run(
                    [foldline, "run", *flags, "--", *command],
                    cwd=work, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, timeout=600,
                ).returncode
            except subprocess.TimeoutExpired:
                ended = "timeout"
            output.seek(0)
            reports = [line.strip() for line in output if line.startswith("foldline: ")]
    finally:
        os.killpg(upstream.pid, signal.SIGTERM)
        upstream.wait()
    notes = []
    for name in sorted(os.listdir(records)):
        if name.endswith(".note"):
            with open(os.path.join(records, name)) as file:
                notes.append(json.load(file))
    shutil.rmtree(folder, ignore_errors=True)
    finished = client.startswith("aider") or any(note.get("reply") == "last" for note in notes)
    laws = sorted({law for note in notes for law in note.get("laws") or []})
    return ended, finished, len(notes), laws, (reports or ["nothing"])[-1].removeprefix("foldline: ")


def main():
    installed, foldline, provider = (os.path.abspath(it) for it in sys.argv[1:4])
    good = True
    print("| client | provider by | exit | finished | requests | refused for | report of foldline |\n|---|---|--:|---|--:|---|---|")
    for client in CLIENTS:
        if sys.argv[4:] and not any(it in client for it in sys.argv[4:]):
            continue
        for how in ["--upstream", "the environment"]:
            ended, finished, requests, laws, report = meet(client, how, installed, foldline, provider)
            print(f"| {client} | {how} | {ended} | {'yes' if finished else 'no'} | {requests} | {'; '.join(laws)} | {report} |", flush=True)
            good &= ended == 0 and finished and requests > 0 and report != "nothing"
    sys.exit(not good)


if __name__ == "__main__":
    main()
