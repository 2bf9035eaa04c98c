"""The engine against an oracle that tries every way to seat a gang on a small cluster.

The oracle knows no slots, no tree and no index: it enumerates all multisets of nodes and adds up
requests. Gang by gang, in the documented order, it is told what the engine decided before and asked
whether a place existed (never a false no), which domain was the tightest (best fit), how many
racks are enough (few domains) and which reason is the true one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_scheduler import (
    Admitted,
    Blocked,
    BlockReason,
    Gang,
    Node,
    Placed,
    Queue,
    Resources,
    Snapshot,
    Taint,
    TaintEffect,
    Toleration,
)
from drumline_scheduler.decisions import FOREIGN_PODS
from tests.property.invariants import violations
from tests.unit.scheduler.builders import after, cluster, gang, pod, room, run

pytestmark = pytest.mark.extended(keep=2)

PROPERTY = settings(max_examples=300, derandomize=True, deadline=None)
LEVELS = ("block", "rack", "host")
NOMINAL = 6
TAINT = Taint(key="gpu", effect=TaintEffect.NO_SCHEDULE)
WAITING = {
    BlockReason.INSUFFICIENT_GPUS,
    BlockReason.INSUFFICIENT_RESOURCES,
    BlockReason.TOPOLOGY_DOES_NOT_FIT,
}


@st.composite
def nodes(draw: st.DrawFn, *, labelled: bool = False) -> list[Node]:
    """Up to 6 nodes of 2 blocks of 2 racks; rack names repeat in both blocks."""
    missing = [] if labelled else [""]
    nodes_drawn: list[Node] = []
    for i in range(draw(st.integers(1, 6))):
        gpus = draw(st.sampled_from([1, 2, 4]))
        nodes_drawn.append(
            Node(
                name=f"n{i}",
                pool="h100",
                domains=(
                    draw(st.sampled_from(["b0", "b1", *missing])),
                    draw(st.sampled_from(["r0", "r1", *missing])),
                    f"n{i}",
                ),
                allocatable=room(gpus, cpu=draw(st.sampled_from([4, 64])), pods=4),
                used=Resources(gpus=draw(st.sampled_from([0, 0, 0, 1, 3])), cpu_millis=1000),
                unschedulable=draw(st.sampled_from([False, False, False, True])),
                taints=draw(st.sampled_from([(), (), (TAINT,)])),
            )
        )
    return nodes_drawn


@st.composite
def gangs(draw: st.DrawFn, *, name: str) -> Gang:
    level = st.sampled_from([None, None, *LEVELS])
    return gang(
        name,
        nodes=draw(st.integers(1, 4)),
        at=draw(st.integers(0, 2)),
        priority=draw(st.integers(0, 1)),
        per_pod=pod(draw(st.integers(0, 3)), cpu=draw(st.sampled_from([0, 1, 3]))),
        required_level=draw(level),
        preferred_level=draw(level),
        tolerations=draw(st.sampled_from([(), (Toleration(key="gpu"),)])),
    )


@st.composite
def waiting(draw: st.DrawFn) -> list[Gang]:
    return [draw(gangs(name=f"g{i}")) for i in range(draw(st.integers(1, 3)))]


def snapshot_of(nodes_drawn: list[Node]) -> Snapshot:
    return cluster(
        *nodes_drawn, levels=LEVELS, queues=(Queue(name="research", nominal={"h100": NOMINAL}),)
    )


def usable(item: Gang, node: Node) -> bool:
    tainted = bool(node.taints) and not item.tolerations
    return node.ready and not node.unschedulable and not tainted


def free_of(snapshot: Snapshot) -> dict[str, Resources]:
    free = {node.name: node.allocatable - node.used for node in snapshot.nodes}
    for held in snapshot.admitted:
        for index in held.reserved:
            free[held.assignment[index]] -= held.gang.per_pod
    return free


def path_at(node: Node, level: str | None) -> tuple[str, ...] | None:
    """The node's domain path at a level; None where it has no label there."""
    if level is None:
        return ()
    path = node.domains[: LEVELS.index(level) + 1]
    return path if path[-1] else None


def seatings(
    item: Gang, nodes_drawn: list[Node], free: dict[str, Resources], level: str | None
) -> Iterator[tuple[Node, ...]]:
    """Every multiset of nodes that can hold the gang inside one domain of the level."""
    for seats in combinations_with_replacement(nodes_drawn, item.nodes):
        paths = {path_at(node, level) for node in seats}
        if len(paths) != 1 or None in paths:
            continue
        load = Counter(node.name for node in seats)
        if all(item.per_pod.times(count).fits_in(free[name]) for name, count in load.items()):
            yield seats


