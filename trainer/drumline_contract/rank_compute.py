"""Each rank's compute time of a step, relative to the ranks that have the same work; pure.

A point has one character per rank, `0` to `9` and then `a` to `z`. `5` is the median of the ranks
with the same work, and each step of a character is 5 % of the median. With more than 64 ranks,
neighbours share a character, that of their slowest. The text is CSV and tenant input, like a series
(`step_series`). Example: rank 3 of four slows down from 1.05 to 1.35 times the median.

    step,ranks,compute
    10,4,5556
    20,4,555c
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drumline_contract.step_series import integer_of, thinned

MAX_COMPUTE_POINTS: Final = 24
"""Maximum number of points of a whole run."""
RECENT_COMPUTE_POINTS: Final = 8
"""Maximum number of points of one attempt, in the agent's status."""
MAX_COMPUTE_CHARS: Final = 2048
SLOWER: Final = 1.15
"""From this ratio to the median on a rank counts as slow."""
MAX_ROWS: Final = 64
"""Characters of a point."""
_MAX_RANKS: Final = 1 << 20
_LEVELS: Final = string.digits + string.ascii_lowercase
_MEDIAN_LEVEL: Final = 5
_LEVELS_PER_MEDIAN: Final = 20
_UNKNOWN: Final = "-"
_HEAD: Final = "step,ranks,compute"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputePoint:
    """The compute times of all ranks about one step."""

    step: int
    """Finished optimizer steps."""
    ranks: int
    """Size of the gang at this step."""
    ratios: tuple[float | None, ...]
    """Compute time relative to the median, by row of `ranks_per_row` neighbours. The slowest rank
    of a row counts. None: not known."""


def ranks_per_row(ranks: int) -> int:
    """Return the number of neighbouring ranks per row, so that there are at most MAX_ROWS rows."""
    return max(-(-ranks // MAX_ROWS), 1)


def ranks_of_row(row: int, *, ranks: int) -> range:
    """Return the ranks of a row."""
    each = ranks_per_row(ranks)
    return range(row * each, min((row + 1) * each, ranks))


def point_of(ratios: Sequence[float | None], *, step: int) -> ComputePoint:
    """Build a point from the ratios by rank. Each row takes the ratio of its slowest rank."""
    each, rows = ranks_per_row(len(ratios)), range(0, len(ratios), ranks_per_row(len(ratios)))
    neighbours = ([r for r in ratios[first : first + each] if r is not None] for first in rows)
    # The slowest rank of a row matters, since a step waits for it.
    return ComputePoint(
        step=step,
        ranks=len(ratios),
        ratios=tuple(max(known, default=None) for known in neighbours),
    )


def encode(points: Sequence[ComputePoint]) -> str:
    """Encode points in at most MAX_COMPUTE_CHARS, dropping points if needed."""
    rows = [_HEAD, *map(_row, points)] if points else []
    text = "\n".join(rows)
    return text if len(text) <= MAX_COMPUTE_CHARS else encode(thinned(points, most=len(points) - 1))


def decode(text: str, *, most: int = MAX_COMPUTE_POINTS) -> tuple[ComputePoint, ...]:
    """Decode the well-formed points of a text, as long as their steps rise."""
    # Both the characters and the lines are bounded: a pod wrote the text.
    head, *rows = text[:MAX_COMPUTE_CHARS].split("\n", most + 1)[: most + 1]
    points: list[ComputePoint] = []
    for row in rows if head == _HEAD else ():
        point = _point(row.split(","))
        if point is not None and (not points or point.step > points[-1].step):
            points.append(point)
    return tuple(points)


def _row(point: ComputePoint) -> str:
    return f"{point.step},{point.ranks},{''.join(map(_character, point.ratios))}"


def _character(ratio: float | None) -> str:
    if ratio is None or not ratio >= 0:  # True for a NaN too
        return _UNKNOWN
    highest = len(_LEVELS) - 1
    # Bounded before it is rounded: infinity has no integer.
    level = _MEDIAN_LEVEL + (min(ratio, highest) - 1) * _LEVELS_PER_MEDIAN
    return _LEVELS[min(max(round(level), 0), highest)]


def _point(cells: Sequence[str]) -> ComputePoint | None:
    if len(cells) != 3:
        return None
    step, ranks, levels = integer_of(cells[0]), integer_of(cells[1]), cells[2]
    if step is None or ranks is None or not 0 < ranks <= _MAX_RANKS:
        return None
    # The length must fit the number of ranks, and every character must be a level.
    if len(levels) != -(-ranks // ranks_per_row(ranks)) or set(levels) - {*_LEVELS, _UNKNOWN}:
        return None
    return ComputePoint(step=step, ranks=ranks, ratios=tuple(map(_ratio, levels)))


def _ratio(level: str) -> float | None:
    if level == _UNKNOWN:
        return None
    above = _LEVELS.index(level) - _MEDIAN_LEVEL
    return (_LEVELS_PER_MEDIAN + above) / _LEVELS_PER_MEDIAN
