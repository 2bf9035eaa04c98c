"""Track free GPUs by node, and place all pods of a gang or none.

This follows topology-aware scheduling, which assigns nodes at admission. Among nodes with enough
free GPUs the fullest comes first, so that large nodes stay whole. Levels above nodes are not
modelled, because the compared traces require none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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

    def places(self, gang: Gang, *, pool: str, pods: int) -> tuple[str, ...] | None:
        """Return nodes for a number of pods of a gang, or None if they do not all fit.

        Args:
            gang: the gang to place.
            pool: name of the pool.
            pods: number of pods.
        """
        wanted = gang.per_pod.gpus
        names = [name for name in self._pools.get(pool, ()) if self._free[name] >= wanted]
        if sum(self._free[name] // wanted for name in names) < pods:
            return None
        names.sort(key=lambda name: (self._free[name], self._nodes[name].suspicion, name))
        places: list[str] = []
        for name in names:
            room = min(self._free[name] // wanted, pods - len(places))
            places += [name] * room
            if len(places) == pods:
                break
        return tuple(places)
