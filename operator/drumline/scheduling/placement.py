"""Where a gang goes: one domain if it can, the tightest that fits, and inside it the fullest nodes.

The search climbs from the narrowest level that is asked for to the widest that is allowed, and at
each one takes the domain with the fewest free GPUs that holds the gang: whole racks stay free.
Then it descends: at each level as few domains as possible (largest first, the last one tightest),
and on the nodes partly used ones before empty ones. Replacements go beside the gang's other pods
first: as many as fit into the domains that hold most of these, the rest as above. It counts
exactly, so it finds a place whenever one exists. O(domains of the levels searched + places).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from drumline.scheduling.slots import SlotIndex

Places = dict[int, int]
"""Pods by node ordinal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How many places are needed and how near to each other they have to be."""

    pods: int
    required_depth: int = 0
    start_depth: int = 0
    """Where the search begins: at the required depth or further down."""
    beside: tuple[int, ...] = ()
    """Ordinals of the gang's other pods, by pod, when only some places are to be filled."""
    """With these, the nearest domain to most of them is taken, never outside their required one."""


def find_places(*, index: SlotIndex, demand: Demand) -> Places | None:
    """The best places for the demand, or None if there are none."""
    index.catch_up()
    found = _anchored(index=index, demand=demand) if demand.beside else _free(index, demand)
    if found is None:
        return None
    depth, identity = found
    return _fill(index=index, demand=demand, depth=depth, identity=identity, pods=demand.pods)


def candidates(*, index: SlotIndex, demand: Demand, depth: int) -> list[int]:
    """Ids of the domains of one depth that the demand may use, fitting or not."""
    row = index.tree.domains[depth]
    near = survivors(index=index, demand=demand, depth=depth) if demand.beside else range(len(row))
    return sorted(i for i in near if row[i].known and row[i].known_at(demand.required_depth))


def survivors(*, index: SlotIndex, demand: Demand, depth: int) -> Counter[int]:
    """How many of the gang's other pods each domain of a depth holds."""
    return Counter(index.tree.domain_of[depth][ordinal] for ordinal in demand.beside)


def _free(index: SlotIndex, demand: Demand) -> tuple[int, int] | None:
    for depth in range(demand.start_depth, demand.required_depth - 1, -1):
        slots, gpus = index.slots[depth], index.gpus[depth]
        fitting = [
            (gpus[i], slots[i], i)
            for i in candidates(index=index, demand=demand, depth=depth)
            if slots[i] >= demand.pods
        ]
        if fitting:
            return depth, min(fitting)[2]
    return None


def _anchored(*, index: SlotIndex, demand: Demand) -> tuple[int, int] | None:
    for depth in range(len(index.tree.domains) - 1, demand.required_depth - 1, -1):
        slots, gpus = index.slots[depth], index.gpus[depth]
        near = survivors(index=index, demand=demand, depth=depth)
        fitting = [
            (-near[i], gpus[i], slots[i], i)
            for i in candidates(index=index, demand=demand, depth=depth)
            if slots[i] >= demand.pods
        ]
        if fitting:
            return depth, min(fitting)[3]
    return None


def _fill(*, index: SlotIndex, demand: Demand, depth: int, identity: int, pods: int) -> Places:
    """Spread pods that are known to fit over a domain."""
    if depth > index.tree.leaf_depth:
        return {index.tree.domains[depth][identity].start: pods}
    if depth == index.tree.leaf_depth:
        return _fill_nodes(buckets=index.buckets[identity], pods=pods)
    places: Places = {}
    below, children = depth + 1, list(index.tree.domains[depth][identity].children)
    shares: list[tuple[int, int]] = []
    if demand.beside:
        shares = _beside(index=index, demand=demand, children=children, depth=below, pods=pods)
        pods -= sum(share for _, share in shares)
        children = [i for i in children if i not in dict(shares)]
    shares += _split(index=index, depth=below, children=children, pods=pods)
    for child, share in shares:
        places |= _fill(index=index, demand=demand, depth=below, identity=child, pods=share)
    return places


def _beside(
    *, index: SlotIndex, demand: Demand, children: Iterable[int], depth: int, pods: int
) -> list[tuple[int, int]]:
    """As many pods as fit where the gang's other pods are, most of these first."""
    near = survivors(index=index, demand=demand, depth=depth)
    row, slots = index.tree.domains[depth], index.slots[depth]
    shares: list[tuple[int, int]] = []
    for child in sorted(children, key=lambda i: (-near[i], i)):
        share = min(pods, slots[child]) if near[child] and row[child].known else 0
        if share:
            shares.append((child, share))
            pods -= share
    return shares


def _split(
    *, index: SlotIndex, depth: int, children: Iterable[int], pods: int
) -> Iterable[tuple[int, int]]:
    """The fewest domains that hold the pods, known ones first, the last one the tightest."""
    slots, gpus, row = index.slots[depth], index.gpus[depth], index.tree.domains[depth]
    if not pods:
        return
    left = sorted((not row[i].known, -slots[i], gpus[i], i) for i in children if slots[i])
    for position, (_, room, _, child) in enumerate(left):
        if -room < pods:
            yield child, -room
            pods += room
            continue
        rest = [entry[3] for entry in left[position:] if -entry[1] >= pods]
        yield min(rest, key=lambda i: (not row[i].known, gpus[i], slots[i], i)), pods
        return


def _fill_nodes(*, buckets: Mapping[tuple[int, int], list[int]], pods: int) -> Places:
    """Fullest nodes first, but one node for all that is left as soon as one can hold it."""
    places: Places = {}
    left = {cell: iter(buckets[cell]) for cell in sorted(buckets)}
    largest = max(slots for _, slots in left)
    while pods:
        holds_all = (c for c in left if c[1] >= pods) if pods <= largest else ()
        cell = next(iter(holds_all), None) or next(iter(left))
        ordinal = next(left[cell], None)
        if ordinal is None:
            del left[cell]
            continue
        places[ordinal] = min(pods, cell[1])
        pods -= places[ordinal]
    return places
