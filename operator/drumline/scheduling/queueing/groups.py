"""Gangs that start together or not at all: who belongs to whom, and what they are told.

A group is known by its namespace and name. It starts when all its gangs are there, in one cycle;
until then none of them holds anything. A gang of a group of which some run already (it comes late,
or was sent away) starts alone. A group stands where the first of its gangs stands.

Its gangs are seated one after the other, so the order of trying can decide whether all fit: every
order of up to four gangs is tried, of more that of their turns, the biggest first and the smallest
first. A place for all of a bigger group may be missed where only another order would find it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Final

from drumline.scheduling.decisions import BlockReason, Remedy, RemedyKind
from drumline.scheduling.model import Admitted, Gang
from drumline.scheduling.rejections import Rejection, counted, named

ALL_ORDERS: Final = 4
"""Up to how many gangs every order of seating them is tried."""

_TIME: Final = Remedy(kind=RemedyKind.WAIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangGroup:
    """The gangs of a group that wait."""

    members: tuple[Gang, ...]
    """In the order of their turns."""
    running: int
    """How many of the others have their places."""

    @property
    def name(self) -> str:
        """As its jobs give it."""
        return self.members[0].group

    @property
    def gangs(self) -> int:
        """How many it has in all."""
        return max(gang.group_gangs for gang in self.members)

    @property
    def is_complete(self) -> bool:
        """Whether all of it is there."""
        return len(self.members) + self.running >= self.gangs

    def orders(self) -> Iterator[Sequence[Gang]]:
        """In which orders they may be seated, their turns first."""
        if len(self.members) <= ALL_ORDERS:
            yield from permutations(self.members)
            return
        yield self.members
        rising = sorted(self.members, key=lambda gang: gang.gpus_at(gang.legal_sizes[0]))
        yield rising[::-1]
        yield rising

    def incomplete(self) -> Rejection:
        """What its gangs are told while some are missing."""
        here = len(self.members) + self.running
        return Rejection(
            reason=BlockReason.WAITING_FOR_GROUP,
            message=f"group {self.name} starts together:"
            f" {here} of {counted(self.gangs, 'gang')} are there",
            remedy=_TIME,
        )

    def without_own(self, rejection: Rejection) -> Rejection:
        """A rejection that was made with others of the group in their places, as it is told."""
        own = {gang.key for gang in self.members}
        others = tuple(key for key in rejection.blockers if key not in own)
        if others == rejection.blockers:
            return rejection
        return replace(
            rejection,
            message="needs more than what is left beside the rest of its group",
            blockers=others,
            remedy=_TIME,
        )

    def held_up(self, rejected: Mapping[str, Rejection]) -> Rejection:
        """What those are told that could start.

        Args:
            rejected: why others could not, by key.
        """
        whom = [f"{key} ({rejected[key].reason})" for key in sorted(rejected)]
        return Rejection(
            reason=BlockReason.WAITING_FOR_GROUP,
            message=f"group {self.name} starts together: waits for {named(whom)}",
            blockers=tuple(sorted(rejected)),
            remedy=_TIME,
        )


class GangGroups:
    """All groups of which somebody waits."""

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

    def of(self, gang: Gang) -> GangGroup | None:
        """The group with which a gang has to start; None: it may start alone."""
        group = self._groups.get((gang.namespace, gang.group)) if gang.group else None
        return None if group is None or group.running else group
