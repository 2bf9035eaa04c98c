"""Track free GPUs by node, and place all pods of a gang or none.

This follows topology-aware scheduling, which assigns nodes at admission. Among nodes with enough
free GPUs the fullest comes first, so that large nodes stay whole. Levels above nodes are not
modelled, because the compared traces require none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from drumline_scheduler import Admitted, Gang, Node


class NodeRoom:
    """Free GPUs while decisions are made."""

    def __init__(self, nodes: Iterable[Node], *, admitted: Iterable[Admitted]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._free = {node.name: node.allocatable.gpus for node in self._nodes.values()}
        self._pools: dict[str, list[str]] = {}
        for node in self._nodes.values():
            if node.ready and not node.closed:
                self._pools.setdefault(node.pool, []).append(node.name)
        for held in admitted:
            self.take(held.gang, held.survivors)

    def take(self, gang: Gang, places: Mapping[int, str], *, times: int = 1) -> None:
        """Allocate the places of a gang's pods. `times=-1` releases them.

        Args:
            gang: the gang.
            places: node of each position.
            times: 1 to allocate, -1 to release.
        """
        for position, name in places.items():
            self._free[name] -= times * gang.request_of(position).gpus

    def has_room(self, gang: Gang, places: Sequence[str]) -> bool:
        """Return whether a gang's pods fit these nodes, and all of these are open.

        Args:
            gang: the gang.
            places: a node for each pod.
        """
        wanted = Counter[str]()
        for position, name in enumerate(places):
            wanted[name] += gang.request_of(position).gpus
        return all(
            self._nodes[name].ready and not self._nodes[name].closed and gpus <= self._free[name]
            for name, gpus in wanted.items()
        )

    def places(
        self, gang: Gang, *, pool: str, pods: int, also_in: Sequence[NodeRoom] = ()
    ) -> tuple[str, ...] | None:
        """Return nodes for a number of pods of a gang, or None if they do not all fit.

        Args:
            gang: the gang to place.
            pool: name of the pool.
            pods: number of pods.
            also_in: other states of the same nodes, in which the pods must fit too.
        """
        wanted = gang.per_pod.gpus
        states = [self._free, *(each._free for each in also_in)]  # noqa: SLF001 - of this class
        free = {name: min(state[name] for state in states) for name in self._pools.get(pool, ())}
        names = [name for name, gpus in free.items() if gpus >= wanted]
        if sum(free[name] // wanted for name in names) < pods:
            return None
        names.sort(key=lambda name: (free[name], self._nodes[name].suspicion, name))
        places: list[str] = []
        for name in names:
            room = min(free[name] // wanted, pods - len(places))
            places += [name] * room
            if len(places) == pods:
                break
        return tuple(places)
