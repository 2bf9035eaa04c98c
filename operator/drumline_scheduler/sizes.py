"""Find the largest size of an elastic gang that fits, in few tries.

A gang that fits with some pods also fits with fewer: its last pods, or whole slices of them, can be
left out. The same is true of quota and of what other gangs are entitled to. So the sizes are
bisected instead of tried one by one: 15 tries for 10,000 sizes. Pure: no I/O, no clock.

Example: sizes 1 to 8, and 5 slots are free. The tries are 8, 1, 4, 6 and 5; the first 5 sizes fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from drumline_scheduler.work import spend

MOST_SIZES: Final = 64
"""Sizes that are looked at one by one, where a smaller size may be worse than a larger one."""


def fitting(sizes: Sequence[int], *, fits: Callable[[int], bool]) -> Sequence[int]:
    """Return the sizes that fit: all up to the largest that does. O(log sizes) tries.

    Args:
        sizes: ascending.
        fits: true up to some size and false above it.
    """
    low, high = 0, len(sizes)
    # Mostly the largest size fits. If it does not, there is often no room at all.
    ends = iter((high - 1, 0))
    while low < high:
        spend(1)
        middle = next(ends, (low + high) // 2)
        if fits(sizes[middle]):
            low = middle + 1
        else:
            high = middle
    return sizes[:low]


def sampled(sizes: Sequence[int]) -> Sequence[int]:
    """Return at most `MOST_SIZES` of some sizes, the largest and the smallest among them.

    The larger half are the largest sizes; the others are evenly spaced.
    """
    if len(sizes) <= MOST_SIZES:
        return sizes
    half = MOST_SIZES // 2
    rest = sizes[:-half]
    return [*(rest[i * (len(rest) - 1) // (half - 1)] for i in range(half)), *sizes[-half:]]
