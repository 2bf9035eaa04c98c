"""Free capacity of the current view that is kept for nominated gangs.

A nominated gang gets its nodes once the evicted gangs have left. Until then a node may be partly
free, and a gang that started there could take what the nominated gang needs. So on each node the
difference between what is free now and what will be free later is withheld: it is taken out of
`free` and remembered, and the rest of the node stays usable.

Example, GPUs of one node: 6 are free, and the projected view says that 2 will be free later. Then
4 are withheld and `free` shows 2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import add, sub

from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.undo import Undo


class WithheldCapacity:
    """What is withheld in one pool.

    Args:
        free: by ordinal, of the view; it is changed in place.
        log: of the view: each ordinal that changes is appended.
    """

    def __init__(self, *, free: list[Vector], log: list[int]) -> None:
        self._free = free
        self._log = log
        self.limit: Sequence[Vector] | None = None
        """By ordinal: no more than this may be used; None: no limit."""
        self.amounts: dict[int, Vector] = {}
        """By ordinal, where something is free and withheld."""

    def update(self, ordinals: Iterable[int]) -> None:
        """Withhold on these nodes what is free above the limit, and nothing else."""
        limit, free_amounts = self.limit, self._free
        if limit is None:
            return
        for ordinal in ordinals:
            before = self.amounts.pop(ordinal, None)
            free = free_amounts[ordinal]
            if before:
                free = tuple(map(add, free, before))
            excess = tuple(
                max(0, now - then) for now, then in zip(free, limit[ordinal], strict=True)
            )
            if any(excess):
                self.amounts[ordinal] = excess
                free = tuple(map(sub, free, excess))
            if free != free_amounts[ordinal]:
                free_amounts[ordinal] = free
                self._log.append(ordinal)

    def among(self, ordinals: Iterable[int]) -> list[int]:
        """The ordinals on which something is withheld."""
        return [ordinal for ordinal in ordinals if ordinal in self.amounts]

    def release(self, ordinals: Sequence[int]) -> Undo:
        """Withhold nothing on these nodes; something is withheld on each of them."""
        before = {ordinal: self.amounts.pop(ordinal) for ordinal in ordinals}
        for ordinal, amounts in before.items():
            self._free[ordinal] = tuple(map(add, self._free[ordinal], amounts))
        self._log.extend(ordinals)

        def undo() -> None:
            for ordinal, amounts in before.items():
                self._free[ordinal] = tuple(map(sub, self._free[ordinal], amounts))
            self.amounts.update(before)
            self._log.extend(ordinals)

        return undo

    def clear(self) -> None:
        """Forget the limit and what was withheld; `free` is not changed."""
        self.limit, self.amounts = None, {}
