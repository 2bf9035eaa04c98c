"""The distinct vectors of a list by node, so that each one is examined once.

Every pod shape counts what fits on each node, and most nodes of a pool are in one of few states.
The log of the view that the list belongs to keeps the grouping up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from drumline_scheduler.placement.allocations import Vector

MOST: Final = 1 << 62
"""Bound for amounts, so that they fit into 64 bits."""


class DistinctCapacities:
    """The distinct vectors of a list, and the vector of each node.

    Args:
        amounts: vectors by ordinal.
        log: ordinals of vectors that changed.
    """

    def __init__(self, *, amounts: Sequence[Vector], log: Sequence[int] = ()) -> None:
        self._amounts = amounts
        self._log = log
        self._read = len(log)
        self._place: dict[Vector, int] = {}
        self.distinct: list[Vector] = []
        self._table = np.zeros((0, 0), dtype=np.int64)
        self.places = np.array([self._sort(amount) for amount in amounts], dtype=np.int64)
        """Index into `distinct`, by ordinal."""

    def replaced(self, amounts: Sequence[Vector], *, ordinals: Iterable[int]) -> DistinctCapacities:
        """Return the grouping of amounts that differ from these at some ordinals only.

        O(distinct vectors + differences), beside one copy of an array.

        Args:
            amounts: vectors by ordinal. They do not change.
            ordinals: ordinals with another vector.
        """
        self.catch_up()
        other = DistinctCapacities(amounts=())
        other._amounts, other._place = amounts, dict(self._place)
        other.distinct, other._table = list(self.distinct), self.table
        other.places = self.places.copy()
        for ordinal in ordinals:
            other.places[ordinal] = other._sort(amounts[ordinal])
        return other

    def counts(self, ordinals: Sequence[int]) -> list[tuple[Vector, int]]:
        """Return the distinct vectors of some ordinals, each with their number."""
        numbers = np.bincount(self.places[ordinals], minlength=1) if len(ordinals) else ()
        return [(self.distinct[i], int(numbers[i])) for i in np.flatnonzero(numbers).tolist()]

    @property
    def table(self) -> npt.NDArray[np.int64]:
        """The distinct vectors as rows of an array."""
        rows, known = len(self.distinct), len(self._table)
        if rows > known:
            fresh = np.array([_bounded(vector) for vector in self.distinct[known:]], dtype=np.int64)
            self._table = np.concatenate((self._table, fresh)) if known else fresh
        return self._table

    def catch_up(self) -> None:
        """Read the changes since the last call."""
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
    if max(amount) <= MOST and min(amount) >= -MOST:
        return amount
    return tuple(max(-MOST, min(MOST, value)) for value in amount)
