"""Capacity that is withheld for nominated gangs."""

from __future__ import annotations

import pytest

from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.withheld_capacity import WithheldCapacity


def changed(withheld: WithheldCapacity, free: list[Vector]) -> None:
    """Change everything, and raise inside the context that restores it."""
    with withheld.unchanged():
        withheld.release([0])
        free[1] = (0, 0)
        raise TimeoutError


def test_an_exception_restores_what_was_withheld() -> None:
    free: list[Vector] = [(6, 1), (2, 1)]
    log = list[int]()
    withheld = WithheldCapacity(free=free, log=log)
    withheld.limit = [(2, 1), (2, 1)]
    withheld.update([0, 1])
    assert (free, withheld.amounts) == ([(2, 1), (2, 1)], {0: (4, 0)})
    with pytest.raises(TimeoutError):
        changed(withheld, free)
    assert (free, withheld.amounts) == ([(2, 1), (2, 1)], {0: (4, 0)})
    assert log[-1] == 1
