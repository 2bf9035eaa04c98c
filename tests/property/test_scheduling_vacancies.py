"""Repair, relocation and resizing against brute force, for every subset of vacant positions.

The cases are all shapes of up to 6 pods on 6 nodes in 2 blocks of 2 racks, all lawful assignments,
all subsets of positions that are lost, displaced or given up, and all free rooms. One run takes a
slice of them; `make test-all WHAT=properties` takes all and prints their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import islice

import pytest

from drumline_scheduler import Admitted, Gang, Placed, Policy, Resized
from drumline_scheduler.placement.cluster_view import ClusterView
from drumline_scheduler.rejections import Rejection
from drumline_scheduler.snapshot_cache import SnapshotCache
from tests.property.scale import ALL
from tests.property.vacancy_oracle import (
    LEVELS,
    PLACES,
    Shape,
    assignments,
    can_fill,
    free_rooms,
    is_lawful,
    nodes_with,
    shapes,
    subsets,
)
from tests.seeds import seed_of
from tests.unit.scheduler.builders import cluster, run

STRIDE = 16 if ALL else 401
"""Distance between the cases of a shape that one test tries."""
FIRSTS = range(STRIDE) if ALL else [seed_of("VACANCY_SEED") % STRIDE]
"""One run tries every 401st case, from the one that the seed names."""
CYCLE_STRIDE = 61
"""Distance between the tried cases that a whole cycle decides, too."""
PREFERENCES = ((None, None), ("rack", None), (None, "rack"), ("rack", "rack"))
"""Preferred and balanced level: they change no verdict, so they alternate."""

Case = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Assignment, vacant positions, and free slots by node."""


def cases(shape: Shape) -> Iterator[Case]:
    for free in free_rooms():
        for assignment in assignments(shape):
            for vacant in subsets(shape):
                yield assignment, vacant, free


@cache
def view_of(free: tuple[int, ...]) -> ClusterView:
    snapshot = cluster(*nodes_with(free), levels=LEVELS)
    return SnapshotCache().cluster_view(snapshot=snapshot, wanted=frozenset(), policy=Policy())


@pytest.mark.extended(keep=10)
@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize("shape", list(shapes()), ids=str)
def test_vacant_positions_are_filled_if_and_only_if_brute_force_fills_them(
    shape: Shape, first: int
) -> None:
    gangs = [shape.gang(preferred=near, balanced=even) for near, even in PREFERENCES]
    count = 0
    for number, (assignment, vacant, free) in islice(enumerate(cases(shape)), first, None, STRIDE):
        count += 1
        kept = {i: place for i, place in enumerate(assignment) if i not in vacant}
        gang = gangs[number % len(gangs)]
        case = f"{gang.preferred_level=} {gang.balanced_level=} {assignment=} {vacant=} {free=}"
        chosen = found_nodes(gang, kept=kept, free=free)
        assert (chosen is not None) == can_fill(shape, kept=kept, free=free), case
        if chosen is not None:
            new = dict(zip(vacant, chosen, strict=True))
            assert is_lawful(shape, kept | new), case
            used = Counter[int]()
            for position, place in new.items():
                used[place] += shape.gpus_at(position)
            assert all(gpus <= free[place] for place, gpus in used.items()), case
        if count % CYCLE_STRIDE == 0:
            in_a_cycle(shape, gang, (assignment, vacant, free))
    view_of.cache_clear()
    print(f"{shape}: {count} cases")


def found_nodes(gang: Gang, *, kept: dict[int, int], free: tuple[int, ...]) -> list[int] | None:
    """Return the nodes that the engine finds for the vacant positions."""
    names = {position: f"n{place}" for position, place in kept.items()}
    view = view_of(free)
    search = view.search(gang=gang, pool="h100", pods=gang.nodes, kept=names)
    nodes = None if isinstance(search, Rejection) else search.find()
    return None if nodes is None else [int(name[1:]) for name in nodes]


