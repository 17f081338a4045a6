"""What the scripts for single clients share: a scripted provider, the real proxy in front of it, and an agent.

A script defines the provider and its agents, and calls `main`. An agent is a program in Python or JavaScript that reads
files until the provider stops requesting them, and prints the final text. Each row of the table is one session:

    way              whole, stream, or learned: whole, without `--window`, so that the first refusal states the window
    turns            requests that the provider accepted
    refused          prompts that did not fit
    broken           rules that requests broke; must be empty
    largest          tokens of the largest accepted prompt, as the provider estimates them
    folded           requests that contain a marker; must not be 0
    done             true if the client received the final text
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

DONE = "All files are read."
ADDRESS = re.compile(r"https?://127\.0\.0\.1:\d+")

# The beginning of every agent.
COMMON = '''
import json, sys
TASK = "Read every file that is listed, one after the other, and report the end."
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
def read_file(path: str) -> str:
    "Reads a file."
    return "".join(f"{path}: line {at} of the file has the value {at * 7919 % 1009}\\n" for at in range(150))
'''


class Turn(NamedTuple):
    """A response of a scripted provider: a text, and the arguments of its call (none at the end)."""

    number: int
    size: int
    text: str
    arguments: dict | None


class Provider:
    """What every scripted provider counts, and the file that it requests next."""

    def __init__(self, turns, window):
        self.turns, self.window = turns, window
        self.log = {"turns": 0, "refused": 0, "broken": [], "largest": 0, "folded": 0}

    def receive(self, size, broken, messages):
        """Counts a request with the rules that it breaks, and returns the turn; none if the prompt does not fit."""
        self.log["broken"] = sorted(broken | set(self.log["broken"]))
        if size > self.window:
            self.log["refused"] += 1
            return None
        self.log["turns"] += 1
        self.log["largest"] = max(self.log["largest"], size)
        self.log["folded"] += "[folded: " in json.dumps(messages)
        number = self.log["turns"]
        is_last = number > self.turns
        return Turn(number, size, DONE if is_last else f"Reading file {number}.", None if is_last else {"path": f"{number}.txt"})

    def row(self, name, way, is_done):
        """Returns the row of a session."""
        row = {"client": name, "way": way, **self.log, "done": is_done}
        row["ok"] = is_done and not row["broken"] and row["folded"] > 0
        return row


def report_unknown_path(method, path):
    """Prints a path that no client should send. The proxy asks plain servers for their window."""
    if method == "POST" and path != "/api/show":
        print(f"unknown path {path}", file=sys.stderr)


def json_response(body, status=200):
    """Returns the status, the content type and the body of a response."""
    return status, "application/json", json.dumps(body).encode()


def event_stream(events):
    """Returns the same for a stream of events; those that are not texts are written as JSON."""
    texts = (it if isinstance(it, str) else f"data: {json.dumps(it)}" for it in events)
    return 200, "text/event-stream", "".join(f"{it}\n\n" for it in texts).encode()


@contextmanager
def serve(answer, headers_of_errors=()):
    """Serves a provider, and yields its URL.

    `answer` receives the method, the path, the headers and the body of a request, and returns the status, the content type
    and the body of the response. Responses with status 400 get `headers_of_errors`.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def reply(self):
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, kind, body = answer(self.command, self.path, self.headers, data)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers_of_errors if status == 400 else ():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = reply

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()


def environment_without(*prefixes):
    """Returns the environment without the variables that begin with these prefixes."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("FOLDLINE_", *prefixes))}


@contextmanager
def proxy(foldline, upstream, *arguments, environment, settings=None):
    """Starts the proxy in a temporary folder, and yields its URL and the folder. It has one upstream, or a settings file."""
    with tempfile.TemporaryDirectory() as folder:
        command = [foldline, "serve", "--listen", "127.0.0.1:0", "--archive", f"{folder}/archive.db"]
        if settings:
            with open(f"{folder}/proxy.toml", "w") as file:
                file.write(settings)
        command += ["--settings", f"{folder}/proxy.toml"] if settings else ["--upstream", upstream]
        process = subprocess.Popen(
            [*command, *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        lines, found, addresses = [], threading.Event(), []

        def read(stream):
            for line in stream:
                lines.append(line)
                addresses.extend(ADDRESS.findall(line.replace(upstream, "")))
                if addresses:
                    found.set()

        for stream in (process.stdout, process.stderr):
            threading.Thread(target=read, args=(stream,), daemon=True).start()
        try:
            if not found.wait(60):
                sys.exit(f"the proxy did not start: {lines}")
            yield addresses[0], folder
        finally:
            process.terminate()
            process.wait(30)


def tls_arguments(folder):
    """Creates a certificate that signs itself, and returns its file and the arguments with which the proxy uses it."""
    certificate, key = f"{folder}/cert.pem", f"{folder}/key.pem"
    create = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    create += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate]
    subprocess.run(create, check=True, capture_output=True)
    return certificate, ["--tls-cert", certificate, "--tls-key", key]


def window_arguments(way, window):
    """Returns the arguments with which the proxy knows the window; none if it is to learn it."""
    return [] if way == "learned" else ["--window", str(window)]


def run_agent(runtime, program, arguments, environment, folder):
    """Runs an agent, and returns true if it printed the final text.

    The runtime of a program in JavaScript is the folder whose node_modules has the packages.
    """
    # The folder has no files that an agent could import by mistake.
    command = ["node", "--input-type=module", "-e", program, runtime] if program.startswith("// ") else [runtime, "-c", program]
    agent = [*command, *map(str, arguments)]
    ended = subprocess.run(agent, capture_output=True, text=True, timeout=600, env=environment, cwd=folder)
    is_done = ended.stdout.strip().endswith(DONE)
    if not is_done:
        print(ended.stderr[-2_000:], file=sys.stderr)
    return is_done


def main(agents, run, ways=("whole", "stream")):
    """Runs every agent in all ways, prints a row for each session, and exits with an error if one is not ok.

    The arguments are the runtime of the agents, the proxy, the number of turns, the window, and the names of the agents to
    run if not all are to.
    """
    # Agents run in another folder; a name without a folder is searched in PATH.
    runtime, foldline = (os.path.abspath(it) if os.sep in it else it for it in sys.argv[1:3])
    turns, window = (int(it) for it in (sys.argv[3:5] + ["40", "32768"][len(sys.argv[3:5]) :]))
    unknown = set(sys.argv[5:]) - set(agents)
    if unknown:
        sys.exit(f"no agents of these names: {', '.join(unknown)}; there are: {', '.join(agents)}")
    is_ok = True
    for name in sys.argv[5:] or agents:
        for way in ways:
            row = run(runtime, foldline, name, way, turns, window)
            print(json.dumps(row), flush=True)
            is_ok = is_ok and row["ok"]
    sys.exit(not is_ok)
