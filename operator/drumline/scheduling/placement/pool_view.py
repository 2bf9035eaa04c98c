"""A cycle's own mutable view of who holds what in a pool, where every move returns its undo.

Amounts are vectors over one list of resources (`ResourceAxis`), so that the inner loops touch plain
tuples. What is free on a node is its allocatable minus everything bound there (`Node.used`) minus
the places that are promised; it may be negative where foreign pods over-commit a node, and then
simply nothing fits. Every change is logged by node, so indexes over a pool (`slots`) catch up by
reading the log from where they left off instead of looking at every node again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from operator import add, attrgetter, mul, sub
from typing import Final

from drumline.scheduling.model import Admitted, Gang, Node, Snapshot
from drumline.scheduling.placement.allocations import Allocation, Allocations, Vector
from drumline.scheduling.placement.distinct_capacities import DistinctCapacities
from drumline.scheduling.placement.topology import TopologyTree, build_tree
from drumline.scheduling.resources import NOTHING, PLAIN_RESOURCES, Resources
from drumline.scheduling.undo import Undo

_plain: Final[Callable[[Resources], Vector]] = attrgetter(*PLAIN_RESOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAxis:
    """The resources that count in this cycle, in the order of every vector; GPUs come first."""

    names: tuple[str, ...]

    def vector(self, amounts: Resources) -> Vector:
        """The amounts in the order of this axis; resources nobody asks for are left out."""
        return self.vectors((amounts,))[0]

    def vectors(self, amounts: Iterable[Resources]) -> list[Vector]:
        """The same of many at once."""
        extended = self.names[len(PLAIN_RESOURCES) :]
        if not extended:
            return list(map(_plain, amounts))
        found: list[Vector] = []
        for one in amounts:
            held = dict(one.extended)
            found.append(_plain(one) + tuple(held.get(name, 0) for name in extended))
        return found


def axis_of(gangs: Iterable[Gang]) -> ResourceAxis:
    """The axis on which all requests of these gangs can be written."""
    extended: set[str] = set()
    for gang in gangs:
        for request in (gang.per_pod, *(role.per_pod for role in gang.roles)):
            extended.update(name for name, _ in request.extended)
    return ResourceAxis(names=(*PLAIN_RESOURCES, *sorted(extended)))


class PoolView:
    """One pool's nodes, what is free on them and who holds the rest."""

    def __init__(self, *, tree: TopologyTree, axis: ResourceAxis) -> None:
        self.tree = tree
        self.axis = axis
        self.ordinal_of = {node.name: i for i, node in enumerate(tree.nodes)}
        self.capacity = axis.vectors([node.allocatable for node in tree.nodes])
        self.used = axis.vectors([node.used for node in tree.nodes])
        self.free: list[Vector] = [
            tuple(map(sub, whole, used)) if any(used) else whole
            for whole, used in zip(self.capacity, self.used, strict=True)
        ]
        self.holders = Allocations(tree)
        self.nominees: dict[str, Allocation] = {}
        """By uid: gangs for which places are kept here, because others leave for them."""
        self.leaving: set[str] = set()
        """Uids of holders that were told to go."""
        self.later: Sequence[Vector] | None = None
        """What will be free once they are gone and the nominees seated, if anybody asked."""
        self.log: list[int] = []
        self.sorted_amounts: dict[int, DistinctCapacities] = {}
        """Of `free` and `capacity`, by identity."""
        self.kept_back: dict[int, Vector] = {}
        """By ordinal: what is free there and withheld for them."""
        self._mark: tuple[list[Vector], list[Vector], int] | None = None
        """What was free and used, and how long the log was, when a cycle began."""

    def copy(self) -> PoolView:
        """A view of the same moment that can be changed separately. O(nodes)."""
        twin = copy(self)
        twin.used, twin.free = list(self.used), list(self.free)
        twin.sorted_amounts = {}
        twin.holders, twin.nominees, twin.log = Allocations(self.tree, self.holders), {}, []
        twin.kept_back, twin.leaving, twin.later = {}, set(), None
        return twin

    def holder(
        self, *, gang: Gang, nodes: Sequence[str], positions: Iterable[int] | None = None
    ) -> Allocation:
        """The holder of one place on each named node; nodes that are gone hold nothing.

        Args:
            gang: whose places they are.
            nodes: by position.
            positions: which positions these are; None: the first ones.
        """
        places: dict[int, int] = {}
        amounts: dict[int, Vector] = {}
        requests = self._requests(gang)
        for position, name in zip(
            range(len(nodes)) if positions is None else positions, nodes, strict=True
        ):
            ordinal = self.ordinal_of.get(name)
            if ordinal is None:
                continue
            request = requests[min(position, len(requests) - 1)]
            before = amounts.get(ordinal)
            if before is None:
                places[ordinal], amounts[ordinal] = 1, request
            else:
                places[ordinal] += 1
                amounts[ordinal] = tuple(map(add, before, request))
        return Allocation(gang=gang, places=places, amounts=amounts)

    def _requests(self, gang: Gang) -> list[Vector]:
        """By position; all from the last one on are main pods."""
        requests: list[Vector] = []
        for role in gang.roles:
            requests += [self.axis.vector(role.per_pod)] * role.pods
        return [*requests, self.axis.vector(gang.per_pod)]

    def seat(self, admitted: Admitted) -> None:
        """Enter a gang that was admitted before this cycle."""
        gang, names = admitted.gang, admitted.assignment
        kept = [i for i in range(len(names)) if i not in admitted.lost]
        promised = [i for i in kept if i in admitted.reserved]
        bound = [i for i in kept if i not in admitted.reserved]
        if promised:
            self.shift(self._part(gang=gang, names=names, positions=promised), sign=-1)
        self.holders[gang.uid] = self._part(gang=gang, names=names, positions=kept)
        ours = self._part(gang=gang, names=names, positions=bound) if promised else None
        for ordinal, amount in (ours or self.holders[gang.uid]).amounts.items():
            self.used[ordinal] = tuple(map(sub, self.used[ordinal], amount))

    def _part(self, *, gang: Gang, names: Sequence[str], positions: Sequence[int]) -> Allocation:
        return self.holder(gang=gang, nodes=[names[i] for i in positions], positions=positions)

    def unseat(self, admitted: Admitted) -> None:
        """Undo `seat`."""
        gang, names = admitted.gang, admitted.assignment
        kept = [i for i in range(len(names)) if i not in admitted.lost]
        promised = [i for i in kept if i in admitted.reserved]
        bound = [i for i in kept if i not in admitted.reserved]
        self.shift(self._part(gang=gang, names=names, positions=promised), sign=1)
        ours = self._part(gang=gang, names=names, positions=bound)
        for ordinal, amount in ours.amounts.items():
            self.used[ordinal] = tuple(map(add, self.used[ordinal], amount))
        del self.holders[gang.uid]

    def alike(self, amounts: Sequence[Vector]) -> DistinctCapacities:
        """Some amounts sorted into equal ones; what is free, and all there is, only once."""
        if amounts is not self.free and amounts is not self.capacity:
            return DistinctCapacities(amounts=amounts)
        found = self.sorted_amounts.get(id(amounts))
        if found is None:
            found = self.sorted_amounts[id(amounts)] = DistinctCapacities(
                amounts=amounts, log=self.log
            )
        return found

    def clear_log(self) -> None:
        """Forget all changes; whatever has read the log is to be dropped as well."""
        self.log.clear()
        self.sorted_amounts.clear()

    def renew(self, node: Node) -> int:
        """Look at a node again that is another value now; its ordinal."""
        ordinal = self.ordinal_of[node.name]
        before, capacity = self.tree.nodes[ordinal], self.axis.vector(node.allocatable)
        more = tuple(map(sub, self.axis.vector(node.used), self.axis.vector(before.used)))
        gain = map(sub, map(sub, capacity, self.capacity[ordinal]), more)
        self.capacity[ordinal] = capacity
        self.used[ordinal] = tuple(map(add, self.used[ordinal], more))
        self.free[ordinal] = tuple(map(add, self.free[ordinal], gain))
        self.tree.nodes[ordinal] = node
        self.log.append(ordinal)
        return ordinal

    def mark(self) -> None:
        """Remember everything as it is, for `rewind`. O(nodes)."""
        self._mark = (list(self.free), list(self.used), len(self.log))
        self.holders.mark()

    def rewind(self) -> None:
        """Undo all that happened since `mark`, whoever did it."""
        if self._mark is None:
            return
        free, self.used, length = self._mark
        touched = set(self.log[length:])
        for ordinal in touched:
            self.free[ordinal] = free[ordinal]
        self.log.extend(touched)
        self.holders.rewind()
        self.nominees, self.leaving, self.kept_back, self.later = {}, set(), {}, None
        self._mark = None

    def occupy(self, holder: Allocation) -> Undo:
        """Give a gang its places, beside those it may hold already. O(places)."""
        before = self.holders.get(holder.gang.uid)
        self.holders[holder.gang.uid] = before + holder if before else holder
        self.shift(holder, sign=-1)

        def undo() -> None:
            self.shift(holder, sign=1)
            if before is None:
                del self.holders[holder.gang.uid]
            else:
                self.holders[holder.gang.uid] = before

        return undo

    def release(self, holder: Allocation) -> Undo:
        """Take all places from a gang. O(places).

        Where it was told to go, others may have been promised what it leaves.
        """
        del self.holders[holder.gang.uid]
        self.shift(holder, sign=1)
        if holder.gang.uid in self.leaving:
            self.withhold(holder.places)

        def undo() -> None:
            self.shift(holder, sign=-1)
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
        for ordinal, amount in own.amounts.items():
            left[ordinal] = tuple(map(sub, left[ordinal], amount))
        return left

    def foreign(self, ordinal: int) -> Vector:
        """What pods of no admitted job hold on a node, terminating ones included."""
        return tuple(max(0, amount) for amount in self.used[ordinal])

    def shared(self) -> list[int]:
        """Ordinals of the nodes that have foreign pods."""
        return [i for i, used in enumerate(self.used) if max(used) > 0]

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

    def shift(self, holder: Allocation, *, sign: int) -> None:
        """Free what a holder has (`sign` 1) or take it (-1), without a word on who holds it."""
        change = add if sign > 0 else sub
        for ordinal, amount in holder.amounts.items():
            self.free[ordinal] = tuple(map(change, self.free[ordinal], amount))
        self.log.extend(holder.amounts)

    def imagine(self, *, request: Vector, places: Mapping[int, int]) -> Undo:
        """Take room for some equal pods, by ordinal, of nobody in particular."""
        if not places:
            return _nothing
        before = {ordinal: self.free[ordinal] for ordinal in places}
        for ordinal, pods in places.items():
            taken = request if pods == 1 else map(mul, request, (pods,) * len(request))
            self.free[ordinal] = tuple(map(sub, self.free[ordinal], taken))
        self.log.extend(places)

        def undo() -> None:
            for ordinal, free in before.items():
                self.free[ordinal] = free
            self.log.extend(before)

        return undo

    def close(self, ordinals: Iterable[int]) -> Undo:
        """Imagine that nothing were free on some nodes."""
        before = {ordinal: self.free[ordinal] for ordinal in ordinals}
        nothing = (0,) * len(self.axis.names)
        for ordinal in before:
            self.free[ordinal] = nothing
        self.log.extend(before)

        def undo() -> None:
            for ordinal, free in before.items():
                self.free[ordinal] = free
            self.log.extend(before)

        return undo


def _nothing() -> None:
    """The undo of a change that was none."""


def build_views(*, snapshot: Snapshot, axis: ResourceAxis) -> dict[str, PoolView]:
    """A view of each pool of the snapshot. O(nodes x levels + admitted places)."""
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
