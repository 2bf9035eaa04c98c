"""Resources as vectors over one list of names, so that inner loops work on plain tuples.

A tenant may request resources of any name. Those that no node offers have one place together at the
end of the axis, `UNOFFERED`: a pod that requests one of them fits nowhere. So the length of the
vectors depends on the nodes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Final

from drumline_scheduler.model import Gang, Node
from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.resources import PLAIN_RESOURCES, Resources

UNOFFERED: Final = ""
"""Name of all resources together that waiting gangs request and no node offers."""
_plain: Final[Callable[[Resources], Vector]] = attrgetter(*PLAIN_RESOURCES)
_NAME: Final[Callable[[tuple[str, int]], str]] = itemgetter(0)


@dataclass(frozen=True, kw_only=True)
class ResourceAxis:
    """The resources that count in a cycle, in the order of every vector. GPUs come first."""

    names: tuple[str, ...]

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.names)

    def request(self, amounts: Resources) -> Vector:
        """Return what a pod requests, in the order of this axis."""
        vector = self.vector(amounts)
        if not self.names or self.names[-1] != UNOFFERED:
            return vector
        # 1 of the last resource, of which every node has 0: such a pod fits nowhere.
        is_unoffered = any(name not in self._known for name, _ in amounts.extended)
        return (*vector[:-1], int(is_unoffered))

    def vector(self, amounts: Resources) -> Vector:
        """Return the amounts of a node in the order of this axis.

        Resources that no gang requests are left out.
        """
        return self.vectors((amounts,))[0]

    def vectors(self, amounts: Iterable[Resources]) -> list[Vector]:
        """Return one vector for each of several nodes' amounts."""
        extended = self.names[len(PLAIN_RESOURCES) :]
        if not extended:
            return list(map(_plain, amounts))
        if extended == (UNOFFERED,):
            return [(*_plain(resources), 0) for resources in amounts]
        vectors: list[Vector] = []
        none = (0,) * len(extended)
        for resources in amounts:
            if not resources.extended:
                vectors.append(_plain(resources) + none)
                continue
            held = dict(resources.extended)
            vectors.append(_plain(resources) + tuple(held.get(name, 0) for name in extended))
        return vectors

    def requests(self, gang: Gang) -> list[Vector]:
        """Return the requests of the pods by position. The last entry holds for all main pods."""
        requests: list[Vector] = []
        for role in gang.roles:
            requests += [self.request(role.per_pod)] * role.pods
        return [*requests, self.request(gang.per_pod)]


def axis_of(
    *,
    waiting: Iterable[Gang] = (),
    wanted: AbstractSet[str] = frozenset(),
    admitted: Iterable[Gang] = (),
    nodes: Iterable[Node] = (),
) -> ResourceAxis:
    """Return the axis on which all requests can be written.

    Args:
        waiting: gangs that want places.
        wanted: names that further waiting gangs request.
        admitted: gangs that have places. Nodes offered what they request at some time.
        nodes: all nodes.
    """
    held, wanted = requested_names(admitted), wanted | requested_names(waiting)
    # Resources of running gangs are known, so the nodes are read only for new names.
    unknown = wanted - held
    offered: set[str] = set()
    if unknown:
        for node in nodes:
            offered.update(name for name, _ in node.allocatable.extended)
    # The last place is always there. Otherwise the first wrong name would change all vectors.
    return ResourceAxis(names=(*PLAIN_RESOURCES, *sorted(held | unknown & offered), UNOFFERED))


def requested_names(gangs: Iterable[Gang]) -> set[str]:
    """Return the names of the resources that gangs request beside the plain ones."""
    extended: set[str] = set()
    for gang in gangs:
        for request in (gang.per_pod, *(role.per_pod for role in gang.roles)):
            if request.extended:
                extended.update(map(_NAME, request.extended))
    return extended
