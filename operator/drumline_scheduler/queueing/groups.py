"""Gang groups: gangs that start together or not at all.

A group is identified by namespace and name. It starts in one cycle when all its gangs are pending.
Until then none of them holds slots. If some gangs of a group already run, another gang (created
late or evicted) starts alone. A group has the position of its first gang in the order.

The gangs of a group are placed one after the other, so the order can decide whether all fit. Up to
four gangs are tried in every order. More gangs are tried in scheduling order, by descending and by
ascending GPUs. So slots for a larger group may be missed if only another order finds them.

Victims for a group are chosen for all its gangs or for none (`admission`). Its gangs start in one
cycle once all victims have left.

The work for a group is bounded whatever its jobs request. A group whose kinds of gangs are costly
to search for (`search_costs`) is tried in fewer orders. A group of too many kinds does not start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations
from math import factorial
from typing import Final

from drumline_scheduler.decisions import BlockReason, Remedy, RemedyKind
from drumline_scheduler.model import Admitted, Gang
from drumline_scheduler.rejections import Rejection, counted, named

ALL_ORDERS: Final = 4
"""Number of gangs up to which every order is tried."""

MOST_KINDS: Final = 64
"""Kinds of gangs of a group that starts. A gang with roles counts as up to eight kinds."""
_KIND_UNITS: Final = 4
_ORDERS_UNITS: Final = 96
"""Units for all orders together: those of four ordinary gangs in every order."""
_TIME: Final = Remedy(kind=RemedyKind.WAIT)


def group_cost(gangs: Sequence[Gang], *, costs: Collection[int]) -> int:
    """Return the units of one cycle that a group costs.

    Args:
        gangs: the waiting gangs of the group.
        costs: cost of a search for each kind of these gangs.
    """
    group = _group(gangs, costs=costs)
    return 1 if group.has_too_many_kinds else group.units * group.tries


def _group(gangs: Sequence[Gang], *, costs: Collection[int]) -> GangGroup:
    return GangGroup(
        members=tuple(gangs),
        kinds=sum(max(1, cost // _KIND_UNITS) for cost in costs),
        units=sum(costs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GangGroup:
    """The pending gangs of a group."""

    members: tuple[Gang, ...]
    """The gangs in scheduling order."""
    kinds: int
    """Number of kinds of gangs, with a larger weight for costly ones."""
    units: int
    """Cost of one search for each kind."""

    @property
    def has_too_many_kinds(self) -> bool:
        """True if the gangs of the group are too many to be searched for together."""
        return self.kinds > MOST_KINDS

    @property
    def tries(self) -> int:
        """Number of orders in which the gangs are placed."""
        orders = factorial(len(self.members)) if len(self.members) <= ALL_ORDERS else 3
        return min(orders, max(1, _ORDERS_UNITS // self.units))

    @property
    def name(self) -> str:
        """The group's name, as given by its jobs."""
        return self.members[0].group

    @property
    def gangs(self) -> int:
        """Total number of gangs."""
        return max(gang.group_gangs for gang in self.members)

    @property
    def is_complete(self) -> bool:
        """True if all its gangs are pending."""
        return len(self.members) >= self.gangs

    def orders(self) -> Iterator[Sequence[Gang]]:
        """Yield the orders in which to place the gangs, scheduling order first."""
        yield from islice(self._all_orders(), self.tries)

    def _all_orders(self) -> Iterator[Sequence[Gang]]:
        if len(self.members) <= ALL_ORDERS:
            yield from permutations(self.members)
            return
        yield self.members
        # Large gangs first leaves small gaps to small gangs. Small gangs first fills
        # gaps that large ones cannot use.
        rising = sorted(self.members, key=lambda gang: gang.gpus_at(gang.legal_sizes[0]))
        yield rising[::-1]
        yield rising

    def incomplete(self) -> Rejection:
        """Return the rejection of its gangs while some are missing."""
        here = len(self.members)
        return Rejection(
            reason=BlockReason.WAITING_FOR_GROUP,
            message=f"group {self.name} starts together: {here} of {counted(self.gangs, 'gang')}"
            " exist",
            remedy=_TIME,
        )

    def refused(self) -> Rejection:
        """Return the rejection of its gangs if they are of too many kinds."""
        return Rejection(
            reason=BlockReason.WAITING_FOR_GROUP,
            message=f"group {self.name} starts together: its {counted(len(self.members), 'job')}"
            f" count as {self.kinds} kinds, want at most {MOST_KINDS}; use fewer different requests"
            " or fewer roles",
        )

    def without_own(self, rejection: Rejection) -> Rejection:
        """Return a rejection without the group's own gangs as blockers.

        These gangs are not started after all, so they do not hold capacity.
        """
        own = {gang.key for gang in self.members}
        rest = tuple(key for key in rejection.blockers if key not in own)
        if rest == rejection.blockers:
            return rejection
        return replace(
            rejection,
            message="needs more than the rest of its group leaves free",
            blockers=rest,
            remedy=_TIME,
        )

    def held_up(self, rejected: Mapping[str, Rejection]) -> Rejection:
        """Return the rejection of the gangs that could start.

        Args:
            rejected: rejections of the other gangs, by key.
        """
        texts = [f"{key} ({rejected[key].reason})" for key in sorted(rejected)]
        return Rejection(
            reason=BlockReason.WAITING_FOR_GROUP,
            message=f"group {self.name} starts together: waits for {named(texts)}",
            blockers=tuple(sorted(rejected)),
            remedy=_TIME,
        )


class GangGroups:
    """All groups with pending gangs.

    Args:
        waiting: the gangs that wait.
        admitted: the gangs that run.
        costs_of: returns the cost of each kind of some waiting gangs.
    """

    def __init__(
        self,
        *,
        waiting: Iterable[Gang],
        admitted: Iterable[Admitted],
        costs_of: Callable[[Iterable[Gang]], Collection[int]],
    ) -> None:
        self._members: dict[tuple[str, str], list[Gang]] = {}
        for gang in waiting:
            if gang.group:
                self._members.setdefault((gang.namespace, gang.group), []).append(gang)
        self._running: frozenset[tuple[str, str]] = (
            running_groups(admitted) if self._members else frozenset()
        )
        self._costs_of = costs_of
        self._groups: dict[tuple[str, str], GangGroup] = {}

    def group_of(self, gang: Gang) -> GangGroup | None:
        """Return the group with which a gang has to start; None if it may start alone."""
        key = (gang.namespace, gang.group)
        if not gang.group or key not in self._members or key in self._running:
            return None
        if key not in self._groups:
            members = self._members[key]
            self._groups[key] = _group(members, costs=self._costs_of(members))
        return self._groups[key]


def running_groups(admitted: Iterable[Admitted]) -> frozenset[tuple[str, str]]:
    """Return namespace and name of the groups of which a gang runs and stays."""
    return frozenset(
        (held.gang.namespace, held.gang.group)
        for held in admitted
        if held.gang.group and not held.leaving
    )
