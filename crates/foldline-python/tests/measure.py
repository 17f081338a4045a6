"""Times the turns of a scripted agent and the memory of many sessions; not a test.

Run it with a release build: python measure.py turns 2000, python measure.py sessions 10000.
Compare with: cargo run --release -p foldline-embed --example turns -- 2000
"""

import json
import resource
import sys
import time

import foldline
from agents_of_tests import conversation, source


def turns(count):
    session = foldline.FoldSession(model="gpt-4o", budget=32_000)
    session.push({"role": "user", "content": "Make the parser faster."})
    quarters = [0.0] * 4
    for at in range(count):
        function = {"name": "read_file", "arguments": json.dumps({"path": f"src/file_{at}.rs"})}
        call = {"id": f"c{at}", "type": "function", "function": function}
        messages = [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{at}", "content": source(at, 40)},
        ]
        begin = time.perf_counter()
        session.push(*messages)
        session.request()
        quarters[at * 4 // count] += time.perf_counter() - begin
    for at, seconds in enumerate(quarters):
        print(f"quarter {at + 1}: {seconds * 4e6 / count:.0f} us a turn")


def sessions(count):
    rounds = list(conversation("openai-chat", 20))
    for at in range(count):
        session = foldline.FoldSession(model="gpt-4o", budget=4_000)
        for messages in rounds:
            session.push(*messages)
        session.request()
        if (at + 1) % (count // 5) == 0:
            print(f"{at + 1} sessions: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f} MB at most")


if __name__ == "__main__":
    {"turns": turns, "sessions": sessions}[sys.argv[1]](int(sys.argv[2]))
