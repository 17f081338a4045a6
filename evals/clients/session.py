"""What the scripts for single clients share: a scripted provider, the real proxy in front of it, and an agent.

A script defines the provider and its agents, and calls `main`. An agent is a Python program that reads files until the
provider stops requesting them, and prints the final text.
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
def proxy(foldline, upstream, *arguments, environment):
    """Starts the proxy in a temporary folder, and yields its URL and the folder."""
    with tempfile.TemporaryDirectory() as folder:
        command = [foldline, "serve", "--listen", "127.0.0.1:0", "--upstream", upstream, "--archive", f"{folder}/archive.db"]
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


def run_agent(python, program, arguments, environment, folder):
    """Runs an agent, and returns true if it printed the final text."""
    # The folder has no files that an agent could import by mistake.
    agent = [python, "-c", program, *map(str, arguments)]
    ended = subprocess.run(agent, capture_output=True, text=True, timeout=600, env=environment, cwd=folder)
    is_done = ended.stdout.strip().endswith(DONE)
    if not is_done:
        print(ended.stderr[-2_000:], file=sys.stderr)
    return is_done


def main(agents, run):
    """Runs every agent both ways, prints a row for each session, and exits with an error if one is not ok."""
    python, foldline = sys.argv[1:3]
    turns, window = (int(it) for it in (sys.argv[3:5] + ["40", "32768"][len(sys.argv[3:5]) :]))
    rows = [run(python, foldline, name, way, turns, window) for name in agents for way in ("whole", "stream")]
    for row in rows:
        print(json.dumps(row))
    sys.exit(not all(row["ok"] for row in rows))
