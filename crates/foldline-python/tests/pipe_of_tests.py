"""The same conversation through a session and through the command `foldline pipe`, compared.

The messages of a request are compared as compact JSON (no spaces, no escapes that JSON does not need): the
bytes of a message in the answer of the command, and those of the message that the session returns.

As a script it compares recorded conversations in chat messages, one JSON object per line:
python pipe_of_tests.py PATH_OF_FOLDLINE 32000 < conversations.jsonl
"""

import json
import subprocess
import sys

import foldline
from foldline._options import to_json


class LawBroken(Exception):
    """The recorded conversation breaks a law of its API: the command refuses it, a session does not check it."""


class Pipe:
    """A conversation in another process, in Rust."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen([command, "pipe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.messages = []
        self.send({"op": "open", **options})

    def send(self, line):
        self.process.stdin.write(to_json(line).encode() + b"\n")
        self.process.stdin.flush()

    def request(self):
        """Returns the messages of a rendering, each as the bytes of the answer; none if they cannot fit."""
        self.send({"op": "request"})
        while True:
            line = self.process.stdout.readline().decode()
            answer = json.loads(line)
            if not answer["ok"]:
                if answer["error"]["kind"] == "law_broken":
                    raise LawBroken(answer["error"]["law"])
                assert answer["error"]["kind"] == "cannot_fit", answer
                return None
            if "len" in answer:
                break
        end = 0
        for change in answer["set"]:
            begin = line.index('"message":', end) + len('"message":')
            message, end = json.JSONDecoder().raw_decode(line, begin)
            assert message == change["message"]
            self.messages[change["at"] :] = [line[begin:end].encode()]
        return self.messages[: answer["len"]]

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def requests_of(messages):
    """Yields the messages before each request: before each answer of the model, and at the end."""
    pending = []
    for at, message in enumerate(messages):
        opens = message["role"] == "assistant" and (at == 0 or messages[at - 1]["role"] != "assistant")
        if opens and pending:
            yield pending
            pending = []
        pending = [*pending, message]
    yield pending


def compare(command, requests, **options):
    """Returns the number of requests, that of their creases, and the law at which the comparison ended, if one was broken.

    Every request has the same bytes on both sides.
    """
    session, pipe = foldline.FoldSession(**options), Pipe(command, **options)
    count, creases, broken = 0, 0, None
    for pending in requests:
        session.push(*pending)
        pipe.send({"op": "push", "messages": list(pending)})
        try:
            rendering = session.request()
            creases += rendering.creased
            ours = [to_json(message).encode() for message in rendering.messages]
        except foldline.CannotFit:
            ours = None
        try:
            theirs = pipe.request()
        except LawBroken as law:
            broken = str(law)
            break
        assert ours == theirs
        count += 1
    pipe.close()
    return count, creases, broken


if __name__ == "__main__":
    sessions, requests, broken = 0, 0, []
    for line in sys.stdin:
        options = {"format": "openai-chat", "model": "gpt-4o", "budget": int(sys.argv[2])}
        count, _, law = compare(sys.argv[1], requests_of(json.loads(line)["messages"]), **options)
        sessions, requests = sessions + 1, requests + count
        broken += [law] if law else []
    print(f"{sessions} conversations, {requests} requests: the same bytes")
    print(f"{len(broken)} of them break a law and were compared up to there: {sorted(set(broken))}")
