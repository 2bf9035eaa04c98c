"""The search for roles: equal to all pairs where it is exact, valid and bounded above that."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_scheduler import CycleInput, Gang, Role, Slice, decide
from drumline_scheduler.placement.bin_selection import (
    MOST_STEPS,
    Bin,
    BinChoice,
    BinOption,
    cheapest,
    divided,
    fewest,
)
from drumline_scheduler.placement.eligibility import node_filter_of
from drumline_scheduler.placement.frontier import MOST_PAIRS, RoleMix
from drumline_scheduler.placement.role_placement import bounds_of_shares
from drumline_scheduler.placement.slicing import NO_ROOM
from drumline_scheduler.placement.slots import PodShape
from drumline_scheduler.work import Work
from tests.property import role_oracle
from tests.property.invariants import violations
from tests.property.role_oracle import OracleMix
from tests.unit.scheduler.builders import (
    BEST_EFFORT,
    admitted,
    cluster,
    gang,
    node,
    pod,
    queue,
    room,
    run,
)

PROPERTY = settings(max_examples=150, derandomize=True, deadline=None)
SHAPE = PodShape(request=(1, 2), node_filter=node_filter_of(gang("a")))
_AMOUNTS = st.tuples(st.integers(0, 2), st.integers(0, 3))
_FREE = st.tuples(st.integers(-1, 6), st.integers(-1, 12))


@st.composite
def mixes(draw: st.DrawFn) -> tuple[RoleMix, OracleMix]:
    pods = tuple(draw(st.lists(st.integers(0, 3), min_size=1, max_size=3)))
    requests = tuple(draw(_AMOUNTS) for _ in pods)
    return RoleMix(requests=requests, pods=pods), OracleMix(requests=requests, pods=pods)


@PROPERTY
@given(mixes(), st.lists(st.tuples(_FREE, st.booleans()), min_size=1, max_size=6))
def test_frontiers_are_those_of_all_pairs(
    both: tuple[RoleMix, OracleMix], kinds: list[tuple[tuple[int, int], bool]]
) -> None:
    mix, oracle = both
    nodes = mix.nodes(shape=SHAPE, kinds=kinds)
    asked = [oracle.node(shape=SHAPE, free=free, for_main=main) for free, main in kinds]
    assert nodes == asked
    whole = mix.fold(nodes)
    joined = asked[0]
    for part in asked[1:]:
        joined = oracle.joined(joined, part)
    assert whole == tuple(n if n >= 0 else NO_ROOM for n in joined)
    several = [node for part in nodes[:1] * 5 for node in (part,)]
    assert mix.fold(mix.multiple(nodes[0], 5)) == mix.fold(several)


@st.composite
def bins(draw: st.DrawFn, combinations: int) -> list[Bin]:
    def options() -> list[BinOption]:
        of = draw(st.lists(st.integers(0, combinations - 1), max_size=4, unique=True))
        return [
            BinOption(roles=roles, counts=counts, room=draw(st.integers(0, 5)))
            for counts in (False, True)
            for roles in sorted(of)
            if (counts or roles) and draw(st.booleans())
        ]

    return [Bin(identity=i, options=options()) for i in range(draw(st.integers(1, 10)))]


@PROPERTY
@given(st.data(), mixes(), st.integers(0, 12))
def test_bins_are_chosen_as_from_a_table_of_all_options(
    data: st.DataObject, both: tuple[RoleMix, OracleMix], pods: int
) -> None:
    mix, oracle = both
    given_bins = data.draw(bins(len(mix.combinations)))
    target = len(mix.combinations) - 1
    chosen = fewest(mix=mix, bins=given_bins, target=target, pods=pods)
    assert chosen == role_oracle.fewest(mix=oracle, bins=given_bins, target=target, pods=pods)
    parts = divided(mix=mix, bins=given_bins, target=target, pods=pods)
    assert (parts is None) == (chosen is None)
    if parts is not None:
        assert _holds(mix, parts, target=target) >= pods
    if chosen is not None:
        most = len(given_bins)
        free = cheapest(mix=mix, bins=given_bins, target=target, most=most)
        assert free == role_oracle.cheapest(mix=oracle, bins=given_bins, target=target, most=most)


@PROPERTY
@given(st.lists(st.integers(0, 4), min_size=1, max_size=5), st.data())
def test_shares_are_bounded_by_the_most_even_ones(rooms: list[int], data: st.DataObject) -> None:
    pods = data.draw(st.integers(1, max(1, sum(rooms))))
    shares = [each for each in product(*(range(room + 1) for room in rooms)) if sum(each) == pods]
    if not shares:
        return
    used = [[share for share in each if share] for each in shares]
    count = min(map(len, used))
    used = [each for each in used if len(each) == count]
    bounds = bounds_of_shares(rooms, count=count, pods=pods)
    assert bounds == (max(map(min, used)), min(map(max, used)))


def _holds(mix: RoleMix, choices: Sequence[BinChoice], *, target: int) -> int:
    """The main pods of some choices, which have to make up the role pods."""
    placed = [mix.combinations[choice.option.roles] for choice in choices]
    total = tuple(map(sum, zip(*placed, strict=True))) or mix.combinations[0]
    assert total == mix.combinations[target]
    assert len({choice.identity for choice in choices}) == len(choices)
    return sum(choice.option.room for choice in choices)


def large_gang(random: Random, name: str) -> Gang:
    """A gang with more kinds of pods than are searched for exactly."""
    roles = tuple(
        Role(
            name=f"r{i}", pods=random.randint(8, 30), per_pod=pod(random.choice([0, 0, 1]), cpu=cpu)
        )
        for i, cpu in enumerate(random.sample(range(1, 9), random.randint(3, 5)))
    )
    per = random.choice([1, 2])
    return gang(
        name,
        nodes=random.choice([2, 4]),
        gpus=per,
        roles=roles,
        required_level=random.choice([None, "block", "rack"]),
        slices=random.choice([(), (Slice(level="rack", pods=2),)]),
    )


@pytest.mark.parametrize("seed", range(12))
def test_many_kinds_of_pods_are_placed_validly_or_rejected(seed: int) -> None:
    random = Random(seed)
    nodes = [
        node(
            f"n{i:02}",
            f"b{i // 8}",
            f"r{i // 4}",
            allocatable=room(random.choice([2, 4, 8]), cpu=random.choice([8, 32, 100])),
        )
        for i in range(32)
    ]
    wanted = [large_gang(random, name) for name in "ab"]
    small = gang("small", gpus=1, at=9)
    snapshot = cluster(*nodes, levels=("block", "rack"))
    decisions = run(snapshot, *wanted, small)
    assert violations(snapshot=snapshot, pending=[*wanted, small], decisions=decisions) == ()
    assert small.uid in {placed.uid for placed in decisions.placed}
    for blocked in decisions.blocked:
        assert "too many kinds of pods" in blocked.message


def test_whatever_a_whole_empty_cluster_holds_many_times_is_placed() -> None:
    roles = tuple(Role(name=f"r{i}", pods=256, per_pod=pod(0, cpu=1)) for i in range(8))
    nodes = [node(f"n{i}", f"r{i // 2}", allocatable=room(8, cpu=600, pods=600)) for i in range(4)]
    wanted = gang("a", nodes=8, gpus=2, roles=roles)
    snapshot = cluster(*nodes, levels=("rack",))
    decisions = run(snapshot, wanted)
    assert [placed.uid for placed in decisions.placed] == [wanted.uid]
    assert violations(snapshot=snapshot, pending=[wanted], decisions=decisions) == ()


def test_nobody_is_evicted_for_too_many_kinds_of_pods() -> None:
    roles = tuple(Role(name=f"r{i}", pods=20, per_pod=pod(0, cpu=i)) for i in range(3))
    large = gang("large", gpus=4, roles=roles, priority=1, at=1)
    urgent = gang("urgent", gpus=4, priority=1, at=2)
    snapshot = cluster(
        node("n0", "r0", allocatable=room(4, cpu=500)),
        running=[admitted(gang("low", gpus=4), "n0")],
        queues=(queue("research", 4),),
    )
    assert not run(snapshot, large).preemptions
    assert [each.uid for each in run(snapshot, large, urgent).preemptions] == [urgent.uid]


@pytest.mark.parametrize("roles", [(116,), (11, 11), (1,) * 8, (4, 4, 4)])
def test_ordinary_mixes_are_searched_for_exactly(roles: tuple[int, ...]) -> None:
    assert RoleMix(requests=((0, 1),) * len(roles), pods=roles).is_searchable


def test_the_steps_of_a_search_do_not_depend_on_what_a_tenant_writes() -> None:
    """For a cluster whose nodes all differ."""
    nodes = [node(f"n{i:03}", f"r{i // 8}", allocatable=room(8, cpu=64 + i)) for i in range(64)]
    snapshot = cluster(*nodes, levels=("rack",))
    worst = 0
    for count, pods in [(1, 116), (2, 11), (8, 1), (3, 4), (2, 50), (8, 256), (1, 256)]:
        roles = tuple(Role(name=f"r{i}", pods=pods, per_pod=pod(1, cpu=i)) for i in range(count))
        work = Work()
        cycle = CycleInput(
            snapshot=snapshot, pending=(gang("a", roles=roles),), policy=BEST_EFFORT, now=0.0
        )
        decide(cycle, work=work)
        worst = max(worst, work.steps)
    # Each node is joined at most once at each depth, in three circumstances.
    assert 0 < worst <= 3 * 2 * len(nodes) * MOST_PAIRS + 4 * MOST_STEPS
