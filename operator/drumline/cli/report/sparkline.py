"""Figures as a line of block characters, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    """A character for each figure, from the lowest to the highest; the middle where all are equal.

    Example: 4.0, 3.0, 2.0 are `█▅▁`.
    """
    low, high = min(values), max(values)
    if high <= low:
        return _BLOCKS[len(_BLOCKS) // 2] * len(values)
    steps = len(_BLOCKS) - 1
    return "".join(_BLOCKS[round((value - low) / (high - low) * steps)] for value in values)
