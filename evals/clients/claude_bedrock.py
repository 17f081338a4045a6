"""Runs Claude Code in its Bedrock mode with `foldline run`, against a server that imitates Bedrock.

    python claude_bedrock.py CLAUDE FOLDLINE [TURNS [WINDOW]]       this Python has botocore installed

The server requests one file after the other with the tool Read. A row for each way to authenticate:

    key       Claude Code sends an API key, which is forwarded
    skip      Claude Code sends no credentials, and the proxy signs
    signed    Claude Code signs, and the proxy signs again

Columns are those of `bedrock.py`; `paths` are the methods that Claude Code called, with their numbers.
"""

import collections
import json
import os
import re
import subprocess
import sys
import tempfile

import bedrock
import bedrock_signed
import session
from session import DONE

MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
KEYS = {"AWS_ACCESS_KEY_ID": bedrock_signed.KEY, "AWS_SECRET_ACCESS_KEY": bedrock_signed.SECRET}
KEYS |= {"AWS_SESSION_TOKEN": bedrock_signed.TOKEN}
SIGN = ["--bedrock-auth", f"aws:{bedrock_signed.REGION}"]
WAYS = {
    "key": ({"AWS_BEARER_TOKEN_BEDROCK": "bedrock-api-key-invented"}, []),
    "skip": (KEYS | {"CLAUDE_CODE_SKIP_BEDROCK_AUTH": "1"}, SIGN),
    "signed": (KEYS, SIGN),
}


class ClaudeBedrock:
    """The state of the server."""

    def __init__(self, turns, window, way, folder):
        self.turns, self.window, self.way, self.folder = turns, window, way, folder
        self.paths = collections.Counter()
        self.log = {"turns": 0, "refused": 0, "broken": [], "largest": 0, "folded": 0}

    def answer(self, method, path, headers, data):
        name = re.sub(r".*/", "", path.split("?")[0])
        self.paths[f"{method} {name}"] += 1
        if not path.startswith("/model/"):
            return 404, "application/json", b"{}"
        body, size = json.loads(data), len(data) // 4
        is_known = headers.get("Authorization", "").startswith("Bearer ") if self.way == "key" else bedrock_signed.is_signed(method, path, headers, data)
        broken = set() if is_known else {"credentials"}
        if name == "count-tokens":
            return 200, "application/json", json.dumps({"inputTokens": size}).encode()
        kind = "application/vnd.amazon.eventstream" if name.endswith("stream") else "application/json"
        if "Read" not in [it.get("name") for it in body.get("tools", [])]:
            text = bedrock.invoke_stream("Reading files", None, size) if name.endswith("stream") else bedrock.invoke_body("Reading files", None, size)
            return 200, kind, text
        broken |= bedrock.broken_laws(body, bool(body.get("tools")), False)
        self.log["broken"] = sorted(broken | set(self.log["broken"]))
        if size > self.window:
            self.log["refused"] += 1
            error = {"message": f"prompt is too long: {size} tokens > {self.window} maximum"}
            return 400, "application/json", json.dumps(error).encode()
        self.log["turns"] += 1
        self.log["largest"] = max(self.log["largest"], size)
        self.log["folded"] += "[folded: " in json.dumps(body["messages"])
        number = self.log["turns"]
        is_last = number > self.turns
        call = None if is_last else (f"toolu_{number}", {"file_path": f"{self.folder}/{number}.txt"})
        text = DONE if is_last else f"Reading file {number}."
        reply = bedrock.invoke_stream if name.endswith("stream") else bedrock.invoke_body
        return 200, kind, reply(text, call, size, "Read")


def run(claude, foldline, way, turns, window):
    variables, arguments = WAYS[way]
    with tempfile.TemporaryDirectory() as home:
        for number in range(1, turns + 1):
            lines = (f"file {number}: line {at} has the value {at * 7919 % 1009}\n" for at in range(200))
            with open(f"{home}/{number}.txt", "w") as file:
                file.writelines(lines)
        server = ClaudeBedrock(turns, window, way, home)
        environment = session.environment_without("AWS_", "ANTHROPIC_", "CLAUDE", "OPENAI_")
        environment |= {"HOME": home, "CLAUDE_CODE_USE_BEDROCK": "1", "AWS_REGION": "us-east-1", "DISABLE_AUTOUPDATER": "1"}
        environment |= {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", **variables}
        with session.serve(server.answer, [("x-amzn-errortype", "ValidationException")]) as upstream:
            command = [foldline, "run", "--bedrock", upstream, "--window", str(window), "--archive", f"{home}/archive.db"]
            command += [*arguments, "--", claude, "-p", "Read every file.", "--model", MODEL, "--allowedTools", "Read"]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, cwd=home)
    is_done = DONE in ended.stdout
    if not is_done:
        print(ended.stdout[-1_000:], ended.stderr[-2_000:], file=sys.stderr)
    row = {"client": "claude", "way": way, **server.log, "paths": dict(server.paths), "done": is_done}
    row["ok"] = is_done and not row["broken"] and row["folded"] > 0
    return row


if __name__ == "__main__":
    claude, foldline = map(os.path.abspath, sys.argv[1:3])
    turns, window = (int(it) for it in (sys.argv[3:5] + ["40", "60000"][len(sys.argv[3:5]) :]))
    rows = [run(claude, foldline, way, turns, window) for way in WAYS]
    for row in rows:
        print(json.dumps(row))
    sys.exit(not all(row["ok"] for row in rows))
