"""Runs Claude Code in its Bedrock mode with `foldline run`, against a server that imitates Bedrock.

    python claude_bedrock.py CLAUDE FOLDLINE [TURNS [WINDOW]]       this Python has botocore installed

The server requests one file after the other with the tool Read. A row for each way to authenticate:

    key       Claude Code sends an API key, which is forwarded
    skip      Claude Code sends no credentials, and the proxy signs
    signed    Claude Code signs, and the proxy signs again

Columns are those of `session.py`; `paths` are the methods that Claude Code called, with their numbers.
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


class ClaudeBedrock(session.Provider):
    """The state of the server."""

    def __init__(self, turns, window, way, folder):
        super().__init__(turns, window)
        self.way, self.folder = way, folder
        self.paths = collections.Counter()

    def answer(self, method, path, headers, data):
        name = re.sub(r".*/", "", path.split("?")[0])
        self.paths[f"{method} {name}"] += 1
        if not path.startswith("/model/"):
            return session.json_response({}, 404)
        body, size = json.loads(data), len(data) // 4
        is_known = headers.get("Authorization", "").startswith("Bearer ") if self.way == "key" else bedrock_signed.is_signed(method, path, headers, data)
        broken = set() if is_known else {"credentials"}
        if name == "count-tokens":
            return session.json_response({"inputTokens": size})
        reply = bedrock.REPLIES[name]
        if "Read" not in [it.get("name") for it in body.get("tools", [])]:
            return reply(session.Turn(0, size, "Reading files", None))
        broken |= bedrock.broken_laws(body, bool(body.get("tools")), False)
        turn = self.receive(size, broken, body["messages"])
        if turn is None:
            return bedrock.refusal(size, self.window)
        arguments = turn.arguments and {"file_path": f"{self.folder}/{turn.arguments['path']}"}
        return reply(turn._replace(arguments=arguments), "Read")


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
    return server.row("claude", way, is_done) | {"paths": dict(server.paths)}


if __name__ == "__main__":
    claude, foldline = map(os.path.abspath, sys.argv[1:3])
    turns, window = (int(it) for it in (sys.argv[3:5] + ["40", "60000"][len(sys.argv[3:5]) :]))
    rows = [run(claude, foldline, way, turns, window) for way in WAYS]
    for row in rows:
        print(json.dumps(row))
    sys.exit(not all(row["ok"] for row in rows))
