"""Gangs that are alike: what refuses one of them in a cycle refuses all of them.

Capacity and quota only shrink while gangs come forward, so of thousands of equal jobs one is looked
at and the others are given its answer. What differs between alike gangs (names, age, places that
are kept) plays no part in whether they can start; whose user or length matters is said by the
caller.
"""

from __future__ import annotations

from collections.abc import Hashable

from drumline.scheduling.model import Gang


class Kinds:
    """Numbers the kinds of gangs; a gang object is looked at once in its life."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[int, tuple[Gang, int]] = {}
        """By identity; the gang is held, so that nobody else can get its identity."""

    def of(self, gang: Gang) -> int:
        """The number of the gang's kind."""
        known = self._known.get(id(gang))
        if known is not None:
            return known[1]
        number = self._numbers.setdefault(_likeness(gang), len(self._numbers))
        self._known[id(gang)] = (gang, number)
        return number

    def keep_only(self, gangs: dict[int, Gang]) -> None:
        """Forget the gangs that are not among these (by identity)."""
        self._known = {key: self._known[key] for key in gangs if key in self._known}


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
