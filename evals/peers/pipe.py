"""The protocol of `foldline pipe`, for engines written in Python.

An adapter provides a function that renders the messages of one conversation before a request; this module
reads the input lines, stores the messages, and answers with the changes since the last rendering. The adapter
decides which state it keeps between requests: `serve` creates a new renderer for each conversation.
"""

import json
import sys
import traceback


def serve(make):
    """Answers until standard input ends. `make(setup)` returns a renderer: messages in, messages out."""
    # Libraries may print to standard output, which is reserved for answers.
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(**fields):
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    messages, sent, render = [], [], None
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "open":
            messages, sent, render = [], [], make(request)
        elif request["op"] == "push":
            messages.extend(request["messages"])
        elif request["op"] == "request":
            try:
                now = render([dict(message) for message in messages])
            except Exception as error:
                traceback.print_exc()
                answer(ok=False, error={"kind": "failed", "message": repr(error)[:500]})
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
            answer(ok=False, error={"kind": "unknown", "message": "this engine stores no originals"})


def with_contents(messages, contents):
    """Returns the messages with other contents. Fields that a package's message type cannot represent (reasoning, the
    exact JSON of arguments) are unchanged, so that no package is charged for them."""
    return [
        message if content is None or content == message.get("content") else {**message, "content": content}
        for message, content in zip(messages, contents, strict=True)
    ]


def with_json_arguments(messages):
    """Returns the messages for packages that parse the arguments of calls: arguments that are not a JSON object are
    wrapped in one. Return the original messages from a renderer, not these."""

    def call(it):
        function = it["function"]
        try:
            is_object = isinstance(json.loads(function["arguments"]), dict)
        except ValueError:
            is_object = False
        if is_object:
            return it
        return {**it, "function": {**function, "arguments": json.dumps({"input": function["arguments"]})}}

    return [
        {**message, "tool_calls": [call(it) for it in message["tool_calls"]]} if message.get("tool_calls") else message
        for message in messages
    ]
