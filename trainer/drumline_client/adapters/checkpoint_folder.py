"""The newest whole checkpoint in a folder, where a step's number is part of each name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Callable


def newest_whole(
    folder: Path, pattern: str, *, is_whole: Callable[[Path], bool]
) -> tuple[int, Path] | None:
    """Step and path of the newest entry of such a name that is whole, or None.

    Args:
        folder: need not exist.
        pattern: of the whole name; its first group is the step.
        is_whole: tells a checkpoint from one that was being written when its rank died.
    """
    entries = list(folder.iterdir()) if folder.is_dir() else []
    matches = ((re.fullmatch(pattern, entry.name), entry) for entry in entries)
    steps = sorted(((int(match[1]), entry) for match, entry in matches if match), reverse=True)
    return next(((step, entry) for step, entry in steps if is_whole(entry)), None)
