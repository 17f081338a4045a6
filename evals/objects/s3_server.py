"""Runs a command with an S3-compatible server on the loopback interface.

    python -m venv env && env/bin/pip install 'moto[server]'
    cargo xtask postgres env/bin/python evals/objects/s3_server.py \\
        cargo nextest run -p foldline-archive --features objects,testing -E 'test(s3_conformance)'

Starts moto's server, creates the bucket `foldline` and puts the address into TEST_S3_ENDPOINT. Exits with the code
of the command, or with 1 and a message if moto is not installed.
"""

import logging
import os
import subprocess
import sys
import urllib.request

try:
    from moto.server import ThreadedMotoServer
except ImportError:
    sys.exit("moto is not installed, so nothing was tested: pip install 'moto[server]'")

if len(sys.argv) < 2:
    sys.exit("usage: s3_server.py COMMAND ..")
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
try:
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/foldline", method="PUT"))
    code = subprocess.run(sys.argv[1:], env={**os.environ, "TEST_S3_ENDPOINT": endpoint}).returncode
finally:
    server.stop()
sys.exit(code)
