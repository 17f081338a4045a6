"""Runs conversations through `foldline serve` while its PostgreSQL server fails.

    cargo build -p foldline-cli --features postgres
    python evals/fleet/outages.py target/debug/foldline [failover] [restart] [pause] [disk] [connections]

    failover     the primary is stopped at once and its synchronous standby is promoted
    restart      the server is stopped, which ends all connections, and started again five seconds later
    pause        all processes of the server are stopped by a signal for 30 seconds: connections stay open, nothing answers
    disk         the disk of the tables is full (a tmpfs, so this needs root; the log is on another disk)
    connections  other clients use all connections of the server

The provider is a local server that answers with the handles in the prompt. Every request must be answered, the outage
must be visible in the metrics and, unless the disk is full, in /foldline/readyz, folding must go on afterwards without a restart of foldline,
and all handles that a client has received must be restored. Prints a line for each; exits with 1 if one does not
hold. Needs the programs of PostgreSQL; root runs them as the user `postgres`.
"""

import glob
import http.client
import http.server
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PROGRAMS = Path(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1])
AS_SERVER = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}
CLIENTS = 3
# Longest time of a request: one wait of the archive, and the request itself.
MAX_SECONDS = 8


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Cluster:
    """A PostgreSQL server in a folder."""

    def __init__(self, folder, options=""):
        self.folder, self.options, self.port = Path(folder), options, free_port()

    def run(self, program, *arguments):
        command = [PROGRAMS / program, *arguments]
        subprocess.run(command, check=True, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **AS_SERVER)

    def create(self, *arguments):
        self.run("initdb", "-D", self.folder, "--auth=trust", "--username=admin", "--locale=C", "--no-sync", *arguments)

    def start(self):
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories= {self.options}"
        self.run("pg_ctl", "-D", self.folder, "start", "--wait", "-l", f"{self.folder}.log", "-o", options)

    def stop(self, mode="immediate"):
        self.run("pg_ctl", "-D", self.folder, "stop", "-m", mode)

    def processes(self):
        """Returns the process that starts the others, and the others."""
        first = subprocess.run(["head", "-1", self.folder / "postmaster.pid"], capture_output=True, text=True).stdout
        children = subprocess.run(["ps", "-o", "pid=", "--ppid", first.strip()], capture_output=True, text=True).stdout
        return [int(process) for process in [first, *children.split()]]

    def signal_all(self, number):
        """Sends a signal to all processes, the first one first: it starts no other meanwhile."""
        for process in self.processes():
            try:
                os.kill(process, number)
            except ProcessLookupError:
                pass

    def sql(self, text, database="postgres"):
        url = f"postgres://admin@127.0.0.1:{self.port}/{database}"
        return subprocess.run(["psql", url, "-Atqc", text], check=True, capture_output=True, text=True).stdout.strip()

    def create_database(self):
        self.sql("CREATE ROLE foldline LOGIN")
        self.sql("CREATE DATABASE foldline OWNER foldline")