def in_a_cycle(shape: Shape, gang: Gang, case: Case) -> None:
    """Compare repair, relocation and shrinking, as whole cycles, with brute force."""
    assignment, vacant, free = case
    kept = {i: place for i, place in enumerate(assignment) if i not in vacant}
    fills = can_fill(shape, kept=kept, free=free)
    [repair] = decided(gang, case, lost=frozenset(vacant))
    assert isinstance(repair, Placed) == fills, case
    # Displaced pods stay on their nodes, which take no other pods.
    closed = {assignment[position] for position in vacant}
    left = tuple(0 if place in closed else slots for place, slots in enumerate(free))
    moved = decided(gang, (assignment, vacant, left), displaced=frozenset(vacant))
    stays_elsewhere = not closed & set(kept.values())
    if stays_elsewhere:
        assert bool(moved) == can_fill(shape, kept=kept, free=left), case
    shrinks(shape, gang, case, fills=fills)
    grows(shape, gang, case)


def grows(shape: Shape, gang: Gang, case: Case) -> None:
    """Compare the size to which an elastic gang grows with brute force.

    The gang runs with the pods before the first vacant position, in whole slices.
    """
    assignment, vacant, free = case
    unit = shape.slices[0][1] if shape.slices else 1
    size = vacant[0] // unit * unit
    if shape.extras or not size or shape.pods == size:
        return
    elastic = replace(gang, sizes=tuple(range(unit, shape.pods + 1, unit)))
    kept = dict(enumerate(assignment[:size]))
    best = next(
        (
            larger
            for larger in range(shape.pods, size, -unit)
            if can_fill(replace(shape, pods=larger), kept=kept, free=free)
        ),
        None,
    )
    answers = decided(elastic, (assignment[:size], (), free))
    resized = [len(each.kept) + len(each.added) for each in answers if isinstance(each, Resized)]
    assert resized == ([] if best is None else [best]), case


def shrinks(shape: Shape, gang: Gang, case: Case, *, fills: bool) -> None:
    """Compare the size of an elastic gang that lost positions with brute force."""
    assignment, vacant, free = case
    unit = shape.slices[0][1] if shape.slices else 1
    sizes = tuple(range(unit, shape.pods + 1, unit))
    if fills or shape.extras or len(sizes) < 2:
        return
    elastic = replace(gang, sizes=sizes)
    answers = decided(elastic, case, lost=frozenset(vacant))
    whole = [
        position
        for first in range(0, shape.pods, unit)
        for position in range(first, first + unit)
        if not set(vacant) & set(range(first, first + unit))
    ]
    best = next(
        (
            size
            for size in reversed(sizes[:-1])
            if can_fill(
                replace(shape, pods=size),
                kept={new: assignment[old] for new, old in enumerate(whole[:size])},
                free=free,
            )
        ),
        None,
    )
    resized = [len(each.kept) + len(each.added) for each in answers if isinstance(each, Resized)]
    assert resized == ([] if best is None else [best]), case


def decided(
    gang: Gang,
    case: Case,
    *,
    lost: frozenset[int] = frozenset(),
    displaced: frozenset[int] = frozenset(),
) -> list[object]:
    """Return the decisions of a cycle about the gang; nodes have the free GPUs of the case."""
    assignment, _, free = case
    held = Admitted(
        gang=gang,
        pool="h100",
        assignment=tuple(f"n{place}" for place in assignment),
        lost=lost,
        displaced=displaced,
    )
    stay = [0] * len(PLACES)
    for position, place in enumerate(assignment):
        stay[place] += gang.request_of(position).gpus if position not in lost else 0
    rooms = tuple(slots + pods for slots, pods in zip(free, stay, strict=True))
    going = {assignment[position] for position in displaced}
    nodes = [replace(node, unschedulable=i in going) for i, node in enumerate(nodes_with(rooms))]
    decisions = run(cluster(*nodes, levels=LEVELS, running=(held,)))
    return [*decisions.placed, *decisions.resized, *decisions.blocked]
