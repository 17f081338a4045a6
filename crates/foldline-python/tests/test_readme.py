"""Every line of code in the README is a line of a test."""

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_every_line_of_the_readme_is_tested():
    tested = {line.strip() for file in HERE.glob("test_*.py") for line in file.read_text().splitlines()}
    blocks = re.findall(r"```python\n(.*?)```", (HERE.parent / "README.md").read_text(), re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines() if line.strip()]
    assert len(lines) > 15
    assert [line for line in lines if line not in tested] == []
