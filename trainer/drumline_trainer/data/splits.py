"""Splits of a data set, as names of its files and its card (README.md) tell them apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile
from typing import Final

TRAINING: Final = "training"
_WORDS: Final = {
    TRAINING: ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""The words that `datasets` knows, by split."""
_IN_NAMES: Final = {
    split: re.compile(
        rf"(?:^|[-._ 0-9/])(?:{'|'.join(words)})(?:[-._ 0-9/]|$)", flags=re.IGNORECASE
    )
    for split, words in _WORDS.items()
}


def split_in(path: str) -> str | None:
    """Return the split that a part of a path tells, such as `validation` for `data/val-00.json`."""
    return next((split for split, form in _IN_NAMES.items() if form.search(path)), None)


def split_named(name: str) -> str | None:
    """Return the split that a whole name is a word for, such as `validation` for `Val`."""
    return next((split for split, words in _WORDS.items() if name.lower() in words), None)


_CARD_KEYS: Final = ("config_name", "data_files", "split", "path")


def parts_of_card(card: str) -> dict[str, list[str]]:
    """Return the patterns of files that a README.md lists, by configuration and split.

    configs:
    - config_name: main
      data_files:
      - split: test
        path: held-out.jsonl          {"main/test": ["held-out.jsonl"]}
    """
    patterns: dict[str, list[str]] = {}
    config, split, listed = "default", "train", False
    for line in _configs_in(card.splitlines()):
        word = line.strip().removeprefix("- ").removeprefix("- ").strip()
        key, _, value = word.partition(":")
        key, value = (key, value) if key in _CARD_KEYS else ("", word)
        value = value.partition(" #")[0].strip().strip("\"'")
        if key == "config_name":
            config, split, listed = value, "train", False
        elif key == "split":
            split, listed = value, False
        elif value and (listed or key):
            patterns.setdefault(f"{config}/{split}", []).append(value)
        listed = listed or key in ("data_files", "path")
    return patterns


def _configs_in(lines: list[str]) -> Iterator[str]:
    """Yield the lines of `configs` in the settings at the begin of a README.md."""
    inside = False
    if lines and lines[0].rstrip() == "---":
        for line in takewhile(lambda line: line.rstrip() != "---", lines[1:]):
            if line[:1] not in (" ", "-", "#", ""):
                inside = line.startswith("configs:")
            elif inside:
                yield line
