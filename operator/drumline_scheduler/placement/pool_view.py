"""A mutable view of one pool: free capacity of each node, and the allocations of gangs.

`free` is a node's allocatable minus everything bound there (`Node.used`) minus the reserved pods of
admitted gangs. It may be negative where foreign pods over-commit a node. Then no pod fits.

Every change returns its `Undo` and appends the changed ordinals to `log`. Indexes over a pool
(`slots`) read the log from where they stopped instead of looking at every node again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from operator import add, mul, sub

from drumline_scheduler.model import Admitted, Gang, Node, Snapshot
from drumline_scheduler.placement.allocations import Allocation, Allocations, Vector
from drumline_scheduler.placement.distinct_capacities import DistinctCapacities
from drumline_scheduler.placement.resource_axis import ResourceAxis
from drumline_scheduler.placement.topology import TopologyTree, build_tree
from drumline_scheduler.placement.withheld_capacity import WithheldCapacity
from drumline_scheduler.resources import NOTHING
from drumline_scheduler.undo import Undo

State = tuple[int, int]
"""Lengths of the logs of a pool: changes of its nodes, and of its allocations."""


class PoolView:
    """One pool's nodes, their free capacity and the allocations of gangs."""

    def __init__(self, *, tree: TopologyTree, axis: ResourceAxis) -> None:
        self.tree = tree
        self.axis = axis
        self.ordinal_of = {node.name: i for i, node in enumerate(tree.nodes)}
        self.capacity = axis.vectors([node.allocatable for node in tree.nodes])
        self.used = axis.vectors([node.used for node in tree.nodes])
        """`Node.used` without the bound pods of the allocations, by ordinal."""
        # Most nodes of an idle pool are unused. They share the vector of their capacity.
        self.free: list[Vector] = [
            tuple(map(sub, whole, used)) if any(used) else whole
            for whole, used in zip(self.capacity, self.used, strict=True)
        ]
        self.allocations = Allocations(tree)
        self.nominees: dict[str, Allocation] = {}
        """Allocations that nominated gangs will hold once the evicted gangs have left, by uid."""
        self.leaving: set[str] = set()
        """Uids of allocations whose gangs are being evicted."""
        self.overdue: set[str] = set()
        """Uids of allocations whose gangs should have left. They count as staying."""
        self.log: list[int] = []
        self.renewed: list[int] = []
        """Ordinals of nodes whose eligibility or size may have changed, in order."""
        self.withheld = WithheldCapacity(free=self.free, log=self.log)
        self._distinct_of: dict[int, DistinctCapacities] = {}
        """Distinct vectors of `free` and of `capacity`, by the identity of the list."""
        self._mark: tuple[list[Vector], list[Vector], int] | None = None
        """`free`, `used` and the length of the log at the start of the cycle."""
        self._latest: list[tuple[Gang, tuple[str, ...], Allocation]] = []
        """The latest allocation of a whole gang, with its nodes. Copies of the view share it."""

    def copy(self) -> PoolView:
        """Return a view of the same moment that can be changed separately. O(nodes)."""
        clone = copy(self)
        clone.used, clone.free, clone.log = list(self.used), list(self.free), []
        clone._distinct_of = {}  # noqa: SLF001 - a new object of this class
        clone.allocations, clone.nominees = Allocations(self.tree, self.allocations), {}
        clone.withheld, clone.leaving = WithheldCapacity(free=clone.free, log=clone.log), set()
        clone.overdue = set()
        return clone

    def allocation(
        self, *, gang: Gang, nodes: Sequence[str], positions: Iterable[int] | None = None
    ) -> Allocation:
        """Return the allocation of one pod on each named node. A node that is gone holds nothing.

        Args:
            gang: the gang.
            nodes: node names, one for each position.
            positions: the positions of these nodes. None: the first positions.
        """
        # A nominated gang is checked, nominated, checked again and started on the same nodes.
        for known_gang, known_nodes, known in self._latest:
            if positions is None and known_gang is gang and known_nodes is nodes:
                return known
        places: dict[int, int] = {}
        amounts: dict[int, Vector] = {}
        # Equal pods are counted together. A gang may have ten thousand of them.
        for request, names in self._by_request(gang, nodes=nodes, positions=positions):
            pods_on = Counter(map(self.ordinal_of.get, names))
            held: dict[int, Vector] = {}
            """The amounts of equal pods, by their number."""
            for ordinal, pods in pods_on.items():
                if ordinal is None:
                    continue
                amount = held.get(pods)
                if amount is None:
                    amount = held[pods] = tuple([each * pods for each in request])
                before = amounts.get(ordinal)
                places[ordinal] = places.get(ordinal, 0) + pods
                amounts[ordinal] = tuple(map(add, before, amount)) if before else amount
        allocation = Allocation(gang=gang, places=places, amounts=amounts)
        if positions is None and isinstance(nodes, tuple):
            self._latest[:] = [(gang, nodes, allocation)]
        return allocation

    def _by_request(
        self, gang: Gang, *, nodes: Sequence[str], positions: Iterable[int] | None
    ) -> Iterator[tuple[Vector, Sequence[str]]]:
        """Yield each request with the nodes of the pods that make it, in order of position."""
        # Positions behind those of the roles are main pods.
        main = self.axis.request(gang.per_pod)
        if positions is None:
            first = 0
            for role in gang.roles:
                if names := nodes[first : first + role.pods]:
                    yield self.axis.request(role.per_pod), names
                first += role.pods
            yield main, nodes[first:]
        elif not gang.roles:
            yield main, nodes
        else:
            requests, names_of = self.axis.requests(gang), defaultdict[Vector, list[str]](list)
            for position, name in zip(positions, nodes, strict=True):
                names_of[requests[min(position, len(requests) - 1)]].append(name)
            yield from names_of.items()

    def add_admitted(self, admitted: Admitted) -> None:
        """Enter a gang that was admitted before this cycle.

        Its bound pods are in `Node.used` already, so only the reserved ones are taken from `free`.
        """
        whole, reserved, bound = self._allocations_of(admitted)
        if reserved is not None:
            self.shift(reserved, sign=-1)
        self.allocations[admitted.gang.uid] = whole
        for ordinal, amount in bound.amounts.items():
            self.used[ordinal] = tuple(map(sub, self.used[ordinal], amount))

    def remove_admitted(self, admitted: Admitted) -> None:
        """Undo `add_admitted`."""
        _, reserved, bound = self._allocations_of(admitted)
        if reserved is not None:
            self.shift(reserved, sign=1)
        for ordinal, amount in bound.amounts.items():
            self.used[ordinal] = tuple(map(add, self.used[ordinal], amount))
        del self.allocations[admitted.gang.uid]

    def _allocations_of(
        self, admitted: Admitted
    ) -> tuple[Allocation, Allocation | None, Allocation]:
        """Return the allocations of a gang's pods that are not lost: all, reserved, bound."""
        gang, names = admitted.gang, admitted.assignment
        if not admitted.lost and len(admitted.reserved) in (0, len(names)):
            whole = self.allocation(gang=gang, nodes=names)
            nothing = Allocation(gang=gang, places={}, amounts={})
            return (whole, whole, nothing) if admitted.reserved else (whole, None, whole)

        def part(positions: list[int]) -> Allocation:
            return self.allocation(
                gang=gang, nodes=[names[i] for i in positions], positions=positions
            )

        kept = [i for i in range(len(names)) if i not in admitted.lost]
        reserved = [i for i in kept if i in admitted.reserved]
        whole = part(kept)
        if not reserved:
            return whole, None, whole
        if len(reserved) == len(kept):
            return whole, whole, Allocation(gang=gang, places={}, amounts={})
        return whole, part(reserved), part([i for i in kept if i not in admitted.reserved])

    def distinct(self, amounts: Sequence[Vector]) -> DistinctCapacities:
        """Return the distinct vectors of amounts by ordinal.

        Those of `free` and `capacity` are cached.
        """
        if amounts is not self.free and amounts is not self.capacity:
            return DistinctCapacities(amounts=amounts)
        known = self._distinct_of.get(id(amounts))
        if known is None:
            known = self._distinct_of[id(amounts)] = DistinctCapacities(
                amounts=amounts, log=self.log
            )
        return known

    def clear_log(self) -> None:
        """Forget all changes. The caller drops every index that has read the log."""
        self.log.clear()
        self.renewed.clear()
        self.allocations.log.clear()
        self._distinct_of.clear()

    def renew(self, node: Node) -> int:
        """Replace a node by its new value, in the same domains, and return its ordinal."""
        ordinal = self.ordinal_of[node.name]
        before, capacity = self.tree.nodes[ordinal], self.axis.vector(node.allocatable)
        # `used` lacks the bound pods of gangs, and `free` lacks the reserved ones. So the
        # difference between the two values of the node is applied, not the new value.
        more = tuple(map(sub, self.axis.vector(node.used), self.axis.vector(before.used)))
        gain = map(sub, map(sub, capacity, self.capacity[ordinal]), more)
        self.capacity[ordinal] = capacity
        self.used[ordinal] = tuple(map(add, self.used[ordinal], more))
        self.free[ordinal] = tuple(map(add, self.free[ordinal], gain))
        self.tree.renew(ordinal, node)
        self.log.append(ordinal)
        return ordinal

    def mark(self) -> None:
        """Remember the state for `rewind`. O(nodes)."""
        self._mark = (list(self.free), list(self.used), len(self.log))
        self.allocations.mark()

    def rewind(self) -> None:
        """Restore the state at the last `mark`."""
        if self._mark is None:
            return
        free, self.used, length = self._mark
        # Entries stay in the log, because indexes have read them. The
        # restored nodes are appended again.
        touched = set(self.log[length:])
        for ordinal in touched:
            self.free[ordinal] = free[ordinal]
        self.log.extend(touched)
        self.allocations.rewind()
        self.nominees, self.leaving, self.overdue = {}, set(), set()
        self.withheld.clear()
        self._mark = None

    def occupy(self, allocation: Allocation) -> Undo:
        """Give a gang capacity in addition to what it may hold. O(nodes of the allocation)."""
        uid = allocation.gang.uid
        before = self.allocations.get(uid)
        self.allocations[uid] = before + allocation if before else allocation
        self.shift(allocation, sign=-1)

        def undo() -> None:
            self.shift(allocation, sign=1)
            if before is None:
                del self.allocations[uid]
            else:
                self.allocations[uid] = before

        return undo

    def release(self, allocation: Allocation) -> Undo:
        """Take everything from a gang. O(nodes of the allocation).

        If the gang is being evicted, the capacity that nominated gangs need of it is withheld.
        """
        uid = allocation.gang.uid
        del self.allocations[uid]
        self.shift(allocation, sign=1)
        if uid in self.leaving:
            self.withheld.update(allocation.places)

        def undo() -> None:
            self.shift(allocation, sign=-1)
            if uid in self.leaving:
                self.withheld.update(allocation.places)
            self.allocations[uid] = allocation

        return undo

    def remove_terminating(self) -> None:
        """Free the resources of pods that are being deleted and are expected to end soon."""
        # Thousands of nodes that an autoscaler adds differ in their names alone.
        known: dict[tuple[int, int], Vector] = {}
        for ordinal, node in enumerate(self.tree.nodes):
            if node.terminating is not NOTHING:
                ending = (id(node.terminating), id(node.overdue))
                amounts = known.get(ending)
                if amounts is None:
                    amounts = known[ending] = self.axis.vector(node.ending)
                self.used[ordinal] = tuple(map(sub, self.used[ordinal], amounts))
                self.free[ordinal] = tuple(map(add, self.free[ordinal], amounts))

    def shift(self, allocation: Allocation, *, sign: int) -> None:
        """Free the capacity of an allocation (`sign` 1) or take it (-1).

        Nothing else changes.
        """
        change = add if sign > 0 else sub
        for ordinal, amount in allocation.amounts.items():
            self.free[ordinal] = tuple(map(change, self.free[ordinal], amount))
        self.log.extend(allocation.amounts)

    def take_anonymously(self, *, request: Vector, places: Mapping[int, int]) -> Undo:
        """Take capacity for equal pods, `places` by ordinal, without an allocation."""
        if not places:
            return _nothing
        before = {ordinal: self.free[ordinal] for ordinal in places}
        for ordinal, pods in places.items():
            taken = request if pods == 1 else map(mul, request, (pods,) * len(request))
            self.free[ordinal] = tuple(map(sub, self.free[ordinal], taken))
        self.log.extend(places)
        return self._restore(before)

    def close(self, ordinals: Iterable[int]) -> Undo:
        """Set the free capacity of these nodes to zero."""
        before = {ordinal: self.free[ordinal] for ordinal in ordinals}
        nothing = (0,) * len(self.axis.names)
        for ordinal in before:
            self.free[ordinal] = nothing
        self.log.extend(before)
        return self._restore(before)

    def _restore(self, before: Mapping[int, Vector]) -> Undo:
        """Return the undo that sets `free` to its earlier amounts, by ordinal."""

        def undo() -> None:
            for ordinal, free in before.items():
                self.free[ordinal] = free
            self.log.extend(before)

        return undo


def state_of(view: PoolView) -> State | None:
    """Return what is equal while nothing in a pool changes. None while gangs leave or are late."""
    if view.leaving or view.nominees or view.overdue or view.withheld.amounts:
        return None
    return len(view.log), len(view.allocations.log)


def changes_since(view: PoolView, state: State) -> tuple[set[int], set[str]]:
    """Return the nodes, and the keys of the gangs, that may have changed since an earlier state."""
    nodes, allocations = state
    return set(view.log[nodes:]), set(view.allocations.log[allocations:])


def _nothing() -> None:
    """Undo no change."""


def build_views(*, snapshot: Snapshot, axis: ResourceAxis) -> dict[str, PoolView]:
    """Return a view of each pool of the snapshot. O(nodes x levels + pods of admitted gangs)."""
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
            views[admitted.pool].add_admitted(admitted)
    return views
