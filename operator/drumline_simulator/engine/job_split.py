"""A simulated job as the scheduler sees it: one gang, or one and its surplus beside it."""

from __future__ import annotations

from drumline_scheduler import Admitted, Gang
from drumline_scheduler.model import (
    PriceRule,
    SpotRule,
    at_size,
    can_be_split,
    parts_of,
    with_surplus,
)


def has_surplus(gang: Gang, *, queue_rule: PriceRule) -> bool:
    """Whether what it has above its smallest size is surplus on spot nodes."""
    return SpotRule.SURPLUS in (gang.price_rule.spot, queue_rule.spot) and can_be_split(gang)


class JobSplit:
    """Which places of a job are surplus; its places are one list, those of surplus last."""

    __slots__ = ("_is_mixed", "_parts", "_whole", "surplus_pool")

    def __init__(self, *, is_mixed: bool) -> None:
        """Of a job that holds nothing.

        Args:
            is_mixed: whether what the job has above its smallest size is surplus.
        """
        self._is_mixed = is_mixed
        self._whole: Admitted | None = None
        self._parts: tuple[Admitted, ...] = ()
        self.surplus_pool = ""
        """The pool of its surplus; '': it has none."""

    def gang_of(self, gang: Gang) -> Gang:
        """The gang that the scheduler is told of, with its surplus beside it."""
        return with_surplus(gang, smallest=gang.legal_sizes[0]) if self._is_mixed else gang

    def start(self, gang: Gang, *, places: int, surplus_pool: str) -> Gang:
        """The gang with so many places in all, those beyond its smallest size in this pool.

        Args:
            gang: as the scheduler was told.
            places: surplus counted.
            surplus_pool: '': as before.
        """
        is_larger = self._is_mixed and places > gang.nodes
        self.surplus_pool = (surplus_pool or self.surplus_pool) if is_larger else ""
        return at_size(gang, places) if is_larger else gang

    def smallest(self, whole: Admitted, *, gang: Gang) -> int:
        """How many of the places are no surplus."""
        return gang.nodes if self.surplus_pool else len(whole.assignment)

    def parts(self, whole: Admitted, *, gang: Gang) -> tuple[Admitted, ...]:
        """All places as the scheduler sees them: the same objects while nothing changes."""
        if gang.surplus is None:
            return (whole,)
        if self._whole is not whole:
            self._whole = whole
            self._parts = parts_of(
                whole,
                gang=gang,
                smallest=self.smallest(whole, gang=gang),
                surplus_pool=self.surplus_pool,
            )
        return self._parts
