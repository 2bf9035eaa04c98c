"""Find the tightest domain that fits a gang, and in it the fullest nodes (best fit).

Among equal domains and nodes, those with less evidence against them come first (`Node.suspicion`).

The search climbs from the narrowest level that is asked for to the widest one that is allowed. At
each level it takes the domain with the fewest free GPUs that holds the gang, so whole racks stay
free. Inside the domain, role pods are placed first, where the main pods still fit beside them
(`role_placement`); pods of a slice that runs already join it; the rest is packed (`packing`).
Replacements for lost pods go beside the gang's other pods. Capacity is counted exactly: if any
placement exists, one is found; only a gang with too many kinds of role pods is searched for in a
simpler way (`roles_in_order`). O(domains of the levels searched + pods), without roles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np

from drumline_scheduler.placement.allocations import Vector
from drumline_scheduler.placement.frontier import MOST_PAIRS, Frontiers, RoleMix, pairs_of
from drumline_scheduler.placement.packing import Packer, PodsByNode, neighbours
from drumline_scheduler.placement.pool_view import PoolView
from drumline_scheduler.placement.role_placement import RolePlacement, RolePlacer
from drumline_scheduler.placement.roles_in_order import RoleBounds, RolesInOrder
from drumline_scheduler.placement.slicing import NO_ROOM, Anchor, SliceLevel, confined, whole_slices
from drumline_scheduler.placement.slots import SlotIndex
from drumline_scheduler.placement.topology import Counts, TopologyTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The number of pods that need a node, and the topology that they need."""

    pods: int
    """Main pods, without the anchored ones."""
    roles: tuple[int, ...] = ()
    """Pods by role."""
    slice_levels: tuple[SliceLevel, ...] = ()
    """Slices, broadest first, down to the leaf depth."""
    anchors: tuple[Anchor, ...] = ()
    """Main pods that join a slice that has pods already, broadest first."""
    required_depth: int = 0
    start_depth: int = 0
    """Depth at which the search begins: the required depth or a deeper one."""
    spread_depth: int = 0
    """Depth over whose domains a new gang is balanced. 0: the gang is not balanced."""
    beside: tuple[int, ...] = ()
    """Node ordinals of the gang's other pods, if only some pods need a node. The search prefers the
    domain with most of these pods, and uses no node outside their required domain."""

    @property
    def placed_freely(self) -> bool:
        """True if there are pods beside the anchored ones."""
        return bool(self.pods or any(self.roles))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenNodes:
    """Node ordinals, each list ascending."""

    main: list[int]
    roles: list[list[int]]
    anchored: list[list[int]]
    """In the order of the demand's anchors."""


