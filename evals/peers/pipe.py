"""The lines of `foldline pipe`, for engines written in Python.

An adapter gives a function that renders the messages of one conversation before a request; this module
reads the lines, keeps the messages, and answers with what changed since the last rendering. The adapter
decides what it keeps between requests: `serve` makes a fresh renderer for each conversation.
"""

import json
import sys
import traceback


def serve(make):
    """Answers until standard input ends. `make(setup)` gives a renderer: messages in, messages out."""
    # Libraries like to greet on standard output, which is ours to answer on.
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(**fields):
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    messages, sent, render = [], [], None
    for line in sys.stdin:
        ask = json.loads(line)
        if ask["op"] == "open":
            messages, sent, render = [], [], make(ask)
        elif ask["op"] == "push":
            messages.extend(ask["messages"])
        elif ask["op"] == "request":
            try:
                now = render([dict(message) for message in messages])
            except Exception as fault:
                traceback.print_exc()
                answer(ok=False, error={"kind": "failed", "message": repr(fault)[:500]})
                continue
            changed = [
                {"at": at, "message": message}
                for at, message in enumerate(now)
                if at >= len(sent) or sent[at] != message
            ]
            creased = len(now) < len(sent) or any(it["at"] < len(sent) for it in changed)
            sent = now
            answer(ok=True, creased=creased, set=changed, len=len(now))
        else:
            answer(ok=False, error={"kind": "unknown", "message": "this engine keeps no originals"})


def with_contents(messages, contents):
    """The messages with other contents. What a package's own message type has no room for (reasoning, the
    spelling of arguments) stays as it was, so that no package is blamed for what its type leaves out."""
    return [
        message if content is None or content == message.get("content") else {**message, "content": content}
        for message, content in zip(messages, contents, strict=True)
    ]


def with_json_arguments(messages):
    """The messages, for packages that parse the arguments of calls: what is no JSON object is put into one. Give
    back the messages that came, not these."""

    def call(it):
        function = it["function"]
        try:
            readable = isinstance(json.loads(function["arguments"]), dict)
        except ValueError:
            readable = False
        if readable:
            return it
        return {**it, "function": {**function, "arguments": json.dumps({"input": function["arguments"]})}}

    return [
        {**message, "tool_calls": [call(it) for it in message["tool_calls"]]} if message.get("tool_calls") else message
        for message in messages
    ]
