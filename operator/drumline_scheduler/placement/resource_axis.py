"""Resources as vectors over one list of names, so that inner loops work on plain tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from drumline_scheduler.model import Gang
from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.resources import PLAIN_RESOURCES, Resources

_plain: Final[Callable[[Resources], Vector]] = attrgetter(*PLAIN_RESOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAxis:
    """The resources that count in a cycle, in the order of every vector. GPUs come first."""

    names: tuple[str, ...]

    def vector(self, amounts: Resources) -> Vector:
        """Return the amounts in the order of this axis.

        Resources that no gang requests are left out.
        """
        return self.vectors((amounts,))[0]

    def vectors(self, amounts: Iterable[Resources]) -> list[Vector]:
        """Return one vector for each of the amounts."""
        extended = self.names[len(PLAIN_RESOURCES) :]
        if not extended:
            return list(map(_plain, amounts))
        vectors: list[Vector] = []
        for resources in amounts:
            held = dict(resources.extended)
            vectors.append(_plain(resources) + tuple(held.get(name, 0) for name in extended))
        return vectors

    def requests(self, gang: Gang) -> list[Vector]:
        """Return the requests of the pods by position. The last entry holds for all main pods."""
        requests: list[Vector] = []
        for role in gang.roles:
            requests += [self.vector(role.per_pod)] * role.pods
        return [*requests, self.vector(gang.per_pod)]


def axis_of(gangs: Iterable[Gang]) -> ResourceAxis:
    """Return the axis on which all requests of these gangs can be written."""
    extended: set[str] = set()
    for gang in gangs:
        for request in (gang.per_pod, *(role.per_pod for role in gang.roles)):
            extended.update(name for name, _ in request.extended)
    return ResourceAxis(names=(*PLAIN_RESOURCES, *sorted(extended)))