class Provider(http.server.BaseHTTPRequestHandler):
    """Answers with the handles in the prompt."""

    protocol_version = "HTTP/1.1"
    # Otherwise the body of an answer waits 40 ms until the proxy acknowledges its head.
    disable_nagle_algorithm = True

    def do_POST(self):
        prompt = self.rfile.read(int(self.headers["content-length"])).decode()
        text = " ".join(sorted(set(re.findall(r"unfold ([0-9a-z]{12})\]", prompt))))
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"id": "r", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def request(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class Run:
    """A proxy on an archive, conversations, and what was seen of them."""

    def __init__(self, binary, archive, home):
        self.provider = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
        threading.Thread(target=self.provider.serve_forever, daemon=True).start()
        upstream = f"http://127.0.0.1:{self.provider.server_port}"
        self.port = free_port()
        arguments = ["serve", "--listen", f"127.0.0.1:{self.port}", "--window", "16000", "--upstream", upstream]
        environment = {**os.environ, "FOLDLINE_ARCHIVE": archive, "HOME": str(home)}
        self.log = open(Path(home) / "log", "w")
        self.proxy = subprocess.Popen([binary, *arguments], env=environment, stdout=self.log, stderr=self.log)
        self.requests, self.failed, self.slowest, self.handles, self.states = 0, [], 0.0, set(), set()
        self.turns, self.is_over, self.lock = 0, False, threading.Lock()
        self.wait_until_ready(30)
        self.threads = [
            threading.Thread(target=self.converse, args=(number,), daemon=True) for number in range(CLIENTS)
        ]
        self.threads.append(threading.Thread(target=self.watch, daemon=True))
        for thread in self.threads:
            thread.start()

    def wait_until_ready(self, seconds):
        begin = time.monotonic()
        while time.monotonic() - begin < seconds:
            try:
                if request(self.port, "GET", "/foldline/readyz")[0] == 200:
                    return time.monotonic() - begin
            except OSError:
                pass
            time.sleep(0.05)
        self.proxy.terminate()
        sys.exit("the proxy is not ready")

    def watch(self):
        while not self.is_over:
            self.states.add(request(self.port, "GET", "/foldline/readyz")[0])
            time.sleep(0.2)

    def converse(self, client):
        conversation = 0
        while not self.is_over:
            conversation += 1
            messages = [{"role": "user", "content": f"Client {client}, task {conversation}: make the parser faster."}]
            for turn in range(40):
                if self.is_over:
                    return
                begin = time.monotonic()
                status, answer = request(
                    self.port, "POST", "/v1/chat/completions", json.dumps({"model": "m", "messages": messages})
                )
                self.note(status, answer, time.monotonic() - begin)
                name = f"{client}_{conversation}_{turn}"
                call = {"id": f"call_{name}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
                lines = [f"    let value_{name}_{line} = compute_{line}(input_{turn});\n" for line in range(60)]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "".join(lines)})

    def note(self, status, answer, seconds):
        with self.lock:
            self.requests += 1
            self.slowest = max(self.slowest, seconds)
            if status != 200:
                self.failed.append((status, answer[:200]))
            else:
                self.handles.update(json.loads(answer)["choices"][0]["message"]["content"].split())

    def wait_for_requests(self, count):
        target, begin = self.requests + count, time.monotonic()
        while self.requests < target and time.monotonic() - begin < 120:
            time.sleep(0.05)

    def finish(self, name, recovery):
        """Stops the load, and reports."""
        self.is_over = True
        for thread in self.threads:
            thread.join()
        lost = [handle for handle in self.handles if request(self.port, "GET", f"/foldline/unfold/{handle}")[0] != 200]
        metrics = request(self.port, "GET", "/foldline/metrics")[1]
        errors = sum(float(line.split()[-1]) for line in metrics.splitlines() if "internal_errors_total{" in line)
        self.proxy.terminate()
        self.proxy.wait()
        self.provider.shutdown()
        print(
            f"{name}: {self.requests} requests, {len(self.failed)} failed, slowest {self.slowest:.1f} s, "
            f"{errors:.0f} faults counted, readiness {sorted(self.states)}, ready {recovery:.1f} s after the end, "
            f"{len(self.handles)} handles seen, {len(lost)} lost"
        )
        for failure in self.failed[:3] + lost[:3]:
            print(f"    {failure}")
        # With a full disk the server still answers, so readiness remains.
        is_visible = errors > 0 and (503 in self.states or name == "disk")
        return not self.failed and not lost and self.slowest < MAX_SECONDS and is_visible and len(self.handles) > 10

    def outage(self, begin, end, seconds=12):
        """Lets conversations run before, during and after an outage of at least this long."""
        self.wait_for_requests(60)
        begin()
        deadline = time.monotonic() + seconds
        self.wait_for_requests(60)
        time.sleep(max(0, deadline - time.monotonic()))
        end()
        recovery = self.wait_until_ready(60)
        before = len(self.handles)
        self.wait_for_requests(120)
        if len(self.handles) <= before:
            self.failed.append((0, "no new folds after the outage"))
        return recovery