class CapacityIndex:
    """Slots of one pool view for pods of one shape, and for the role pods beside them.

    Args:
        index: slots of the main pods.
        requests: what a pod of each role requests.
        renewed: nodes that were replaced by other values; `renewed` reads entries that are appended
            later.
    """

    def __init__(
        self,
        *,
        index: SlotIndex,
        requests: tuple[Vector, ...] = (),
        renewed: Sequence[int] = (),
    ) -> None:
        self.index = index
        self.requests = requests
        self._renewed, self._read = renewed, len(renewed)
        self._frontiers: dict[tuple[tuple[int, ...], tuple[SliceLevel, ...]], Frontiers] = {}
        self._in_order: dict[tuple[tuple[int, ...], tuple[SliceLevel, ...]], RolesInOrder] = {}
        self._bounds: RoleBounds | None = None

    @property
    def cells(self) -> int:
        """Numbers that the frontiers keep in memory."""
        return sum(frontiers.cells for frontiers in self._frontiers.values())

    def forget(self) -> None:
        """Drop the frontiers; they are computed again when they are needed."""
        self._frontiers.clear()
        self._in_order.clear()
        self._bounds = None

    def renewed(self) -> CapacityIndex:
        """Count the nodes again whose values were replaced since the last call; return itself."""
        if self._read < len(self._renewed):
            ordinals = set(self._renewed[self._read :])
            self._read = len(self._renewed)
            self.index.renew(ordinals)
            for frontiers in self._frontiers.values():
                frontiers.outdate(ordinals)
            for in_order in self._in_order.values():
                in_order.renew()
            self._bounds = None
        return self

    def most(self, *, demand: Demand, depth: int) -> Counts:
        """Return the number of main pods that fit, by domain id.

        The role pods and anchored pods are placed first. The number is negative if even these do
        not fit.
        """
        # 1. Count slots in whole slices beside the anchored pods.
        self.index.catch_up()
        rooms: Sequence[Counts] = self._beside_anchored(demand) if demand.anchors else []
        # 2. Count main slots beside the role pods. Without roles, step 1 has the result.
        if any(demand.roles):
            most = self._beside_roles(demand=demand, depth=depth)
        elif demand.anchors:
            most = rooms[depth]
        else:
            return self.index.slots_in_slices(demand.slice_levels)[depth]
        if not demand.anchors:
            return most
        # 3. Limit each domain so that pods anchored around it still fit. If they do not fit in the
        # pool, no domain can hold the gang.
        if rooms[0][0] < 0:
            return np.full_like(most, NO_ROOM)
        return self._confined(demand=demand, depth=depth, most=most, rooms=rooms)

    def may_hold(self, *, demand: Demand, depth: int) -> bool:
        """Return whether a domain of a depth may hold a demand. False is certain, True is not.

        Main pods alone are counted, which costs little.
        """
        if demand.anchors or not any(demand.roles):
            return True
        self.index.catch_up()
        slots = self.index.slots_in_slices(demand.slice_levels)[depth]
        return bool(slots.size and slots.max() >= demand.pods)

    def _beside_roles(self, *, demand: Demand, depth: int) -> Counts:
        if not self.is_exact(demand):
            return self.in_order(demand).most(depth)
        if self._bounds is None:
            self._bounds = RoleBounds(index=self.index, requests=self.requests)
        could = self._bounds.could_hold(pods=demand.roles, depth=depth)
        if not could.any():  # saves the frontiers
            return np.full(len(could), NO_ROOM, dtype=np.int64)
        frontiers = self.frontiers(demand)
        return np.array([frontiers.frontier(depth, i)[-1] for i in range(len(could))])

    def main_slots_to_keep(self, *, demand: Demand, depth: int, identity: int) -> int:
        """Return the main slots in a domain that its role pods must leave free.

        These are slots for the main pods, and for anchored pods that do not fit around the domain.

        Args:
            demand: the pods; the domain can hold them.
            depth: depth of the domain.
            identity: id of the domain.
        """
        rooms = self._beside_anchored(demand) if demand.anchors else ()
        slots, enough = demand.pods, demand.pods + sum(anchor.pods for anchor in demand.anchors)
        while slots < enough:
            most = np.full(len(self.index.tree.starts[depth]), slots)
            confined_most = self._confined(demand=demand, depth=depth, most=most, rooms=rooms)
            if confined_most[identity] >= demand.pods:
                break
            slots += 1
        return slots

    def is_exact(self, demand: Demand) -> bool:
        """Return whether the search finds a placement of this demand whenever one exists."""
        return pairs_of(demand.roles) <= MOST_PAIRS

    def in_order(self, demand: Demand) -> RolesInOrder:
        """Return the up-to-date placement of the demand's roles one after another."""
        key = (demand.roles, demand.slice_levels)
        # A repair depends on the gang's own pods, so its result cannot be shared with other gangs.
        is_repair = bool(demand.anchors or demand.beside)
        in_order = None if is_repair else self._in_order.get(key)
        if in_order is None:
            in_order = RolesInOrder(
                index=self.index,
                requests=self.requests,
                pods=demand.roles,
                slice_levels=demand.slice_levels,
                anchors=demand.anchors,
                beside=demand.beside,
            )
            if not is_repair:
                self._in_order[key] = in_order
        return in_order

    def frontiers(self, demand: Demand) -> Frontiers:
        """Return the up-to-date frontiers for the roles of a demand."""
        key = (demand.roles, demand.slice_levels)
        frontiers = None if demand.anchors else self._frontiers.get(key)
        if frontiers is None:
            frontiers = Frontiers(
                index=self.index,
                mix=RoleMix(requests=self.requests, pods=demand.roles),
                slice_levels=demand.slice_levels,
                anchors=demand.anchors,
            )
            if not demand.anchors:
                self._frontiers[key] = frontiers
        frontiers.catch_up()
        return frontiers

    def _confined(
        self, *, demand: Demand, depth: int, most: Counts, rooms: Sequence[Counts]
    ) -> Counts:
        return confined(
            tree=self.index.tree,
            depth=depth,
            most=most,
            rooms=rooms,
            slice_levels=demand.slice_levels,
            anchors=demand.anchors,
        )

    def _beside_anchored(self, demand: Demand) -> Sequence[Counts]:
        return whole_slices(
            tree=self.index.tree,
            slots=self.index.slots,
            slice_levels=demand.slice_levels,
            anchors=demand.anchors,
        )


