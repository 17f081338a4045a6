"""Fixtures of all tests."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from scripted_provider import ScriptedProvider  # noqa: E402


@pytest.fixture(scope="session")
def command():
    """The command `foldline`: the one of the build, or an installed one."""
    found = os.environ.get("COMMAND_OF_TESTS") or shutil.which("foldline")
    if found is None:
        pytest.skip("needs the command: set COMMAND_OF_TESTS")
    return found


@pytest.fixture
def provider():
    """A scripted provider on loopback."""
    provider = ScriptedProvider()
    yield provider
    provider.close()


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    """Keys that clients demand; nothing leaves the machine."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "not-a-key")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
