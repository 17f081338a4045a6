"""An engine for `foldline replay` that changes nothing and writes down the sessions it receives, as chat messages.

    foldline replay SESSIONS --baselines none --engine "collect=python3 evals/agreement/collect.py sessions.jsonl"

One line for each session: the model, the tools, the messages, and the number of messages of each recorded request. Works
with every log format that `foldline replay` reads. The file is as private as the sessions.
"""

import json
import os
import sys


def main(path):
    session = None

    def write():
        # Several processes may append: one line is one write.
        if session and len(session["requests"]) > 1:
            line = (json.dumps(session) + "\n").encode()
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)

    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "open":
            write()
            session = {"model": request.get("model"), "tools": request.get("tools") or [], "messages": [], "requests": []}
            sent = 0
        elif request["op"] == "push":
            session["messages"].extend(request["messages"])
        elif request["op"] == "request":
            messages = session["messages"]
            session["requests"].append(len(messages))
            changed = [{"at": at, "message": messages[at]} for at in range(sent, len(messages))]
            sent = len(messages)
            print(json.dumps({"ok": True, "creased": False, "set": changed, "len": sent}), flush=True)
        else:
            print(json.dumps({"ok": False, "error": {"kind": "unknown", "message": "stores no originals"}}), flush=True)
    write()


if __name__ == "__main__":
    main(sys.argv[1])
