"""Every block of Python in a README is in a function of a test, line by line in the same order."""

import ast
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
READMES = [HERE.parent / "README.md", HERE.parents[2] / "README.md"]


def lines_of(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def functions_of_tests():
    """Returns the lines of each function of a test."""
    for file in HERE.glob("test_*.py"):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield lines_of(ast.get_source_segment(text, node))


def is_in_order(block, lines):
    rest = iter(lines)
    return all(line in rest for line in block)


@pytest.mark.parametrize("readme", READMES, ids=["package", "repository"])
def test_every_block_of_the_readme_is_tested(readme):
    blocks = [lines_of(block) for block in re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)]
    tests = list(functions_of_tests())
    assert blocks and [block for block in blocks if not any(is_in_order(block, lines) for lines in tests)] == []


def test_block_in_another_order_is_not_found():
    assert is_in_order(["a", "c"], ["a", "b", "c"])
    assert not is_in_order(["c", "a"], ["a", "b", "c"])
