"""Measures what requests of recorded conversations cost a replica and its PostgreSQL server.

    cargo build --release -p foldline-cli --features postgres
    python evals/fleet/capacity.py target/release/foldline RECORDS.jsonl.zst [EVERY]

Sends every request of each EVERY-th recorded conversation (OpenAI messages, one JSON object per line) with at least ten
calls through `foldline serve`, one request at a time, of eight conversations in turn: all at one replica, each at a
random one of four, and all at one replica that remembers one conversation, so that every request reads the ledger and folds
from the beginning. The provider is a local server that answers at once. Each run has a new database server. Prints per
request: bytes, processor time of the proxies and of PostgreSQL, commits and bytes of its log; and what the database and
the memory of the proxies have grown by. Processor time is that of the processes, so other programs on the machine change
it little.
Needs the programs of PostgreSQL and zstdcat; root runs them as the user `postgres`.
"""

import http.client
import http.server
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from outages import Cluster, free_port, request

MIN_CALLS = 10
# Conversations whose requests alternate.
CONVERSATIONS = 8
TICKS = os.sysconf("SC_CLK_TCK")
ANSWER = json.dumps(
    {
        "id": "r",
        "object": "chat.completion",
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
    }
).encode()


class Provider(http.server.BaseHTTPRequestHandler):
    """Answers at once."""

    protocol_version = "HTTP/1.1"
    # Otherwise the body of an answer waits 40 ms until the proxy acknowledges its head.
    disable_nagle_algorithm = True

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(ANSWER)))
        self.end_headers()
        self.wfile.write(ANSWER)

    def log_message(self, *_):
        pass


def read_records(path, every):
    with subprocess.Popen(["zstdcat", path], stdout=subprocess.PIPE) as process:
        for number, line in enumerate(process.stdout):
            if number % every == 0:
                messages = json.loads(line)["messages"]
                if sum(message["role"] == "assistant" for message in messages) >= MIN_CALLS:
                    yield messages


def bodies(messages):
    """Yields the body of each request of a conversation."""
    parts = [json.dumps(message) for message in messages]
    for at, message in enumerate(messages):
        if at > 0 and message["role"] == "assistant":
            yield '{"model":"gpt-4o","messages":[' + ",".join(parts[:at]) + "]}"


def cpu_seconds(process):
    """Returns the processor time of a process and of its children, also of those that have ended."""
    total = 0
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(") ")[2].split()
            except OSError:
                continue
            if int(folder.name) == process:
                total += sum(int(field) for field in fields[11:15])
            elif int(fields[1]) == process:
                total += sum(int(field) for field in fields[11:13])
    return total / TICKS


def resident_bytes(process):
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024


def fit(rows):
    """Fits seconds = a * requests + b * megabytes over groups of conversations, by least squares."""
    nn = sum(n * n for n, _, _ in rows)
    nm = sum(n * m for n, m, _ in rows)
    mm = sum(m * m for _, m, _ in rows)
    ns = sum(n * s for n, _, s in rows)
    ms = sum(m * s for _, m, s in rows)
    determinant = nn * mm - nm * nm
    return (ns * mm - ms * nm) / determinant, (ms * nn - ns * nm) / determinant


class Replica:
    def __init__(self, binary, archive, upstream, folder, options):
        self.port = free_port()
        arguments = ["serve", "--listen", f"127.0.0.1:{self.port}", "--upstream", upstream, *options]
        environment = {**os.environ, "FOLDLINE_ARCHIVE": archive, "HOME": str(folder)}
        log = open(folder / f"log-{self.port}", "w")
        self.process = subprocess.Popen([binary, *arguments], env=environment, stdout=log, stderr=log)
        begin = time.monotonic()
        while True:
            try:
                if request(self.port, "GET", "/foldline/readyz")[0] == 200:
                    break
            except OSError:
                pass
            if time.monotonic() - begin > 30:
                self.process.terminate()
                sys.exit("a replica is not ready")
            time.sleep(0.1)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def send(self, body):
        self.connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
        response = self.connection.getresponse()
        response.read()
        return response.status

    def metric(self, name):
        lines = request(self.port, "GET", "/foldline/metrics")[1].splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))

    def stop(self):
        self.process.terminate()
        self.process.wait()


TABLES = """SELECT regexp_replace(c.relname, '_[0-9]$', '') AS name,
        sum(pg_relation_size(c.oid) + coalesce(pg_relation_size(nullif(c.reltoastrelid, 0)), 0))::bigint,
        sum(pg_total_relation_size(c.oid))::bigint
    FROM pg_class AS c WHERE c.relnamespace = 'foldline'::regnamespace AND c.relkind = 'r'
    GROUP BY 1 ORDER BY 3 DESC LIMIT 9"""