def failover(binary, folder):
    primary = Cluster(folder / "primary")
    primary.create()
    primary.start()
    primary.create_database()
    standby = Cluster(folder / "standby")
    url = f"host=127.0.0.1 port={primary.port} user=admin"
    standby.run("pg_basebackup", "-D", standby.folder, "-d", url, "-R", "--checkpoint=fast")
    standby.start()
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
    primary.sql("SELECT pg_reload_conf()")
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    run = Run(binary, f"postgres://foldline@{hosts}/foldline?target_session_attrs=read-write", folder)
    try:
        promote = lambda: standby.run("pg_ctl", "-D", standby.folder, "promote", "--wait")
        return run.finish("failover", run.outage(primary.stop, promote))
    finally:
        standby.stop()


def restart(binary, folder):
    server = Cluster(folder / "data")
    server.create()
    server.start()
    server.create_database()
    try:
        run = Run(binary, f"postgres://foldline@127.0.0.1:{server.port}/foldline", folder)
        return run.finish("restart", run.outage(lambda: server.stop("fast"), server.start, 5))
    finally:
        server.stop()


def pause(binary, folder):
    server = Cluster(folder / "data")
    server.create()
    server.start()
    server.create_database()
    begin = lambda: server.signal_all(signal.SIGSTOP)
    end = lambda: server.signal_all(signal.SIGCONT)
    try:
        run = Run(binary, f"postgres://foldline@127.0.0.1:{server.port}/foldline", folder)
        return run.finish("pause", run.outage(begin, end, 30))
    finally:
        end()
        server.stop()


def disk(binary, folder):
    mount = folder / "disk"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m,mode=777", "tmpfs", mount], check=True)
    server = Cluster(mount / "data", "-c fsync=off -c max_wal_size=64MB")
    try:
        server.create(f"--waldir={folder / 'wal'}")
        server.start()
        server.create_database()
        run = Run(binary, f"postgres://foldline@127.0.0.1:{server.port}/foldline", folder)

        def fill():
            # Blocks of all sizes, so that nothing is left.
            for size in ["1M", "4k", "1"]:
                command = ["dd", "if=/dev/zero", f"of={mount / ('filler' + size)}", f"bs={size}"]
                subprocess.run(command, stderr=subprocess.DEVNULL)

        remove = lambda: [path.unlink() for path in mount.glob("filler*")]
        return run.finish("disk", run.outage(fill, remove))
    finally:
        server.stop()
        subprocess.run(["umount", mount], check=True)


def connections(binary, folder):
    server = Cluster(folder / "data", "-c max_connections=10 -c superuser_reserved_connections=3 -c fsync=off")
    server.create()
    server.start()
    server.create_database()
    run = Run(binary, f"postgres://foldline@127.0.0.1:{server.port}/foldline", folder)
    others = []

    def take_all():
        url = f"postgres://foldline@127.0.0.1:{server.port}/postgres"
        while len(others) < 7:
            server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'foldline'")
            others.append(subprocess.Popen(["psql", url, "-Atqc", "SELECT pg_sleep(300)"], stderr=subprocess.DEVNULL))
            time.sleep(0.3)
            others[:] = [other for other in others if other.poll() is None]

    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(300)'"
    try:
        return run.finish("connections", run.outage(take_all, lambda: server.sql(end)))
    finally:
        server.stop()


def main():
    binary, *names = sys.argv[1:]
    holds = True
    for scenario in [failover, restart, pause, disk, connections]:
        if names and scenario.__name__ not in names:
            continue
        folder = Path(tempfile.mkdtemp(prefix="foldline-outage-"))
        folder.chmod(0o777)
        try:
            holds = scenario(os.path.abspath(binary), folder) and holds
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
