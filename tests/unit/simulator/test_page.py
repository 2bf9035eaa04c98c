"""The output that docs/simulation.md shows is that of the command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drumline_cli import program

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "simulation"


@pytest.mark.extended  # a minute of processor time
def test_the_page_shows_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "simulation.md").read_text()
    (shown,) = re.findall(r"^```text\n(2000 jobs.*?)\n```$", page, re.MULTILINE | re.DOTALL)
    files = (EXAMPLES / "cluster.yaml", EXAMPLES / "trace.csv")
    assert program.main(["simulate", *map(str, files)]) == 0
    assert capsys.readouterr().out.rstrip() == shown