def feasible(
    item: Gang, nodes_drawn: list[Node], free: dict[str, Resources], level: str | None
) -> bool:
    return next(seatings(item, nodes_drawn, free, level), None) is not None


def never_fits(item: Gang, everything: list[Node]) -> set[BlockReason]:
    """The reasons of a gang that the empty pool cannot hold."""
    if not everything:
        return {BlockReason.POOL_WITHOUT_NODES}
    offer = [node.allocatable.gpus > 0 for node in everything]
    if item.gpus and not any(offer):
        return {BlockReason.RESOURCE_NOT_OFFERED}
    reasons = {BlockReason.EXCEEDS_CLUSTER}
    if item.gpus and not all(offer):
        reasons.add(BlockReason.RESOURCE_NOT_OFFERED)
    levels = [item.required_level, *(each.level for each in item.slices)]
    if any(path_at(node, level) is None for node in everything for level in filter(None, levels)):
        reasons.add(BlockReason.LEVEL_LABEL_MISSING)
    return reasons


def true_reason(item: Gang, snapshot: Snapshot) -> set[BlockReason]:
    """The reasons that brute force allows for a gang that was rejected."""
    usage = sum(held.gang.gpus for held in snapshot.admitted)
    everything = list(snapshot.nodes)
    empty = {node.name: node.allocatable for node in everything}
    if item.gpus > NOMINAL:
        return {BlockReason.EXCEEDS_QUOTA}
    if not feasible(item, everything, empty, item.required_level):
        return never_fits(item, everything)
    if item.gpus and usage + item.gpus > NOMINAL:
        return {BlockReason.QUOTA_EXHAUSTED}
    open_nodes = [node for node in everything if usable(item, node)]
    if not feasible(item, open_nodes, empty, item.required_level):
        return {BlockReason.NODES_UNAVAILABLE}
    if feasible(item, open_nodes, free_of(snapshot), None):
        return {BlockReason.TOPOLOGY_DOES_NOT_FIT}
    gpus_only = {
        name: Resources(gpus=free.gpus, cpu_millis=1 << 40, pods=1 << 40)
        for name, free in free_of(snapshot).items()
    }
    level = item.required_level  # only domains that could hold it if they were empty count
    roomy = {path_at(seats[0], level) for seats in seatings(item, open_nodes, empty, level)}
    open_nodes = [node for node in open_nodes if path_at(node, level) in roomy]
    if feasible(item, open_nodes, gpus_only, level):
        return {BlockReason.INSUFFICIENT_RESOURCES}
    return {BlockReason.INSUFFICIENT_GPUS}


def in_turn(pending: list[Gang]) -> list[Gang]:
    return sorted(pending, key=lambda each: (-each.priority, each.queued_at, each.uid))


@PROPERTY
@given(nodes_drawn=nodes(), pending=waiting())
def test_yes_and_no_are_what_brute_force_says(nodes_drawn: list[Node], pending: list[Gang]) -> None:
    snapshot = snapshot_of(nodes_drawn)
    decisions = run(snapshot, *pending)
    assert violations(snapshot=snapshot, pending=pending, decisions=decisions) == ()
    answers = {each.uid: each for each in (*decisions.placed, *decisions.blocked)}
    for item in in_turn(pending):
        usage = sum(held.gang.gpus for held in snapshot.admitted)
        open_nodes = [node for node in nodes_drawn if usable(item, node)]
        in_quota = not item.gpus or usage + item.gpus <= NOMINAL
        fits = in_quota and feasible(item, open_nodes, free_of(snapshot), item.required_level)
        match answers[item.uid]:
            case Placed() as placed:
                assert fits
                snapshot = after(snapshot, [item], replace(decisions, placed=(placed,), blocked=()))
            case Blocked() as blocked:
                assert not fits
                assert blocked.reason in true_reason(item, snapshot)


