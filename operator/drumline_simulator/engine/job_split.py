"""Present a simulated job to the scheduler: one gang, or one gang and its surplus."""

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
    """Return whether its pods above the minimum size are surplus on spot nodes."""
    return SpotRule.SURPLUS in (gang.price_rule.spot, queue_rule.spot) and can_be_split(gang)


class JobSplit:
    """Split of a job's places into regular and surplus places.

    Surplus places are last in the list.
    """

    __slots__ = ("_is_mixed", "_parts", "_whole", "surplus_pool")

    def __init__(self, *, is_mixed: bool) -> None:
        """Create the split of a job without places.

        Args:
            is_mixed: whether the pods above its minimum size are surplus.
        """
        self._is_mixed = is_mixed
        self._whole: Admitted | None = None
        self._parts: tuple[Admitted, ...] = ()
        self.surplus_pool = ""
        """Pool of its surplus, or empty."""

    def gang_of(self, gang: Gang) -> Gang:
        """Return the gang for the scheduler, with its surplus."""
        return with_surplus(gang, smallest=gang.legal_sizes[0]) if self._is_mixed else gang

    def start(self, gang: Gang, *, places: int, surplus_pool: str) -> Gang:
        """Return the gang with a number of places, those beyond its minimum size in this pool.

        Args:
            gang: gang of the scheduler.
            places: number of places, including surplus.
            surplus_pool: pool of the surplus. Empty: unchanged.
        """
        is_larger = self._is_mixed and places > gang.nodes
        self.surplus_pool = (surplus_pool or self.surplus_pool) if is_larger else ""
        return at_size(gang, places) if is_larger else gang

    def smallest(self, whole: Admitted, *, gang: Gang) -> int:
        """Return the number of places that are not surplus."""
        return gang.nodes if self.surplus_pool else len(whole.assignment)

    def parts(self, whole: Admitted, *, gang: Gang) -> tuple[Admitted, ...]:
        """Return the gang and its surplus, if any. The same `whole` gives the same objects."""
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
