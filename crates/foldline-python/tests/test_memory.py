"""Sessions that were dropped leave no memory behind."""

import gc
import sys

import pytest

import foldline
from agents_of_tests import conversation

SESSIONS = 2_000
MAX_GROWTH = 8_000_000


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4_096


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process on Linux")
def test_memory_of_2000_sessions_is_bounded():
    rounds = list(conversation("openai-chat", 6))

    def run(count):
        for _ in range(count):
            session = foldline.FoldSession(model="gpt-4o", budget=1_500)
            for messages in rounds:
                session.push(*messages)
            assert session.request().creased or session.request().tokens <= 1_500
        gc.collect()
        return resident_bytes()

    # Tables of tokens and of the allocator are filled by the first sessions.
    before = run(SESSIONS // 10)
    growth = run(SESSIONS) - before
    assert growth < MAX_GROWTH, f"{SESSIONS} sessions left {growth / 1e6:.1f} MB"