@PROPERTY
@given(nodes_drawn=nodes(), item=gangs(name="g"))
def test_the_tightest_domain_of_the_narrowest_level_that_fits_is_taken(
    nodes_drawn: list[Node], item: Gang
) -> None:
    snapshot = snapshot_of(nodes_drawn)
    decisions = run(snapshot, item)
    if not decisions.placed:
        return
    free = free_of(snapshot)
    open_nodes = [node for node in nodes_drawn if usable(item, node)]
    wide_to_narrow = [None, *LEVELS]
    asked = max(
        wide_to_narrow.index(item.required_level), wide_to_narrow.index(item.preferred_level)
    )
    if item.required_level:  # a rack counts only where its required block is known as well
        open_nodes = [node for node in open_nodes if path_at(node, item.required_level)]
    level = next(
        wide_to_narrow[depth]
        for depth in range(asked, -1, -1)
        if feasible(item, open_nodes, free, wide_to_narrow[depth])
    )
    gpus: Counter[tuple[str, ...]] = Counter()
    for node in open_nodes:
        if (path := path_at(node, level)) is not None:
            gpus[path] += max(0, free[node.name].gpus)
    fitting = {path_at(seats[0], level) for seats in seatings(item, open_nodes, free, level)}
    by_name = {node.name: node for node in nodes_drawn}
    taken = {path_at(by_name[name], level) for name in decisions.placed[0].assignment}
    assert len(taken) == 1
    assert gpus[taken.pop() or ()] == min(gpus[path or ()] for path in fitting)


@PROPERTY
@given(nodes_drawn=nodes(labelled=True), item=gangs(name="g"))
def test_a_gang_is_spread_over_as_few_blocks_as_can_hold_it_and_its_indices_are_contiguous(
    nodes_drawn: list[Node], item: Gang
) -> None:
    item = replace(item, required_level=None, preferred_level=None)
    snapshot = snapshot_of(nodes_drawn)
    decisions = run(snapshot, item)
    if not decisions.placed:
        return
    by_name = {node.name: node for node in nodes_drawn}
    open_nodes = [node for node in nodes_drawn if usable(item, node)]
    paths = [by_name[name].domains for name in decisions.placed[0].assignment]
    fewest = min(
        len({node.domains[0] for node in seats})
        for seats in seatings(item, open_nodes, free_of(snapshot), None)
    )
    assert len({path[0] for path in paths}) == fewest
    assert paths == sorted(paths)


@PROPERTY
@given(nodes_drawn=nodes(), earlier=waiting(), item=gangs(name="late"))
def test_the_named_blockers_make_room_by_leaving_and_each_of_them_is_necessary(
    nodes_drawn: list[Node], earlier: list[Gang], item: Gang
) -> None:
    empty = snapshot_of(nodes_drawn)
    snapshot = after(empty, earlier, run(empty, *earlier))
    blocked = next(iter(run(snapshot, item).blocked), None)
    if blocked is None or blocked.reason not in {*WAITING, BlockReason.QUOTA_EXHAUSTED}:
        return
    assert blocked.blockers
    if blocked.remedy is not None:
        assert run(without(snapshot, blocked.blockers), item).placed
    for kept in blocked.blockers:
        rest = tuple(key for key in blocked.blockers if key != kept)
        best = run(without(snapshot, rest), item).blocked
        if blocked.reason is BlockReason.QUOTA_EXHAUSTED or item.required_level is None:
            assert best


def without(snapshot: Snapshot, keys: tuple[str, ...]) -> Snapshot:
    left: tuple[Admitted, ...] = tuple(
        held for held in snapshot.admitted if held.gang.key not in keys
    )
    nodes_drawn = snapshot.nodes
    if FOREIGN_PODS in keys:
        nodes_drawn = tuple(replace(node, used=Resources()) for node in nodes_drawn)
    return replace(snapshot, nodes=nodes_drawn, admitted=left)


@PROPERTY
@given(nodes_drawn=nodes(), pending=waiting(), data=st.data())
def test_the_order_of_the_input_decides_nothing(
    nodes_drawn: list[Node], pending: list[Gang], data: st.DataObject
) -> None:
    late = gang("late", nodes=2)
    snapshot = snapshot_of(nodes_drawn)
    snapshot = after(snapshot, pending, run(snapshot, *pending))
    held = {held.gang.uid for held in snapshot.admitted}
    left = [each for each in (*pending, late) if each.uid not in held]
    shuffled = replace(
        snapshot,
        nodes=tuple(data.draw(st.permutations(snapshot.nodes))),
        admitted=tuple(data.draw(st.permutations(snapshot.admitted))),
    )
    assert run(shuffled, *data.draw(st.permutations(left))) == run(snapshot, *left)
