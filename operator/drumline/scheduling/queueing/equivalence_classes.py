"""Gangs that are alike: what rejects one of them in a cycle rejects all of them.

Capacity and quota only shrink while gangs come forward, so of thousands of equal jobs one is looked
at and the others are given its answer. What differs between alike gangs (names, age, places that
are kept, how long they run) plays no part in whether there is room for them; whose user matters is
said by the caller.
"""

from __future__ import annotations

from collections.abc import Hashable

from drumline.scheduling.model import Gang


class EquivalenceClasses:
    """Numbers the kinds of gangs.

    Args:
        capped: queues in which the user makes a difference.
    """

    def __init__(self, capped: frozenset[str] = frozenset()) -> None:
        self.capped = capped
        self.examples: list[Gang] = []
        """One gang of each kind, by number."""
        self._numbers: dict[Hashable, int] = {}

    def of(self, gang: Gang) -> int:
        """The number of the gang's kind."""
        likeness = _likeness(gang)
        if gang.queue in self.capped:
            likeness = (likeness, gang.user)
        number = self._numbers.setdefault(likeness, len(self.examples))
        if number == len(self.examples):
            self.examples.append(gang)
        return number


def _likeness(gang: Gang) -> Hashable:
    return (
        gang.queue,
        gang.namespace,
        gang.priority,
        gang.nodes,
        gang.per_pod,
        gang.pool,
        gang.pools,
        gang.required_level,
        gang.preferred_level,
        gang.slices,
        gang.balanced_level,
        gang.roles,
        tuple(sorted(gang.selector.items())),
        gang.affinity,
        gang.tolerations,
        gang.excluded_nodes,
        gang.sizes,
        gang.resizable,
    )
