"""Measures how many requests 1, 2 and 4 replicas on one PostgreSQL server answer.

    cargo build --release -p foldline-cli --features postgres
    python evals/fleet/throughput.py target/release/foldline

Eight clients hold conversations of 40 turns over a window of 16,000 tokens, each request at the next replica, for 20
seconds. Replicas, server, provider and clients share the processors, so this shows what a replica costs, not how far
replicas scale on machines of their own.
"""

import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from outages import Cluster, Provider, free_port, request

CLIENTS = 8
SECONDS = 20


def start_replica(binary, archive, upstream, folder):
    port = free_port()
    arguments = ["serve", "--listen", f"127.0.0.1:{port}", "--window", "16000", "--upstream", upstream]
    environment = {**os.environ, "FOLDLINE_ARCHIVE": archive, "HOME": str(folder)}
    process = subprocess.Popen(
        [binary, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while True:
        try:
            if request(port, "GET", "/foldline/readyz")[0] == 200:
                return process, port
        except OSError:
            time.sleep(0.1)


def measure(ports, round_name):
    times, end = [], time.monotonic() + SECONDS

    def converse(client):
        conversation = 0
        while time.monotonic() < end:
            conversation += 1
            task = f"{round_name}, client {client}, task {conversation}: make the parser faster."
            messages = [{"role": "user", "content": task}]
            for turn in range(40):
                if time.monotonic() >= end:
                    return
                body = json.dumps({"model": "m", "messages": messages})
                begin = time.monotonic()
                status, _ = request(ports[turn % len(ports)], "POST", "/v1/chat/completions", body)
                assert status == 200, status
                times.append(time.monotonic() - begin)
                name = f"{round_name}_{client}_{conversation}_{turn}"
                call = {"id": f"call_{name}", "type": "function", "function": {"name": "read", "arguments": "{}"}}
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
                lines = [f"    let value_{name}_{line} = compute_{line}(input_{turn});\n" for line in range(60)]
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "".join(lines)})

    clients = [threading.Thread(target=converse, args=(client,)) for client in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    times.sort()
    half, most = times[len(times) // 2], times[int(len(times) * 0.99)]
    return f"{len(times) / SECONDS:.0f} requests/s, p50 {1000 * half:.0f} ms, p99 {1000 * most:.0f} ms"


def main():
    binary = os.path.abspath(sys.argv[1])
    folder = Path(tempfile.mkdtemp(prefix="foldline-throughput-"))
    folder.chmod(0o777)
    provider = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=provider.serve_forever, daemon=True).start()
    upstream = f"http://127.0.0.1:{provider.server_port}"
    server = Cluster(folder / "data")
    server.create()
    server.start()
    server.create_database()
    archive = f"postgres://foldline@127.0.0.1:{server.port}/foldline"
    replicas = []
    try:
        print(f"without a proxy: {measure([provider.server_port], 'none')}")
        for count in [1, 2, 4]:
            while len(replicas) < count:
                replicas.append(start_replica(binary, archive, upstream, folder))
            ports = [port for _, port in replicas]
            print(f"{count} replicas: {measure(ports, f'round{count}')}, load {os.getloadavg()[0]:.1f}")
        tables = "sum(pg_total_relation_size(oid))::bigint"
        print("bytes:", server.sql(
            f"SELECT relnamespace::regnamespace, {tables} FROM pg_class WHERE relnamespace = 'foldline'::regnamespace"
            " AND relkind = 'r' GROUP BY 1", "foldline"))
        print("originals, requests:", server.sql(
            "SET foldline.tenant = '*'; SELECT count(*), sum(length), (SELECT count(*) FROM foldline.request),"
            " (SELECT sum(octet_length(content)) FROM foldline.pack) FROM foldline.original", "foldline"))
        print(server.sql(
            "SELECT regexp_replace(relname, '_[0-9]$', '') AS name, sum(pg_total_relation_size(oid))::bigint"
            " FROM pg_class WHERE relnamespace = 'foldline'::regnamespace AND relkind = 'r' GROUP BY 1 ORDER BY 2 DESC",
            "foldline"))
    finally:
        for process, _ in replicas:
            process.terminate()
            process.wait()
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
