"""Find the newest complete checkpoint in a folder whose names contain the step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable


def newest_whole(
    folder: Path, pattern: str, *, is_whole: Callable[[Path], bool]
) -> tuple[int, Path] | None:
    """Return step and path of the newest complete entry with such a name, or None.

    Args:
        folder: folder, which need not exist.
        pattern: pattern of the whole name. Its first group is the step.
        is_whole: returns False for a checkpoint whose rank died while writing.
    """
    entries = list(folder.iterdir()) if folder.is_dir() else []
    matches = ((re.fullmatch(pattern, entry.name), entry) for entry in entries)
    steps = sorted(((int(match[1]), entry) for match, entry in matches if match), reverse=True)
    return next(((step, entry) for step, entry in steps if is_whole(entry)), None)