def turns(records):
    """Yields the bodies of all requests by groups of conversations, whose requests alternate."""
    for first in range(0, len(records), CONVERSATIONS):
        group = [bodies(messages) for messages in records[first : first + CONVERSATIONS]]
        yield (body for turn in itertools.zip_longest(*group) for body in turn if body is not None)


def measure(binary, name, count, options, records, upstream):
    folder = Path(tempfile.mkdtemp(prefix="foldline-capacity-"))
    folder.chmod(0o777)
    server = Cluster(folder / "data", "-c shared_buffers=512MB -c max_wal_size=4GB")
    replicas = []
    try:
        server.create()
        server.start()
        server.create_database()
        archive = f"postgres://foldline@127.0.0.1:{server.port}/foldline"
        replicas = [Replica(binary, archive, upstream, folder, options) for _ in range(count)]
        postmaster = int((folder / "data" / "postmaster.pid").read_text().split()[0])
        pids = [replica.process.pid for replica in replicas]
        proxy_cpu = lambda: sum(cpu_seconds(pid) for pid in pids)
        wal = lambda: int(server.sql("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint"))
        commits = lambda: int(
            server.sql("SELECT xact_commit FROM pg_stat_database WHERE datname = 'foldline'").splitlines()[0]
        )
        size = lambda: int(server.sql("SELECT pg_database_size('foldline')"))
        before = (proxy_cpu(), cpu_seconds(postmaster), wal(), commits(), size())
        memory = sum(resident_bytes(pid) for pid in pids)
        rows, requests, sent, times, source = [], 0, 0, [], random.Random(1)
        for group in turns(records):
            start, number, megabytes = proxy_cpu(), 0, 0
            for number, body in enumerate(group, 1):
                begin = time.monotonic()
                status = source.choice(replicas).send(body)
                times.append(time.monotonic() - begin)
                assert status == 200, status
                megabytes += len(body) / 1e6
            rows.append((number, megabytes, proxy_cpu() - start))
            requests, sent = requests + number, sent + megabytes
        creases = sum(replica.metric("foldline_creases_total{") for replica in replicas)
        faults = {
            kind: sum(replica.metric(f'foldline_internal_errors_total{{kind="{kind}"') for replica in replicas)
            for kind in ["archive", "fold_refused", "cannot_fit", "panic"]
        }
        # The journal and the index are written in the background.
        time.sleep(5)
        grown = sum(resident_bytes(pid) for pid in pids) - memory
        after = (proxy_cpu(), cpu_seconds(postmaster), wal(), commits(), size())
        proxy, database, log, transactions, stored = (b - a for a, b in zip(before, after))
        per_request, per_megabyte = fit(rows)
        times.sort()
        print(f"{name}: {len(records)} conversations, {requests} requests of {1000 * sent / requests:.0f} KB on")
        print(f"  average, {creases:.0f} creases, faults: {faults}")
        print(f"  time of a request: p50 {1000 * times[requests // 2]:.1f} ms, p99 {1000 * times[requests * 99 // 100]:.1f} ms")
        print(
            f"  processor of a request: proxies {1000 * proxy / requests:.2f} ms"
            f" (fit: {1000 * per_request:.2f} ms and {1000 * per_megabyte:.2f} ms per MB),"
            f" PostgreSQL {1000 * database / requests:.2f} ms"
        )
        print(f"  commits of a request: {transactions / requests:.2f}, log {log / requests / 1000:.1f} KB")
        print(f"  database: {stored / requests / 1000:.2f} KB per request, memory of all proxies: {grown / 1e6:.0f} MB more")
        originals = "SET foldline.tenant = '*'; SELECT count(*), sum(length) FROM foldline.original"
        print("  originals, their bytes:", server.sql(originals, "foldline"))
        packs = "SET foldline.tenant = '*'; SELECT count(*), sum(octet_length(content)) FROM foldline.pack"
        print("  packs, their bytes:", server.sql(packs, "foldline"))
        for line in server.sql(TABLES, "foldline").splitlines():
            name, heap, total = line.split("|")
            print(f"    {name}: {int(heap) / 1e6:.2f} MB, with indexes {int(total) / 1e6:.2f} MB")
        sys.stdout.flush()
    finally:
        for replica in replicas:
            replica.stop()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    binary, path, *every = sys.argv[1:]
    records = list(read_records(path, int(every[0]) if every else 1))
    provider = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    upstream = f"http://127.0.0.1:{provider.server_port}"
    for name, count, options in [
        ("one replica", 1, []),
        ("four replicas", 4, []),
        ("no conversation remembered", 1, ["--max-sessions", "1"]),
    ]:
        measure(os.path.abspath(binary), name, count, options, records, upstream)


if __name__ == "__main__":
    main()
