"""A cycle's own mutable view of who holds what in a pool, where every move returns its undo.

Amounts are vectors over one list of resources (`Axis`), so that the inner loops touch plain
tuples. What is free on a node is its allocatable minus everything bound there (`Node.used`) minus
the places that are promised; it may be negative where foreign pods over-commit a node, and then
simply nothing fits. Every change is logged by node, so indexes over a pool (`slots`) catch up by
reading the log from where they left off instead of looking at every node again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from operator import add, mul, sub

from drumline.scheduling.model import Admitted, Gang, Node, Snapshot
from drumline.scheduling.resources import NOTHING, PLAIN_RESOURCES, Resources
from drumline.scheduling.topology import Domain, Tree, build_tree

Vector = tuple[int, ...]
Undo = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The resources that count in this cycle, in the order of every vector; GPUs come first."""

    names: tuple[str, ...]

    def vector(self, amounts: Resources) -> Vector:
        """The amounts in the order of this axis; resources nobody asks for are left out."""
        plain = (
            amounts.gpus,
            amounts.cpu_millis,
            amounts.memory_bytes,
            amounts.pods,
            amounts.ephemeral_bytes,
        )
        extended = self.names[len(plain) :]
        if not extended:
            return plain
        held = dict(amounts.extended)
        return plain + tuple(held.get(name, 0) for name in extended)


