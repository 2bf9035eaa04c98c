"""A search for places: what is looked for, in which cluster view, and which domains have it.

It is asked for by position: of `pods` main pods and the gang's roles, those that have no node yet.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import mul, sub

from drumline.scheduling.model import Gang
from drumline.scheduling.placement.best_fit import (
    CapacityIndex,
    ChosenNodes,
    Demand,
    best_domain,
    candidates,
    choose_nodes,
)
from drumline.scheduling.placement.demand_variants import DemandVariant
from drumline.scheduling.placement.pool_view import PoolView, Vector
from drumline.scheduling.placement.slicing import NO_ROOM
from drumline.scheduling.placement.slots import PodShape, SlotIndex
from drumline.scheduling.placement.topology import Domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search for places, as it was made: the question that a rejection answers."""

    view: PoolView
    gang: Gang
    question: Hashable
    """Equal for searches to which every cluster view gives the same answer."""
    variants: Sequence[DemandVariant]
    """Ways to ask, best first; the last one asks only for what is required."""
    rooms: Sequence[CapacityIndex]
    """By variant: what there is now."""
    idle: dict[Hashable, CapacityIndex]
    """What there would be if nobody held anything, or only GPUs were scarce, where somebody asked.
    """
    pods: int
    """Main pods of the whole gang once all places are found."""

    @property
    def index(self) -> SlotIndex:
        """Slots by domain of what is required."""
        return self.rooms[-1].index

    @property
    def shape(self) -> PodShape:
        """The main pods."""
        return self.variants[-1].shape

    @property
    def demand(self) -> Demand:
        """What is required."""
        return self.variants[-1].demand

    @property
    def depth(self) -> int:
        """Depth of the domains of which one has to hold all the pods."""
        return self.demand.required_depth

    @property
    def level(self) -> str:
        """Its name, as in `the best rack`."""
        return self.view.tree.level_name(self.depth) or "pool"

    @property
    def vacant(self) -> int:
        """How many main pods have no place."""
        last = self.variants[-1]
        return len(last.main) + sum(map(len, (*last.anchored, *(one for _, one in last.fixed))))

    @property
    def total(self) -> Vector:
        """What all the pods ask for that have no place."""
        rows = [(self.shape.request, self.vacant)]
        rows += list(zip(self.rooms[-1].requests, self.demand.roles, strict=True))
        return tuple(
            sum(request[i] * pods for request, pods in rows) for i in range(len(self.shape.request))
        )

    @property
    def ids(self) -> list[int]:
        """The domains that may hold the pods."""
        return candidates(index=self.index, demand=self.demand, depth=self.depth).tolist()

    @property
    def is_shut_out(self) -> bool:
        """Whether a pod has to go to a certain node that is closed to the gang."""
        return not all(self.index.admitted[ordinal] for ordinal, _ in self.variants[-1].fixed)

    def domain(self, identity: int) -> Domain:
        """A domain of the depth that is searched."""
        return self.view.tree.domain(self.depth, identity)

    def holds(self, identity: int) -> bool:
        """Whether a domain can hold the pods now, in the cluster view that is searched."""
        if self.variants[-1].fixed:
            return bool(self.roomy((identity,)))
        most = self.rooms[-1].most(demand=self.demand, depth=self.depth)
        return bool(most[identity] >= self.demand.pods)

    def roomy(self, ids: Iterable[int]) -> list[int]:
        """Those of some domains that can hold the pods now."""
        with self._settled(self.variants[-1]) as fits:
            if not fits:
                return []
            most = self.rooms[-1].most(demand=self.demand, depth=self.depth)
            return [identity for identity in ids if most[identity] >= self.demand.pods]

    def has_room(self) -> bool:
        """Whether any domain that may hold the pods can hold them now."""
        with self._settled(self.variants[-1]) as fits:
            if not fits:
                return False
            ids = candidates(index=self.index, demand=self.demand, depth=self.depth)
            most = self.rooms[-1].most(demand=self.demand, depth=self.depth)
            return bool((most[ids] >= self.demand.pods).any())

    def find(self) -> list[str] | None:
        """The best places: node names of the positions that are looked for, in their order."""
        demand = self.demand
        first = len(self.view.tree.starts) - 1 if demand.beside else demand.start_depth
        for depth in range(first, demand.required_depth - 1, -1):
            for variant, room in zip(self.variants, self.rooms, strict=True):
                found = self._try(variant=variant, room=room, depth=depth)
                if found is not None:
                    return self._names(variant=variant, found=found)
        return None

    def emptied(self, *, everywhere: bool) -> CapacityIndex:
        """What there would be room for if nobody else held anything.

        A gang's own places never make room, nor do those next to its pods that others of it need.
        """
        if self.gang.uid not in self.view.holders and not self.variants[-1].fixed:
            everywhere = everywhere or all(self.index.admitted)
            key = (self.view.tree.pool.name, self.shape, self.rooms[-1].requests, everywhere)
            if key not in self.idle:
                self.idle[key] = self.room_of(self.view.capacity, everywhere=everywhere)
            return self.idle[key]
        amounts = self.view.emptied_but_for(self.gang)
        fixed = self.variants[-1].fixed
        if fixed:
            amounts = list(amounts)
            for ordinal, positions in fixed:
                amounts[ordinal] = _less(amounts[ordinal], self.shape.request, len(positions))
        return self.room_of(amounts, everywhere=everywhere)

    def room_of(
        self,
        amounts: Sequence[Vector],
        *,
        everywhere: bool = False,
        shape: PodShape | None = None,
        requests: tuple[Vector, ...] | None = None,
        admitted: list[bool] | None = None,
    ) -> CapacityIndex:
        """What there is room for in another cluster view. O(nodes)."""
        index = SlotIndex(
            tree=self.view.tree,
            shape=shape or self.shape,
            free=amounts,
            alike=self.view.alike(amounts),
            everywhere=everywhere,
            admitted=self.index.admitted if admitted is None else admitted,
        )
        return CapacityIndex(
            index=index, requests=self.rooms[-1].requests if requests is None else requests
        )

    def most(self, room: CapacityIndex | None = None) -> list[int]:
        """By id: the main pods that fit beside the others, now or in another cluster view.

        Negative where not even the others fit.
        """
        with self._settled(self.variants[-1] if room is None else None) as fits:
            if not fits:
                return [NO_ROOM] * len(self.view.tree.starts[self.depth])
            room = room or self.rooms[-1]
            return room.most(demand=self.demand, depth=self.depth).tolist()

    def fits_loosely(self) -> bool:
        """Whether the whole pool could hold the pods now, however far apart."""
        loose = replace(
            self.demand, pods=self.vacant, cuts=(), anchors=(), required_depth=0, start_depth=0
        )
        if not (self.depth or self.variants[-1].cuts):
            return False
        shape = replace(self.shape, grain=1, grain_depths=())
        room = self.rooms[-1]
        if shape != self.shape:
            room = self.room_of(self.view.free, shape=shape)
        return bool(room.most(demand=loose, depth=0)[0] >= self.vacant)

    def only_gpus(self) -> CapacityIndex:
        """What there is room for now if only GPUs were scarce."""
        shape = replace(self.shape, request=_gpus(self.shape.request))
        requests = tuple(map(_gpus, self.rooms[-1].requests))
        key = (self.view.tree.pool.name, shape, requests)
        if key not in self.idle:
            index = SlotIndex(
                tree=self.view.tree,
                shape=shape,
                free=self.view.free,
                log=self.view.log,
                admitted=self.index.admitted,
            )
            self.idle[key] = CapacityIndex(index=index, requests=requests)
        return self.idle[key]

    def _try(
        self, *, variant: DemandVariant, room: CapacityIndex, depth: int
    ) -> ChosenNodes | None:
        demand = variant.demand
        with self._settled(variant) as fits:
            if not fits:
                return None
            if not demand.placed_freely:
                if room.most(demand=demand, depth=0)[0] < 0:
                    return None
                return choose_nodes(view=self.view, room=room, demand=demand, depth=0, identity=0)
            identity = best_domain(room=room, demand=demand, depth=depth)
            if identity is None:
                return None
            return choose_nodes(
                view=self.view, room=room, demand=demand, depth=depth, identity=identity
            )

    @contextmanager
    def _settled(self, variant: DemandVariant | None) -> Generator[bool]:
        """Whether pods that have to go to certain nodes fit there; inside, they are there."""
        if variant is None or not variant.fixed:
            yield True
            return
        request = variant.shape.request
        places = {ordinal: len(positions) for ordinal, positions in variant.fixed}
        if not all(self._has(ordinal, request, pods) for ordinal, pods in places.items()):
            yield False
            return
        undo = self.view.imagine(request=request, places=places)
        yield True
        undo()

    def _has(self, ordinal: int, request: Vector, pods: int) -> bool:
        left = _less(self.view.free[ordinal], request, pods)
        short = any(have < 0 and asked for have, asked in zip(left, request, strict=True))
        return self.index.admitted[ordinal] and not short

    def _names(self, *, variant: DemandVariant, found: ChosenNodes) -> list[str]:
        """Node names by position; within a role, slice or gang in the order of the tree."""
        nodes = self.view.tree.nodes
        if not (any(variant.roles) or variant.anchored or variant.fixed):
            return [nodes[ordinal].name for ordinal in found.main]
        where: dict[int, int] = dict(zip(variant.main, found.main, strict=True))
        for positions, ordinals in zip(variant.roles, found.roles, strict=True):
            where.update(zip(positions, ordinals, strict=True))
        for positions, ordinals in zip(variant.anchored, found.anchored, strict=True):
            where.update(zip(positions, ordinals, strict=True))
        for ordinal, positions in variant.fixed:
            where.update(dict.fromkeys(positions, ordinal))
        return [nodes[where[position]].name for position in sorted(where)]


def _less(free: Vector, request: Vector, pods: int) -> Vector:
    return tuple(map(sub, free, map(mul, request, (pods,) * len(request))))


def _gpus(request: Vector) -> Vector:
    return (request[0], *(0 for _ in request[1:]))