def candidates(*, index: SlotIndex, demand: Demand, depth: int) -> Counts:
    """Return the ids of domains of a depth that a demand may use, ascending.

    Whether the demand fits there is not checked.

    Args:
        index: slots that are free on each node and domain.
        demand: pods and devices of the gang.
        depth: level of the topology tree. 0 is the whole pool.
    """
    tree = index.tree
    ids = tree.usable_ids(depth, within=demand.required_depth)
    for slice_level in demand.slice_levels:
        ids = ids[tree.usable(depth, within=min(slice_level.depth, depth))[ids]]
    if demand.beside:
        near = neighbours(index=index, beside=demand.beside, depth=depth)
        ids = np.array([i for i in ids.tolist() if i in near], dtype=np.int64)
    return ids


def best_domain(*, capacity: CapacityIndex, demand: Demand, depth: int) -> int | None:
    """Return the tightest domain of a depth that holds the demand; None if no domain does.

    A repair prefers the domain with most of the gang's other pods.

    Args:
        capacity: number of pods that fit into each domain.
        demand: pods and devices of the gang.
        depth: level of the topology tree. 0 is the whole pool.
    """
    index = capacity.index
    if not capacity.may_hold(demand=demand, depth=depth):
        return None
    most = capacity.most(demand=demand, depth=depth)
    ids = candidates(index=index, demand=demand, depth=depth)
    ids = ids[most[ids] >= demand.pods]
    if not ids.size:
        return None
    if ids.size == 1:
        return int(ids[0])
    # Order: fewest free GPUs, then fewest slots, then least suspicion, then id. `lexsort` takes the
    # most significant key last.
    gpus = index.gpus[depth][ids]
    suspicion = index.tree.suspicion_in(depth, ids)
    if not demand.beside:
        return int(ids[np.lexsort((ids, suspicion, most[ids], gpus))[0]])
    near = neighbours(index=index, beside=demand.beside, depth=depth)
    away = np.array([-near[i] for i in ids.tolist()])
    return int(ids[np.lexsort((ids, suspicion, most[ids], gpus, away))[0]])