def axis_of(gangs: Iterable[Gang]) -> Axis:
    """The axis on which all requests of these gangs can be written."""
    extended = {name for gang in gangs for name, _ in gang.per_pod.extended}
    return Axis(names=(*PLAIN_RESOURCES, *sorted(extended)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A gang that holds capacity of a pool, by node ordinal."""

    gang: Gang
    request: Vector
    places: Mapping[int, int]
    """Pods by ordinal, lost places and vanished nodes left out."""

    def pods_in(self, domain: Domain) -> int:
        """How many of its pods are in a domain."""
        return sum(n for i, n in self.places.items() if domain.start <= i < domain.stop)

    def held_in(self, domain: Domain, resource: int) -> int:
        """How much of a resource it holds in a domain."""
        return self.pods_in(domain) * self.request[resource]


class PoolView:
    """One pool's nodes, what is free on them and who holds the rest."""

    def __init__(self, *, tree: Tree, axis: Axis) -> None:
        self.tree = tree
        self.axis = axis
        self.ordinal_of = {node.name: i for i, node in enumerate(tree.nodes)}
        self.capacity: list[Vector] = [axis.vector(node.allocatable) for node in tree.nodes]
        self.used: list[Vector] = [axis.vector(node.used) for node in tree.nodes]
        self.free: list[Vector] = [
            tuple(map(sub, whole, used))
            for whole, used in zip(self.capacity, self.used, strict=True)
        ]
        self.holders: dict[str, Holder] = {}
        self.nominees: dict[str, Holder] = {}
        """By uid: gangs for which places are kept here, because others leave for them."""
        self.leaving: set[str] = set()
        """Uids of holders that were told to go."""
        self.later: Sequence[Vector] | None = None
        """What will be free once they are gone and the nominees seated, if anybody asked."""
        self.log: list[int] = []
        self.kept_back: dict[int, Vector] = {}
        """By ordinal: what is free there and withheld for them."""

    def copy(self) -> PoolView:
        """A view of the same moment that can be changed separately. O(nodes)."""
        twin = copy(self)
        twin.used, twin.free = list(self.used), list(self.free)
        twin.holders, twin.nominees, twin.log = dict(self.holders), {}, []
        twin.kept_back, twin.leaving, twin.later = {}, set(), None
        return twin

    def holder(self, *, gang: Gang, nodes: Iterable[str]) -> Holder:
        """The holder of one place on each named node; nodes that are gone hold nothing."""
        known = (self.ordinal_of[name] for name in nodes if name in self.ordinal_of)
        request = self.axis.vector(gang.per_pod)
        return Holder(gang=gang, request=request, places=Counter(known))

    def seat(self, admitted: Admitted) -> None:
        """Enter a gang that was admitted before this cycle."""
        kept = {i: name for i, name in enumerate(admitted.assignment) if i not in admitted.lost}
        promised = [name for i, name in kept.items() if i in admitted.reserved]
        self._shift(self.holder(gang=admitted.gang, nodes=promised), sign=-1)
        holder = self.holder(gang=admitted.gang, nodes=kept.values())
        self.holders[admitted.gang.uid] = holder
        bound = self.holder(
            gang=admitted.gang, nodes=(n for i, n in kept.items() if i not in admitted.reserved)
        )
        for ordinal, pods in bound.places.items():
            ours = (amount * pods for amount in holder.request)
            self.used[ordinal] = tuple(map(sub, self.used[ordinal], ours))

    def occupy(self, holder: Holder) -> Undo:
        """Give a gang its places, beside those it may hold already. O(places)."""
        before = self.holders.get(holder.gang.uid)
        held = Counter(before.places if before else {}) + Counter(holder.places)
        self.holders[holder.gang.uid] = Holder(
            gang=holder.gang, request=holder.request, places=held
        )
        self._shift(holder, sign=-1)

        def undo() -> None:
            self._shift(holder, sign=1)
            if before is None:
                del self.holders[holder.gang.uid]
            else:
                self.holders[holder.gang.uid] = before

        return undo

    def release(self, holder: Holder) -> Undo:
        """Take all places from a gang. O(places).

        Where it was told to go, others may have been promised what it leaves.
        """
        del self.holders[holder.gang.uid]
        self._shift(holder, sign=1)
        if holder.gang.uid in self.leaving:
            self.withhold(holder.places)

        def undo() -> None:
            self._shift(holder, sign=-1)
            if holder.gang.uid in self.leaving:
                self.withhold(holder.places)
            self.holders[holder.gang.uid] = holder

        return undo

    def vacate_terminating(self) -> None:
        """Imagine every node without the pods that are being deleted there."""
        for ordinal, node in enumerate(self.tree.nodes):
            if node.terminating is not NOTHING:
                going = self.axis.vector(node.terminating)
                self.used[ordinal] = tuple(map(sub, self.used[ordinal], going))
                self.free[ordinal] = tuple(map(add, self.free[ordinal], going))

    def withhold(self, ordinals: Iterable[int]) -> None:
        """Keep back on some nodes whatever would be missing there later on."""
        later = self.later
        if later is None:
            return
        for ordinal in ordinals:
            before = self.kept_back.pop(ordinal, None)
            free = self.free[ordinal]
            if before:
                free = tuple(map(add, free, before))
            short = tuple(
                max(0, now - then) for now, then in zip(free, later[ordinal], strict=True)
            )
            if any(short):
                self.kept_back[ordinal] = short
                free = tuple(map(sub, free, short))
            if free != self.free[ordinal]:
                self.free[ordinal] = free
                self.log.append(ordinal)

    def withheld(self, ordinals: Iterable[int]) -> list[int]:
        """Those of some nodes on which something is kept back."""
        return [ordinal for ordinal in ordinals if ordinal in self.kept_back]

    def grant_withheld(self, ordinals: Sequence[int]) -> Undo:
        """Imagine that nothing were kept back on these nodes."""
        before = {ordinal: self.kept_back.pop(ordinal) for ordinal in ordinals}
        for ordinal, amounts in before.items():
            self.free[ordinal] = tuple(map(add, self.free[ordinal], amounts))
        self.log.extend(ordinals)

        def undo() -> None:
            for ordinal, amounts in before.items():
                self.free[ordinal] = tuple(map(sub, self.free[ordinal], amounts))
            self.kept_back.update(before)
            self.log.extend(ordinals)

        return undo

    def emptied_but_for(self, gang: Gang) -> list[Vector]:
        """What would be free if only this gang were left."""
        own = self.holders.get(gang.uid)
        if own is None:
            return self.capacity
        left = list(self.capacity)
        for ordinal, pods in own.places.items():
            left[ordinal] = tuple(map(sub, left[ordinal], (n * pods for n in own.request)))
        return left

    def foreign(self, ordinal: int) -> Vector:
        """What pods of no admitted job hold on a node, terminating ones included."""
        return tuple(max(0, amount) for amount in self.used[ordinal])

    def expel_foreign(self, ordinals: Sequence[int]) -> Undo:
        """Imagine these nodes without foreign pods."""
        before = [(ordinal, self.free[ordinal]) for ordinal in ordinals]
        for ordinal, free in before:
            self.free[ordinal] = tuple(map(add, free, self.foreign(ordinal)))
        self.log.extend(ordinals)

        def undo() -> None:
            for ordinal, _ in before:
                self.free[ordinal] = tuple(map(sub, self.free[ordinal], self.foreign(ordinal)))
            self.log.extend(ordinals)

        return undo

    def _shift(self, holder: Holder, *, sign: int) -> None:
        request = tuple(sign * amount for amount in holder.request)
        for ordinal, pods in holder.places.items():
            change = request if pods == 1 else map(mul, request, (pods,) * len(request))
            self.free[ordinal] = tuple(map(add, self.free[ordinal], change))
        self.log.extend(holder.places)


def build_views(*, snapshot: Snapshot, pending: Iterable[Gang]) -> dict[str, PoolView]:
    """A view of each pool of the snapshot. O(nodes x levels + admitted places)."""
    axis = axis_of([*pending, *(admitted.gang for admitted in snapshot.admitted)])
    members: dict[str, list[Node]] = {pool.name: [] for pool in snapshot.pools}
    for node in snapshot.nodes:
        if node.pool in members:
            members[node.pool].append(node)
    views = {
        pool.name: PoolView(tree=build_tree(pool=pool, nodes=members[pool.name]), axis=axis)
        for pool in snapshot.pools
    }
    for admitted in snapshot.admitted:
        if admitted.pool in views:
            views[admitted.pool].seat(admitted)
    return views
