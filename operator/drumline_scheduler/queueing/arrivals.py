"""Let new gangs into the line, a bounded amount of them in each cycle.

A cycle sorts each new gang by its request. So one tenant that creates hundreds of objects at once,
each with hundreds of node conditions and resources, could lengthen one cycle for everybody. Each
namespace has a budget of new fields in a cycle. Gangs beyond it come one cycle later. A gang that
is in line stays there.

Example: 100 workloads of 32 kinds of pods with 120 conditions each enter within 26 cycles, which
follow each other at once. Five thousand ordinary jobs enter in one cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from drumline_scheduler.model import Gang

NEW_FIELDS: Final = 16_384
"""Fields of new gangs of one namespace in one cycle."""
_FIELDS_OF_A_GANG: Final = 3
"""Fields that each gang has."""


class Arrivals:
    """The gangs that are in line. Empty at first."""

    def __init__(self) -> None:
        self._in_line: frozenset[str] = frozenset()
        self.is_complete = True
        """False if the last cycle left out gangs, which the next one lets in."""

    def let_in(self, pending: Sequence[Gang]) -> Sequence[Gang]:
        """Return the gangs of the next cycle: those in line, and new ones within the budget.

        The gangs of a group enter together.
        """
        used, entered = Counter[str](), set[tuple[str, str]]()
        line: list[Gang] = []
        for gang in pending:
            if gang.uid not in self._in_line:
                namespace = gang.namespace
                is_late = used[namespace] >= NEW_FIELDS
                if is_late and not (gang.group and (namespace, gang.group) in entered):
                    continue
                used[namespace] += fields_of(gang)
                entered.add((namespace, gang.group))
            line.append(gang)
        self.is_complete = len(line) == len(pending)
        self._in_line = frozenset(gang.uid for gang in line)
        return line


def fields_of(gang: Gang) -> int:
    """Return the number of fields that a new gang is sorted by."""
    return (
        _FIELDS_OF_A_GANG
        + len(gang.selector)
        + len(gang.tolerations)
        + sum(len(each.values) + 1 for term in gang.affinity for each in term)
        + len(gang.per_pod.extended)
        + sum(1 + len(role.per_pod.extended) for role in gang.roles)
    )
