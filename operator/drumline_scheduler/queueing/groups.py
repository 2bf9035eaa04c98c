"""Gang groups: gangs that start together or not at all.

A group is identified by namespace and name. It starts in one cycle when all its gangs are pending.
Until then none of them holds slots. If some gangs of a group already run, another gang (created
late or evicted) starts alone. A group has the position of its first gang in the order.

The gangs of a group are placed one after the other, so the order can decide whether all fit. Up to
four gangs are tried in every order. More gangs are tried in scheduling order, by descending and by
ascending GPUs. So slots for a larger group may be missed if only another order finds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from math import factorial
from typing import Final

from drumline_scheduler.decisions import BlockReason, Remedy, RemedyKind
from drumline_scheduler.model import Admitted, Gang
from drumline_scheduler.rejections import Rejection, counted, named

ALL_ORDERS: Final = 4
"""Number of gangs up to which every order is tried."""

_TIME: Final = Remedy(kind=RemedyKind.WAIT)


def orders_of(gangs: int) -> int:
    """Return the number of orders in which a group of `gangs` gangs is tried."""
    return factorial(gangs) if gangs <= ALL_ORDERS else 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GangGroup:
    """The pending gangs of a group."""

    members: tuple[Gang, ...]
    """The gangs in scheduling order."""
    running: int
    """Number of other gangs of the group that run."""

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
        """True if all its gangs are pending or running."""
        return len(self.members) + self.running >= self.gangs

    def orders(self) -> Iterator[Sequence[Gang]]:
        """Yield the orders in which to place the gangs, scheduling order first."""
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
        here = len(self.members) + self.running
        return Rejection(
            reason=BlockReason.WAITING_FOR_GROUP,
            message=f"group {self.name} starts together: {here} of {counted(self.gangs, 'gang')}"
            " exist",
            remedy=_TIME,
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
    """All groups with pending gangs."""

    def __init__(self, *, waiting: Iterable[Gang], admitted: Iterable[Admitted]) -> None:
        members: dict[tuple[str, str], list[Gang]] = {}
        for gang in waiting:
            if gang.group:
                members.setdefault((gang.namespace, gang.group), []).append(gang)
        running = dict.fromkeys(members, 0)
        if members:
            for held in admitted:
                key = (held.gang.namespace, held.gang.group)
                if key in running and not held.leaving:
                    running[key] += 1
        self._groups = {
            key: GangGroup(members=tuple(gangs), running=running[key])
            for key, gangs in members.items()
        }

    def group_of(self, gang: Gang) -> GangGroup | None:
        """Return the group with which a gang has to start; None if it may start alone."""
        group = self._groups.get((gang.namespace, gang.group)) if gang.group else None
        return None if group is None or group.running else group
