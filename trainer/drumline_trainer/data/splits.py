"""Words by which the names of files and folders tell the splits of a data set apart."""

from __future__ import annotations

import re
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
