"""Where a gang goes: one domain if it can, the tightest that fits, and inside it the fullest nodes.

The search climbs from the narrowest level that is asked for to the widest that is allowed, and at
each one takes the domain with the fewest free GPUs that holds the gang: whole racks stay free. Then
role pods are placed where the main ones still fit beside them (`role_placement`), pods whose slice
is already somewhere go there, and the rest is packed (`packing`). Replacements go beside the gang's
other pods first. It counts exactly, so it finds a place whenever one exists. O(domains of the
levels searched + places), roles aside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from drumline.scheduling.placement.frontier import Frontiers, RoleMix
from drumline.scheduling.placement.packing import Packer, PodsByNode, neighbours
from drumline.scheduling.placement.pool_view import PoolView, Vector
from drumline.scheduling.placement.role_placement import RolePlacer
from drumline.scheduling.placement.slicing import NO_ROOM, Anchor, SliceLevel, whole_slices
from drumline.scheduling.placement.slots import SlotIndex
from drumline.scheduling.placement.topology import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How many places are needed and how near to each other they have to be."""

    pods: int
    """Main pods, those that are anchored left out."""
    roles: tuple[int, ...] = ()
    """Pods by role."""
    cuts: tuple[SliceLevel, ...] = ()
    """Slices, broadest first, down to the leaf depth."""
    anchors: tuple[Anchor, ...] = ()
    """Main pods whose slice is somewhere already, broadest first."""
    required_depth: int = 0
    start_depth: int = 0
    """Where the search begins: at the required depth or further down."""
    spread_depth: int = 0
    """Over whose domains they are balanced, where all are placed anew; 0: not at all."""
    beside: tuple[int, ...] = ()
    """Ordinals of the gang's other pods, by pod, when only some places are to be filled: the
    nearest domain to most of them is taken, never outside their required one."""

    @property
    def placed_freely(self) -> bool:
        """Whether anything is left once the anchored pods are placed."""
        return bool(self.pods or any(self.roles))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenNodes:
    """Node ordinals, each list ascending."""

    main: list[int]
    roles: list[list[int]]
    anchored: list[list[int]]
    """In the order of the demand's anchors."""


class CapacityIndex:
    """What a view of a pool has room for: pods of one shape, and the roles beside them."""

    def __init__(self, *, index: SlotIndex, requests: tuple[Vector, ...] = ()) -> None:
        self.index = index
        self.requests = requests
        self._frontiers: dict[tuple[tuple[int, ...], tuple[SliceLevel, ...]], Frontiers] = {}

    def renew(self, ordinal: int) -> None:
        """Look at a node again that is another value now."""
        self.index.renew(ordinal)
        for frontiers in self._frontiers.values():
            frontiers.renew({ordinal})

    def most(self, *, demand: Demand, depth: int) -> Counts:
        """By id: how many main pods fit beside the roles and the anchored ones.

        Negative where not even these fit.
        """
        self.index.catch_up()
        if any(demand.roles):
            frontiers = self.frontiers(demand)
            row = self.index.tree.starts[depth]
            found = np.array([frontiers.of(depth, i)[-1] for i in range(len(row))])
        elif demand.anchors:
            found = self._beside_anchored(demand)[depth]
        else:
            return self.index.rooms(demand.cuts)[depth]
        if demand.anchors and self._beside_anchored(demand)[0][0] < 0:
            return np.full_like(found, NO_ROOM)
        return found

    def frontiers(self, demand: Demand) -> Frontiers:
        """Those of the demand's roles, up to date."""
        key = (demand.roles, demand.cuts)
        found = None if demand.anchors else self._frontiers.get(key)
        if found is None:
            found = Frontiers(
                index=self.index,
                mix=RoleMix(requests=self.requests, pods=demand.roles),
                cuts=demand.cuts,
                anchors=demand.anchors,
            )
            if not demand.anchors:
                self._frontiers[key] = found
        found.catch_up()
        return found

    def _beside_anchored(self, demand: Demand) -> Sequence[Counts]:
        return whole_slices(
            tree=self.index.tree,
            slots=self.index.slots,
            cuts=demand.cuts,
            anchors=demand.anchors,
        )


def candidates(*, index: SlotIndex, demand: Demand, depth: int) -> Counts:
    """Ids of the domains of one depth that the demand may use, fitting or not; ascending."""
    tree = index.tree
    usable = tree.usable(depth, within=demand.required_depth)
    for cut in demand.cuts:
        usable = usable & tree.usable(depth, within=min(cut.depth, depth))
    ids = np.flatnonzero(usable)
    if demand.beside:
        near = neighbours(index=index, beside=demand.beside, depth=depth)
        ids = ids[np.isin(ids, list(near))]
    return ids


def best_domain(*, room: CapacityIndex, demand: Demand, depth: int) -> int | None:
    """The tightest domain of a depth that can hold everything: next to most of the gang's pods."""
    index = room.index
    most = room.most(demand=demand, depth=depth)
    ids = candidates(index=index, demand=demand, depth=depth)
    ids = ids[most[ids] >= demand.pods]
    if not ids.size:
        return None
    if ids.size == 1:
        return int(ids[0])
    gpus = index.gpus[depth][ids]
    if not demand.beside:
        return int(ids[np.lexsort((ids, most[ids], gpus))[0]])
    near = neighbours(index=index, beside=demand.beside, depth=depth)
    away = np.array([-near[i] for i in ids.tolist()])
    return int(ids[np.lexsort((ids, most[ids], gpus, away))[0]])


def choose_nodes(
    *,
    view: PoolView,
    room: CapacityIndex,
    demand: Demand,
    depth: int,
    identity: int,
) -> ChosenNodes:
    """The places in a domain that can hold the demand; the view is as before afterwards."""
    index = room.index
    packer = Packer(
        index=index,
        cuts=demand.cuts,
        beside=demand.beside,
        spread_depth=0 if demand.beside else demand.spread_depth,
    )
    roles: list[list[int]] = [[] for _ in demand.roles]
    anchored: list[list[int]] = [[] for _ in demand.anchors]
    shares = [(depth, identity, demand.pods)] if demand.pods else []
    with ExitStack() as imagined:
        if any(demand.roles):
            seats = RolePlacer(packer=packer, frontiers=room.frontiers(demand))
            found = seats.find(depth=depth, identity=identity, pods=demand.pods)
            roles, shares = found.roles, shares if demand.anchors else found.main
            for request, nodes in zip(room.requests, roles, strict=True):
                imagined.callback(view.imagine(request=request, places=_counted(nodes)))
        for i, anchor in reversed(list(enumerate(demand.anchors))):
            index.catch_up()
            places = packer.fill(depth=anchor.depth, identity=anchor.identity, pods=anchor.pods)
            anchored[i] = listed(places)
            imagined.callback(view.imagine(request=index.shape.request, places=places))
        index.catch_up()
        main: PodsByNode = {}
        for level, domain, pods in shares:
            main |= packer.fill(depth=level, identity=domain, pods=pods)
    return ChosenNodes(main=listed(main), roles=roles, anchored=anchored)


def listed(places: Mapping[int, int]) -> list[int]:
    """Ordinals by pod, ascending: neighbours in the tree sit together."""
    return [i for i in sorted(places) for _ in range(places[i])]


def _counted(nodes: Sequence[int]) -> PodsByNode:
    return {ordinal: nodes.count(ordinal) for ordinal in nodes}
