"""A session sends the bytes that the same loop in Rust sends: the command `foldline pipe`."""

import random

import pytest

from agents_of_tests import FORMATS, conversation, round_of, model_text, source, tools_of, user
from pipe_of_tests import compare

#: Files that the agent of `mixed_conversation` reads again and again.
FILES = 12


def mixed_conversation(format, rounds, seed):
    """Yields rounds of several tools: files that are read again, logs with failures, edits, and text in other scripts."""
    numbers = random.Random(seed)
    yield [user(format, "Find out why the build is slow. \u00e4\u00f6\u00fc \U0001f600 \\ \"quoted\" \t\u0001")]
    for at in range(1, rounds):
        kind, file, call = numbers.randrange(5), numbers.randrange(FILES), f"c{at}"
        path = f"src/file_{file}.rs"
        if kind <= 1:
            yield round_of(format, call, "read_file", {"path": path}, source(file, 20 + numbers.randrange(40)))
        elif kind == 2:
            log = [f"compiling unit {line} of {at}" for line in range(200)]
            log[numbers.randrange(200)] = f"error[E{at}]: no such field \u201cvalue_{at}\u201d"
            yield round_of(format, call, "run", {"command": "make test"}, "\n".join(log))
        elif kind == 3:
            change = {"path": path, "old": source(file, 6), "new": source(file + at, 6)}
            yield round_of(format, call, "edit", change, "ok")
        else:
            found = "".join(f'{{"file": {file}, "line": {line}, "text": "\u6298\u53e0 {at}"}}\n' for line in range(60))
            yield round_of(format, call, "search", {"words": f"value_{file}"}, found)
        if at % 25 == 0:
            yield [model_text(format, f"That was step {at}."), user(format, "Go on, and keep the tests green.")]


@pytest.mark.parametrize("format", FORMATS)
def test_session_sends_the_bytes_of_the_same_loop_in_rust(format, command):
    options = {"format": format, "model": FORMATS[format], "budget": 8_000}
    count, creases, broken = compare(command, mixed_conversation(format, 120, seed=7), **options)
    assert count > 120 and creases > 2 and broken is None


@pytest.mark.parametrize("policy", ["none", "lossless", "balanced", "tight"])
def test_session_with_tools_sends_the_same_bytes_with_each_policy(policy, command):
    tools = tools_of("openai-chat")
    options = {"format": "openai-chat", "model": "gpt-4o", "budget": 8_000, "policy": policy, "tools": tools}
    count, _, broken = compare(command, conversation("openai-chat", 60), **options)
    assert count == 60 and broken is None
