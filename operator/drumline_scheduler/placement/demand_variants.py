"""Express the request of a gang in terms of the topology tree of a pool.

Preferred slices may be dropped, the broadest first. Each possible request is a `DemandVariant`. The
first has everything, the last only the required slices. Slices of a level at which every domain is
a single node become the grain of the pod shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drumline_scheduler.model import Gang, Slice
from drumline_scheduler.placement.domain_selection import Demand
from drumline_scheduler.placement.eligibility import node_filter_of
from drumline_scheduler.placement.pool_view import PoolView
from drumline_scheduler.placement.slicing import Anchor, SliceLevel, anchored
from drumline_scheduler.placement.slots import PodShape
from drumline_scheduler.placement.topology import TopologyTree


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandVariant:
    """One way to request nodes, and the positions that it is for."""

    shape: PodShape
    demand: Demand
    slice_levels: tuple[SliceLevel, ...]
    """All requested slices, including those inside nodes."""
    main: Sequence[int]
    """Positions of the main pods without an anchor or a fixed node."""
    roles: tuple[Sequence[int], ...]
    """Positions by role."""
    anchored: tuple[Sequence[int], ...] = ()
    """Positions by anchor."""
    fixed: tuple[tuple[int, Sequence[int]], ...] = ()
    """Node ordinals and positions of main pods that must share a node with other pods of their
    slice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VacantPositions:
    """The positions of a gang that have a node, and the positions that need one."""

    kept: Mapping[int, int]
    """Node ordinals by position, of the pods that stay on nodes that exist."""
    main: Sequence[int]
    """Positions of main pods without a node. A range if no main pod has a node."""
    roles: tuple[Sequence[int], ...]
    """Positions without a node, by role."""


def vacant_positions(
    *, gang: Gang, pods: int, kept: Mapping[int, str], view: PoolView
) -> VacantPositions:
    """Divide the positions of a gang into those with a node and those without.

    Args:
        gang: the gang.
        pods: main pods of the whole gang.
        kept: node names by position, for the pods that keep their node.
        view: view of the pool.
    """

    def vacant(positions: range) -> Sequence[int]:
        return tuple(i for i in positions if i not in kept) if kept else positions

    roles: list[Sequence[int]] = []
    begin = 0
    for role in gang.roles:
        roles.append(vacant(range(begin, begin + role.pods)))
        begin += role.pods
    # A kept pod on a node that no longer exists is not vacant, but it also anchors nothing.
    ordinals = {i: view.ordinal_of[name] for i, name in kept.items() if name in view.ordinal_of}
    return VacantPositions(
        kept=ordinals,
        main=vacant(range(begin, begin + pods)),
        roles=tuple(roles),
    )


def variants(
    *, gang: Gang, view: PoolView, vacant: VacantPositions, required: int, preferred: int
) -> list[DemandVariant]:
    """Return the ways to request the vacant slots, best first; empty if the slices are unknown.

    Args:
        gang: the gang.
        view: view of the pool.
        vacant: the positions to fill.
        required: depth of the required level.
        preferred: depth of the preferred level.
    """
    tree = view.tree
    ways = [
        _variant(
            gang=gang,
            view=view,
            vacant=vacant,
            slices=slices,
            required=required,
            start=max(required, preferred),
            spread=tree.depth_of(gang.balanced_level or "") or 0,
        )
        for slices in _with_fewer_preferred(gang.slices)
    ]
    return [way for way in ways if way is not None]


def _with_fewer_preferred(slices: tuple[Slice, ...]) -> list[tuple[Slice, ...]]:
    """Return all slices, then one broadest preferred slice less in each step."""
    rows = [slices]
    while any(not piece.required for piece in rows[-1]):
        broadest = next(i for i, piece in enumerate(rows[-1]) if not piece.required)
        rows.append(rows[-1][:broadest] + rows[-1][broadest + 1 :])
    return rows


def _variant(
    *,
    gang: Gang,
    view: PoolView,
    vacant: VacantPositions,
    slices: Sequence[Slice],
    required: int,
    start: int,
    spread: int,
) -> DemandVariant | None:
    tree, extras = view.tree, gang.extras
    # 1. Levels as depths. Slices inside single nodes become the grain of the shape.
    slice_levels = [
        SliceLevel(depth=tree.depth_of(piece.level) or 0, pods=piece.pods) for piece in slices
    ]
    shape = _shape(gang=gang, view=view, slice_levels=slice_levels)
    # 2. Group vacant main pods by the domain that their slice is anchored to. None: no anchor.
    ranks = {i - extras: ordinal for i, ordinal in vacant.kept.items() if i >= extras}
    positions: dict[tuple[int, int] | None, Sequence[int]] = {None: vacant.main}
    if ranks and slice_levels:
        groups = anchored(
            tree=tree,
            slice_levels=slice_levels,
            required=required,
            kept=ranks,
            vacant=[i - extras for i in vacant.main],
        )
        if groups is None:
            return None
        positions = {
            place: tuple(rank + extras for rank in members) for place, members in groups.items()
        }
    # 3. Anchors deeper than the leaves mean one certain node, the others a domain.
    free = positions.pop(None, ())
    places = sorted(place for place in positions if place is not None)
    wide = [place for place in places if place[0] <= tree.leaf_depth]
    nodes = [place for place in places if place[0] > tree.leaf_depth]
    demand = Demand(
        pods=len(free),
        roles=tuple(len(positions) for positions in vacant.roles),
        slice_levels=tuple(each for each in slice_levels if each.depth <= tree.leaf_depth),
        anchors=tuple(
            Anchor(depth=depth, identity=identity, pods=len(positions[depth, identity]))
            for depth, identity in wide
        ),
        required_depth=required,
        start_depth=start,
        spread_depth=spread,
        beside=tuple(sorted(vacant.kept.values())),
    )
    return DemandVariant(
        shape=shape,
        demand=demand,
        slice_levels=tuple(slice_levels),
        main=free,
        roles=vacant.roles,
        anchored=tuple(positions[place] for place in wide),
        fixed=tuple((tree.span(*place).start, positions[place]) for place in nodes),
    )


def _shape(*, gang: Gang, view: PoolView, slice_levels: Sequence[SliceLevel]) -> PodShape:
    """Return the shape of the main pods. Slices deeper than the leaves become its grain."""
    tree: TopologyTree = view.tree
    deep = [slice_level for slice_level in slice_levels if slice_level.depth > tree.leaf_depth]
    return PodShape(
        request=view.axis.request(gang.per_pod),
        node_filter=node_filter_of(gang),
        grain=deep[0].pods if deep else 1,
        grain_depths=tuple(slice_level.depth for slice_level in deep),
    )
