"""The same conversation through a session and through the command `foldline pipe`, compared.

As a script it compares recorded conversations in chat messages, one JSON object per line:
python pipe_of_tests.py PATH_OF_FOLDLINE 32000 < conversations.jsonl
"""

import json
import subprocess
import sys

import foldline


class LawBroken(Exception):
    """The recorded conversation breaks a law of its API: the command refuses it, a session does not check it."""


class Pipe:
    """A conversation in another process, in Rust."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen([command, "pipe"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.options, self.messages = options, []
        self.send({"op": "open", "format": "openai-chat", **options})

    def send(self, line):
        self.process.stdin.write(json.dumps(line, ensure_ascii=False) + "\n")
        self.process.stdin.flush()

    def request(self):
        """Returns the messages of a rendering; none if they cannot fit."""
        self.send({"op": "request"})
        while True:
            answer = json.loads(self.process.stdout.readline())
            if not answer["ok"]:
                if answer["error"]["kind"] == "law_broken":
                    raise LawBroken(answer["error"]["law"])
                assert answer["error"]["kind"] == "cannot_fit", answer
                return None
            if "len" in answer:
                break
        for change in answer["set"]:
            self.messages[change["at"] :] = [change["message"]]
        return self.messages[: answer["len"]]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


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


def compare(command, messages, budget):
    """Returns the number of requests, and the law at which the comparison ended, if one was broken.

    Every request has the same bytes on both sides.
    """
    session = foldline.FoldSession(model="gpt-4o", budget=budget)
    pipe, count, broken = Pipe(command, model="gpt-4o", budget=budget), 0, None
    for pending in requests_of(messages):
        session.push(*pending)
        pipe.send({"op": "push", "messages": pending})
        try:
            ours = session.request().messages
        except foldline.CannotFit:
            ours = None
        try:
            theirs = pipe.request()
        except LawBroken as law:
            broken = str(law)
            break
        assert json.dumps(ours) == json.dumps(theirs)
        count += 1
    pipe.close()
    return count, broken


if __name__ == "__main__":
    sessions, requests, broken = 0, 0, []
    for line in sys.stdin:
        count, law = compare(sys.argv[1], json.loads(line)["messages"], int(sys.argv[2]))
        sessions, requests = sessions + 1, requests + count
        broken += [law] if law else []
    print(f"{sessions} conversations, {requests} requests: the same bytes")
    print(f"{len(broken)} of them break a law and were compared up to there: {sorted(set(broken))}")
