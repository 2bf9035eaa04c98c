"""Withhold free capacity of the current view that is kept for nominated gangs.

A nominated gang gets its nodes once the evicted gangs have left. Until then a node may be partly
free, and a gang that started there could take capacity that the nominated gang needs. So on each
node the difference between the free capacity now and later is withheld. It is taken out of `free`
and remembered, and the other free capacity of the node stays usable.

Example, GPUs of one node: 6 are free, and the projected view says that 2 will be free later. Then 4
are withheld and `free` shows 2.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from operator import add, le, sub

from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.undo import Undo


class WithheldCapacity:
    """The capacity that is withheld in one pool.

    Args:
        free: free amounts of the view by ordinal; changed in place.
        log: log of the view; each ordinal that changes is appended.
    """

    def __init__(self, *, free: list[Vector], log: list[int]) -> None:
        self._free = free
        self._log = log
        self.limit: Sequence[Vector] | None = None
        """Most free capacity that may be used, by ordinal. None: no limit."""
        self.amounts: dict[int, Vector] = {}
        """Withheld amounts, by ordinal."""

    def update(self, ordinals: Iterable[int]) -> None:
        """Withhold on these nodes exactly the free capacity above the limit."""
        limit, free_amounts = self.limit, self._free
        if limit is None:
            return
        for ordinal in ordinals:
            # Start from what would be free if nothing were withheld.
            before = self.amounts.pop(ordinal, None)
            free = free_amounts[ordinal]
            if before:
                free = tuple(map(add, free, before))
            then = limit[ordinal]
            # Mostly as much is free later. The comparison in C is cheap.
            if not all(map(le, free, then)):
                excess = tuple([max(0, more) for more in map(sub, free, then)])
                self.amounts[ordinal] = excess
                free = tuple(map(sub, free, excess))
            if free != free_amounts[ordinal]:
                free_amounts[ordinal] = free
                self._log.append(ordinal)

    def among(self, ordinals: Iterable[int]) -> list[int]:
        """Return the ordinals on which something is withheld."""
        return [ordinal for ordinal in ordinals if ordinal in self.amounts]

    def release(self, ordinals: Sequence[int]) -> Undo:
        """Stop withholding on these nodes. Something is withheld on each of them.

        The undo withholds what has to be withheld then, because gangs may have left meanwhile.
        """
        for ordinal in ordinals:
            amounts = self.amounts.pop(ordinal)
            self._free[ordinal] = tuple(map(add, self._free[ordinal], amounts))
        self._log.extend(ordinals)
        return partial(self.update, ordinals)

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """Restore all free and withheld amounts after the context. O(nodes) if there is a limit.

        A release of a gang that leaves withholds what nominated gangs need at that moment. So undos
        inside the context, in whatever order, need not end with what was withheld before.
        """
        if self.limit is None:
            yield
            return
        free, amounts = list(self._free), dict(self.amounts)
        try:
            yield
        finally:
            changed = [i for i, before in enumerate(free) if before != self._free[i]]
            for ordinal in changed:
                self._free[ordinal] = free[ordinal]
            self._log.extend(changed)
            self.amounts = amounts

    def clear(self) -> None:
        """Forget the limit and the withheld amounts. `free` is not changed."""
        self.limit, self.amounts = None, {}