def choose_nodes(
    *, view: PoolView, capacity: CapacityIndex, demand: Demand, domain: tuple[int, int]
) -> ChosenNodes:
    """Return the nodes in a domain that can hold the demand.

    1. Role pods go where the main pods still fit beside them.
    2. Pods that are anchored inside the domain go into the domain of their slice, deepest first.
    3. The main pods without an anchor are packed into the domain.
    4. Pods that are anchored around or beside the domain use the remaining slots there.

    Each phase takes its slots from the view. All slots are given back at the end.

    Example: a rack has 2 slots, another rack of its block has 1. A pod is anchored to the block.
    The 2 main pods fill the rack, so the anchored pod goes to the other rack, not before them.

    Args:
        view: view of the pool; it is unchanged afterwards.
        capacity: free capacity in the view for the demand.
        demand: the pods and their topology; the domain can hold them.
        domain: depth and id.
    """
    index = capacity.index
    packer = Packer(
        index=index,
        slice_levels=demand.slice_levels,
        beside=demand.beside,
        spread_depth=0 if demand.beside else demand.spread_depth,
    )
    depth, identity = domain
    roles: list[list[int]] = [[] for _ in demand.roles]
    anchored: list[list[int]] = [[] for _ in demand.anchors]
    shares = [(depth, identity, demand.pods)] if demand.pods else []
    # Every phase registers its undo in `taken`, so leaving the block restores the view.
    with ExitStack() as taken:
        if any(demand.roles):
            placement = _place_roles(
                capacity=capacity, demand=demand, domain=domain, packer=packer, shares=shares
            )
            roles, shares = placement.roles, shares if demand.anchors else placement.main
            for request, nodes in zip(capacity.requests, roles, strict=True):
                taken.callback(view.take_anonymously(request=request, places=_by_node(nodes)))
        main: PodsByNode = {}

        def fill(share_depth: int, share_identity: int, pods: int) -> PodsByNode:
            index.catch_up()
            places = packer.fill(depth=share_depth, identity=share_identity, pods=pods)
            if demand.anchors:  # otherwise nothing is placed after the main pods
                taken.callback(view.take_anonymously(request=index.shape.request, places=places))
            return places

        # Anchors inside the domain come before the free pods, because they have no choice.
        inside, outside = _split_anchors(demand, tree=index.tree, domain=domain)
        for i, anchor in inside:
            anchored[i] = listed(fill(anchor.depth, anchor.identity, anchor.pods))
        for share in shares:
            main |= fill(*share)
        for i, anchor in outside:
            anchored[i] = listed(fill(anchor.depth, anchor.identity, anchor.pods))
    return ChosenNodes(main=listed(main), roles=roles, anchored=anchored)


def _place_roles(
    *,
    capacity: CapacityIndex,
    demand: Demand,
    domain: tuple[int, int],
    packer: Packer,
    shares: list[tuple[int, int, int]],
) -> RolePlacement:
    """Return the nodes of role pods. If roles are placed in order, `shares` has the main pods."""
    depth, identity = domain
    if not capacity.is_exact(demand):
        nodes = capacity.in_order(demand).nodes(depth=depth, identity=identity)
        return RolePlacement(roles=nodes, main=shares)
    role_placer = RolePlacer(packer=packer, frontiers=capacity.frontiers(demand))
    pods = capacity.main_slots_to_keep(demand=demand, depth=depth, identity=identity)
    return role_placer.find(depth=depth, identity=identity, pods=pods)


def _split_anchors(
    demand: Demand, *, tree: TopologyTree, domain: tuple[int, int]
) -> tuple[list[tuple[int, Anchor]], list[tuple[int, Anchor]]]:
    """Return the anchors inside a domain and the other anchors, by index, deepest first."""
    depth, identity = domain
    inside: list[tuple[int, Anchor]] = []
    outside: list[tuple[int, Anchor]] = []
    for i, anchor in reversed(list(enumerate(demand.anchors))):
        start = tree.span(anchor.depth, anchor.identity).start
        is_inside = anchor.depth >= depth and tree.domain_of[depth][start] == identity
        (inside if is_inside else outside).append((i, anchor))
    return inside, outside


def listed(places: Mapping[int, int]) -> list[int]:
    """Return node ordinals by pod, ascending.

    So neighbouring ranks are neighbours in the topology tree.
    """
    return list(chain.from_iterable(repeat(i, places[i]) for i in sorted(places)))


def _by_node(nodes: Sequence[int]) -> PodsByNode:
    return dict(Counter(nodes))
