"""The distinct vectors of a list by node, so that each distinct vector is looked at once.

Every pod shape asks each node what fits there, and most nodes of a pool are in one of few states.
The grouping is kept up to date by the log of the view that the list belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from drumline_scheduler.placement.allocations import Vector

MOST: Final = 1 << 62
"""Larger amounts are counted as this, so that they fit into 64 bits."""


class DistinctCapacities:
    """The distinct vectors of a list, and which of them each node has.

    Args:
        amounts: by ordinal.
        log: ordinals where they changed.
    """

    def __init__(self, *, amounts: Sequence[Vector], log: Sequence[int] = ()) -> None:
        self._amounts = amounts
        self._log = log
        self._read = len(log)
        self._place: dict[Vector, int] = {}
        self.distinct: list[Vector] = []
        self._table = np.zeros((0, 0), dtype=np.int64)
        self.places = np.array([self._sort(amount) for amount in amounts], dtype=np.int64)
        """By ordinal: where in `distinct` its amount stands."""

    @property
    def table(self) -> npt.NDArray[np.int64]:
        """The distinct vectors, a row each."""
        rows, known = len(self.distinct), len(self._table)
        if rows > known:
            fresh = np.array([_bounded(vector) for vector in self.distinct[known:]], dtype=np.int64)
            self._table = np.concatenate((self._table, fresh)) if known else fresh
        return self._table

    def catch_up(self) -> None:
        """Read what changed since the last look."""
        if self._read != len(self._log):
            for ordinal in set(self._log[self._read :]):
                self.places[ordinal] = self._sort(self._amounts[ordinal])
            self._read = len(self._log)

    def _sort(self, amount: Vector) -> int:
        place = self._place.get(amount)
        if place is None:
            place = self._place[amount] = len(self.distinct)
            self.distinct.append(amount)
        return place


def _bounded(amount: Vector) -> Vector:
    return tuple(max(-MOST, min(MOST, value)) for value in amount)
