"""Every output that a user page shows is one that a test compares with a golden file.

A block of the language `console` has commands after a prompt, and their output. `...` stands for
lines, or for the end of a line, that the page leaves out. Other blocks show no output: `sh` has
commands alone, `text` has layouts of folders and formulas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
BLOCK = re.compile(r"^ *```([a-z]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
PROMPT = re.compile(r"^(\w+-[\d.]+)?\$ ")
TEXTS = {
    "architecture.md": 1,  # the layers
    "archive.md": 1,  # objects of the archive
    "checkpoints.md": 2,  # folder and bucket
    "data.md": 1,  # folder of shards
    "monitoring.md": 1,  # PromQL
    "observing.md": 1,  # formula of MFU
    "pools.md": 1,  # a manifest of OpenShift
    "simulation.md": 1,  # compared in tests/unit/simulator/test_page.py
    "training.md": 1,  # a diagram
}
"""Blocks that are neither commands nor a language, by page. A new one must not show an output."""


def words(line: str) -> str:
    return " ".join(line.split())


GOLDEN = {
    words(line)
    for file in (ROOT / "tests").rglob("golden/*.txt")
    for line in file.read_text().splitlines()
}


def outputs(page: str) -> Iterator[str]:
    """The lines of output of a page's `console` blocks."""
    for language, body in BLOCK.findall(PAGES[page].read_text()):
        continues = False
        for line in body.splitlines() if language == "console" else ():
            if continues or PROMPT.match(line.strip()):
                continues = line.endswith("\\")
            elif words(line) not in {"", "..."}:
                yield words(line)


def is_golden(line: str) -> bool:
    if not line.endswith("..."):
        return line in GOLDEN
    return any(known.startswith(line.removesuffix("...").strip()) for known in GOLDEN)


@pytest.mark.parametrize("page", PAGES)
def test_every_output_is_printed_by_a_test(page: str) -> None:
    assert [line for line in outputs(page) if not is_golden(line)] == []


def test_no_other_block_shows_an_output() -> None:
    texts = {
        name: sum(language in {"", "text"} for language, _ in BLOCK.findall(page.read_text()))
        for name, page in PAGES.items()
    }
    assert {name: count for name, count in texts.items() if count} == TEXTS
    for name, page in PAGES.items():
        for language, body in BLOCK.findall(page.read_text()):
            assert language == "console" or not re.search(r"^\$ ", body, re.MULTILINE), name
