"""A cycle whose time is over: what still happens, what waits, and who is next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from random import Random
from typing import Any

import pytest

from drumline_scheduler import (
    Admitted,
    BlockReason,
    CycleCache,
    CycleInput,
    Decisions,
    Gang,
    MoveBudget,
    NodeOffer,
    Policy,
    Queue,
    Role,
    Snapshot,
    WaitingRule,
    decide,
)
from drumline_scheduler import cycle as cycle_module
from drumline_scheduler.admission import Admission
from drumline_scheduler.faults import Stage
from drumline_scheduler.model.surplus_gang import with_surplus
from drumline_scheduler.preemption.victims import MAX_EXACT_CANDIDATES
from drumline_scheduler.queueing.deferral import TRY_BUDGET
from drumline_scheduler.work import CyclePart, TimeLimit, Work
from tests.unit.scheduler.builders import (
    STRICT,
    admitted,
    cluster,
    following,
    gang,
    node,
    pod,
    queue,
    racks,
    ticking,
)

POLICIES = [Policy(waiting=rule) for rule in WaitingRule]


class Clock:
    """A clock that advances when it is set, or by a step with each reading."""

    def __init__(self, *, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def over() -> Work:
    """The work of a cycle whose time is over before it begins."""
    return Work(limit=TimeLimit(clock=Clock(step=1.0), seconds=0.0))


def begun(part: CyclePart, *, seconds: float) -> tuple[Clock, Work]:
    """A clock and the work of a cycle that begins a part at time 0."""
    clock = Clock()
    work = Work(limit=TimeLimit(clock=clock, seconds=seconds))
    work.clear()
    work.begin(part)
    return clock, work


def late() -> Work:
    """The work of a cycle whose time is over when it comes to waiting gangs, but not by much."""
    times = chain([0.0, 0.0], repeat(1.1))
    return Work(limit=TimeLimit(clock=lambda: next(times), seconds=1.0))


def cycles(
    snapshot: Snapshot,
    pending: Sequence[Gang],
    *,
    count: int,
    policy: Policy | None = None,
    work: Callable[[], Work] = over,
) -> list[Decisions]:
    """Cycles without any time, on a cluster in which nothing is carried out.

    Their cache has rejections that still hold.
    """
    made: list[Decisions] = []
    cache = CycleCache()
    if policy is None:
        given = CycleInput(snapshot=snapshot, pending=tuple(pending), policy=Policy(), now=0.0)
        decide(given, cache=cache)
    for _ in range(count):
        before = made[-1] if made else Decisions()
        given = CycleInput(
            snapshot=snapshot,
            pending=tuple(pending),
            policy=policy or Policy(),
            now=0.0,
            try_budget=TRY_BUDGET,
        )
        given = following(given, before)
        made.append(decide(given, cache=cache, work=work()))
        assert made[-1] == decide(replace(given, late_from=made[-1].late_at)), "a replay differs"
    return made


def tried(decisions: Decisions) -> set[str]:
    """Names of the gangs with an answer of their own."""
    late = {each.uid for each in decisions.blocked if each.reason is BlockReason.NOT_TRIED}
    answers = (*decisions.placed, *decisions.preemptions, *decisions.blocked)
    return {each.key.split("/")[1] for each in answers if each.uid not in late}


def different(count: int) -> list[Gang]:
    """Gangs of which no two are equal, and none fits."""
    return [
        gang(f"g{index}", at=float(index), gpus=64, per_pod=pod(64, cpu=index))
        for index in range(count)
    ]


def costly(gangs: Sequence[Gang]) -> list[Gang]:
    """These gangs with a role, so that their searches cost more than the least."""
    return [replace(each, roles=(Role(name="r", pods=1, per_pod=pod(0)),)) for each in gangs]


def test_each_part_has_its_share_of_the_time() -> None:
    clock, work = begun(CyclePart.PROMISES, seconds=10.0)
    clock.now = 2.9
    assert not work.is_late("a")
    clock.now = 3.1
    assert work.is_late("b")
    assert work.is_late("c")
    work.begin(None)
    clock.now = 9.0
    assert not work.is_late("repair"), "no time counts"
    work.begin(CyclePart.ADMIT)
    clock.now = 11.4
    assert not work.is_late("a"), "a quarter of the time is left, however long the rest took"
    clock.now = 11.6
    assert not work.is_late("a"), "it is not asked again"
    assert work.is_late("b")
    work.begin(CyclePart.NEEDS)
    assert work.is_late("a"), "nothing is left for these"
    assert work.late_at == ("promises: b", "admit: b", "needs: a")


def test_only_the_first_attempt_at_a_cycle_has_a_clock() -> None:
    """Later ones end at the same places: what differs between them is not a matter of time."""
    clock, work = begun(CyclePart.ADMIT, seconds=1.0)
    clock.now = 2.0
    assert work.is_late("b")
    work.clear()
    work.begin(CyclePart.ADMIT)
    clock.now = 9.0
    assert not work.is_late("a")
    assert work.is_late("b")
    assert work.late_at == ("admit: b",)


def test_privileged_gangs_have_a_quarter_more_of_the_time() -> None:
    clock, work = begun(CyclePart.ADMIT, seconds=10.0)
    clock.now = 12.4
    assert not work.is_overdue("a")
    work.note_start()
    clock.now = 12.5
    assert not work.is_overdue("b"), "a start allows more time"
    clock.now = 12.6
    assert work.is_overdue("c")
    assert work.late_at == ("admit: a", "admit: beyond c")
    work.begin(CyclePart.NEEDS)
    clock.now = 0.0
    assert not work.is_overdue("a")
    # A replay has no clock.
    again = Work()
    again.late_from = work.late_at
    again.clear()
    again.begin(CyclePart.ADMIT)
    assert [again.is_overdue(place) for place in "abc"] == [False, False, True]


def test_a_start_allows_more_time() -> None:
    clock, work = begun(CyclePart.ADMIT, seconds=1.0)
    clock.now = 1.0004
    work.note_start()
    assert not work.is_late("admit a")
    clock.now = 1.002
    assert work.is_late("admit b")


@pytest.mark.parametrize("policy", POLICIES)
def test_without_time_each_cycle_tries_the_gang_that_waits_longest_for_it(policy: Policy) -> None:
    def made(gangs: Sequence[Gang], work: Callable[[], Work]) -> list[set[str]]:
        line = cycles(cluster(*racks()), gangs, count=6, policy=policy, work=work)
        return [tried(each) for each in line]

    if policy.waiting is WaitingRule.STRICT:
        # The first one that was not tried holds the rest back.
        assert made(different(5), over)[0] == {"g0", "g2", "g3", "g4"}
        return
    turns = [{"g1", "g2", "g3", "g4"}, {"g0"}]
    assert made(different(5), late) == [{"g0"}, *turns, *turns, turns[0]]
    turns = [{"g0"}, {"g1"}, {"g2"}, {"g3"}, {"g4"}]
    assert made(costly(different(5)), over) == [*turns, {"g0"}]


@pytest.mark.parametrize("seed", range(4))
def test_gangs_of_many_namespaces_take_turns_in_time(seed: int) -> None:
    """The time suffices for a part of the line, and each cycle begins at its front."""
    order = Random(seed).sample(range(60), 60)
    line = [
        gang(f"g{at}", at=float(at), per_pod=pod(64, cpu=index), key=f"team-{index}/g{at}")
        for at, index in enumerate(order)
    ]

    def slow() -> Work:
        return Work(limit=TimeLimit(clock=Clock(step=0.025), seconds=1.0))

    made = cycles(cluster(*racks()), line, count=7, policy=Policy(), work=slow)
    seen = [len(tried(each)) for each in made]
    assert max(seen) < 40
    # One place for each number of gangs for which time is kept, however many gangs ask.
    near = [sum("near" in place for place in each.late_at) for each in made]
    assert 0 < max(near) <= 16
    assert set().union(*map(tried, made)) == {f"g{at}" for at in range(60)}


def test_all_members_of_a_group_wait_together() -> None:
    members = [replace(each, group="g", group_gangs=3) for each in different(3)]
    alone = replace(different(1)[0], key="training/alone", uid="uid-alone", queued_at=-1.0)
    first, second = cycles(cluster(*racks()), [alone, *members], count=2)
    assert tried(first) == {"alone"}
    assert {"g0", "g1", "g2"} <= tried(second)


def test_a_gang_that_fits_starts_although_others_took_the_time() -> None:
    fits = gang("fits", at=1000.0)
    made = cycles(cluster(*racks()), [*different(3), fits], count=4)
    assert {each.key for decisions in made for each in decisions.placed} == {fits.key}


def test_victims_are_not_searched_when_the_time_is_over() -> None:
    small = [admitted(gang(f"s{index}", gpus=2, priority=-1), f"n{index}") for index in range(2)]
    snapshot = cluster(*racks(count=1), running=small, queues=(queue("research", 100),))
    large = [
        gang(name, gpus=2, priority=5, at=at, per_pod=pod(2, cpu=int(at)))
        for at, name in enumerate(["a", "b"])
    ]
    first, second = cycles(snapshot, large, count=2)
    assert {each.key for each in first.preemptions} == {"training/a"}
    assert {each.key for each in second.preemptions} == {"training/b"}


def test_repairs_and_relocations_are_not_put_off() -> None:
    """A broken gang holds capacity without progress, and a job that waits may take its place."""
    broken = [
        admitted(gang(f"b{index}", nodes=2, gpus=2), f"n{index}", "gone", lost=frozenset({1}))
        for index in range(2)
    ]
    going = admitted(gang("d", gpus=2), "n2", displaced=frozenset({0}))
    snapshot = cluster(*racks(count=3), running=[*broken, going])
    (made,) = cycles(snapshot, different(3), count=1)
    assert {each.key for each in made.placed} == {"training/b0", "training/b1", "training/d"}


def test_growth_and_moves_wait_for_a_cycle_with_time() -> None:
    # A gang in each of three racks: two of them move into the third. Another pool has room to grow.
    lone = [admitted(gang(f"l{index}", gpus=2), f"n{2 * index}") for index in range(3)]
    elastic = admitted(gang("e", nodes=2, gpus=2, sizes=(1, 2)), "m0", pool="a100")
    small = [node(f"m{index}", "rack-0", gpus=2, pool="a100") for index in range(2)]
    given = CycleInput(
        snapshot=cluster(
            *racks(count=3, gpus=4), *small, running=[*lone, elastic], pools=("h100", "a100")
        ),
        pending=(),
        policy=Policy(moves=MoveBudget()),
        now=0.0,
        try_budget=TRY_BUDGET,
    )
    whole, late = decide(given), decide(given, work=over())
    assert whole.resized
    assert whole.moves
    assert not late.resized
    assert not late.moves


def test_nodes_are_requested_for_the_gang_that_was_put_off() -> None:
    snapshot = replace(
        cluster(node("n0", "r0", gpus=8, used=pod(8))),
        offers=(NodeOffer(node=node("new", "r1", gpus=8), pool_limit=100),),
    )
    asking = [gang(f"a{index}", gpus=8, per_pod=pod(8, cpu=index)) for index in range(2)]
    first, second, third = cycles(snapshot, asking, count=3)
    assert first.needs_nodes == ()
    needs = [[each.key for each in decisions.needs_nodes] for decisions in (second, third)]
    assert needs == [["training/a1"], ["training/a0"]]


def test_a_rejection_that_was_cut_short_is_not_kept() -> None:
    """Its blockers are missing, so the next cycle finds them."""
    holds = admitted(gang("holds", nodes=2, gpus=2), "n0", "n1")
    waits = [gang("first", gpus=64), gang("waits", gpus=2, at=1.0)]
    given = CycleInput(
        snapshot=cluster(*racks(count=1), running=[holds]),
        pending=tuple(waits),
        policy=Policy(),
        now=0.0,
        try_budget=TRY_BUDGET,
    )
    cache = CycleCache()
    first = decide(given, cache=cache, work=over())
    second = decide(replace(given, put_off=first.put_off), cache=cache, work=over())
    answer = {each.key: each for each in second.blocked}["training/waits"]
    assert answer.reason is not BlockReason.NOT_TRIED
    assert answer.blockers == ()
    third = decide(given, cache=cache)
    assert {each.key: each for each in third.blocked}["training/waits"].blockers


@pytest.mark.parametrize("roles", [False, True])
def test_the_time_is_asked_for_again_while_blockers_are_searched(*, roles: bool) -> None:
    """The search with roles costs more, so each of its tries asks."""
    holds = admitted(gang("holds", nodes=2, gpus=2), "n0", "n1")
    waits = [gang("waits", gpus=2)]
    given = CycleInput(
        snapshot=cluster(*racks(count=1), running=[holds]),
        pending=tuple(costly(waits) if roles else waits),
        policy=Policy(),
        now=0.0,
        try_budget=TRY_BUDGET,
        put_off=("uid-waits",),
    )
    named = dict[str, bool]()
    for questions in range(12):
        cache = CycleCache()
        made = decide(given, cache=cache, work=ticking(questions))
        named[made.late_at[0] if made.late_at else ""] = bool(made.blocked[0].blockers)
        assert decide(replace(given, late_from=made.late_at)) == made
        # A rejection that the time cut short is not kept.
        assert decide(given, cache=cache).blocked[0].blockers
    assert not named["admit: explain uid-waits h100"]
    assert not named["admit: explain uid-waits h100 blockers"]
    tries = {place for place in named if "blockers " in place}
    assert bool(tries) is roles
    assert not any(map(named.__getitem__, tries))
    assert named[""]


def test_a_remedy_waits_for_a_cycle_with_time() -> None:
    """Neither the cache nor the kept answer has the rejection without it."""
    given = CycleInput(
        snapshot=cluster(*racks(count=1)),
        pending=(gang("waits", gpus=64),),
        policy=Policy(),
        now=0.0,
        try_budget=TRY_BUDGET,
    )
    helped = dict[str, bool]()
    for questions in range(8):
        cache = CycleCache()
        made = decide(given, cache=cache, work=ticking(questions))
        helped[made.late_at[0] if made.late_at else ""] = made.blocked[0].remedy is not None
        assert decide(replace(given, late_from=made.late_at)) == made
        assert decide(given, cache=cache).blocked[0].remedy is not None
    assert not helped["admit: explain uid-waits h100 remedy"]
    assert helped[""]


def test_some_gangs_of_other_namespaces_are_tried_whatever_the_time() -> None:
    line = different(43)
    several = [
        replace(each, key=f"team-{index % 7}/m{index}", uid=f"uid-m{index}")
        for index, each in enumerate(line[:42])
    ]
    last = [replace(line[42], key="small/last", uid="uid-last")]
    waiting = [*several, *last]
    first, second = cycles(cluster(*racks()), waiting, count=2, policy=Policy(), work=late)
    assert tried(first) == {f"m{index}" for index in range(6)}
    assert tried(second) >= {"m6", "last"}, "the longest put off, and the smallest namespace"
    first, second = cycles(cluster(*racks()), costly(waiting), count=2, policy=Policy())
    assert tried(first) == {"m0"}
    assert tried(second) == {"m1", "last"}, "these two, however much time is over"
    first, _ = cycles(cluster(*racks()), waiting, count=2, policy=Policy())
    assert tried(first) == {f"m{index}" for index in range(6)}, "these cost least"


def test_a_gang_without_victims_is_answered_when_no_time_for_them_is_left() -> None:
    """For one of another queue, victims are searched in a later cycle."""
    full = [admitted(gang(f"r{index}", gpus=2), f"n{index}") for index in range(2)]
    queues = (queue("research", 100), Queue(name="calm", nominal={"h100": 100}))
    waiting = [
        replace(
            gang(f"w{index}", gpus=2, queue=name, at=float(index), per_pod=pod(2, cpu=index)),
            key=f"team-{index}/w{index}",
        )
        for index, name in enumerate(["calm", "research", "calm"])
    ]
    snapshot = cluster(*racks(count=1), running=full, queues=queues)
    (made,) = cycles(snapshot, waiting, count=1, policy=Policy())
    assert tried(made) == {"w0", "w2"}


def test_answers_of_an_earlier_cycle_wait_as_well() -> None:
    """A replay has no cache, so it decides the same."""
    snapshot, cache = cluster(*racks()), CycleCache()
    known = [replace(each, queued_at=100.0) for each in different(3)]
    new = [gang(f"n{index}", gpus=64, per_pod=pod(64, cpu=9 + index)) for index in range(2)]
    given = CycleInput(
        snapshot=snapshot, pending=tuple(known), policy=Policy(), now=0.0, try_budget=TRY_BUDGET
    )
    decide(given, cache=cache)
    given = replace(given, pending=(*new, *known))
    late = decide(given, cache=cache, work=over())
    assert tried(late) == {"n0"}
    assert late == decide(replace(given, late_from=late.late_at))


def test_a_cycle_without_a_budget_is_never_late() -> None:
    given = CycleInput(
        snapshot=cluster(*racks()), pending=tuple(different(3)), policy=Policy(), now=0.0
    )
    assert decide(given, work=over()) == decide(given)


def test_no_fewer_new_nodes_are_tried_when_the_time_is_over() -> None:
    """The request is not larger than what the gang takes."""
    snapshot = replace(
        cluster(node("n0", "r0", gpus=8)),
        offers=(NodeOffer(node=node("new", "r1", gpus=8), pool_limit=100),),
    )
    wide = gang("wide", nodes=4, gpus=4, required_level="rack")
    given = CycleInput(
        snapshot=snapshot, pending=(wide,), policy=Policy(), now=0.0, try_budget=TRY_BUDGET
    )
    tried: list[int] = []

    def noted(cycle: CycleInput, **named: Any) -> Decisions:
        tried.append(len(cycle.snapshot.nodes))
        return decided(cycle, **named)

    decided = cycle_module._cycle
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cycle_module, "_cycle", noted)
        whole, in_time = decide(given), len(tried)
        tried.clear()
        late = decide(replace(given, put_off=(wide.uid,)), work=over())
    assert [each.nodes for each in whole.needs_nodes] == [2]
    assert [each.nodes for each in late.needs_nodes] == [2]
    assert len(tried) < in_time


def test_one_order_of_a_group_is_tried_for_victims_when_the_time_is_over() -> None:
    small = [admitted(gang(f"s{index}", gpus=2, priority=-1), f"n{index}") for index in range(4)]
    snapshot = cluster(*racks(count=2), running=small, queues=(queue("research", 100),))
    members = [
        gang(name, nodes=nodes, gpus=2, priority=5, group="g", group_gangs=2)
        for name, nodes in (("a", 1), ("b", 2))
    ]
    given = CycleInput(
        snapshot=snapshot,
        pending=tuple(members),
        policy=Policy(),
        now=0.0,
        try_budget=TRY_BUDGET,
    )
    orders: list[tuple[str, ...]] = []
    victims_in = Admission._victims_in

    def noted(self: Admission, order: Sequence[Gang]) -> object:
        orders.append(tuple(each.uid for each in order))
        return victims_in(self, order)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Admission, "_victims_in", noted)
        whole, in_time = decide(given), len(orders)
        orders.clear()
        late = decide(given, work=over())
    assert {each.key for each in late.preemptions} == {"training/a", "training/b"}
    assert late.preemptions == whole.preemptions
    assert len(orders) < in_time


@pytest.mark.parametrize("policy", [Policy(), STRICT], ids=["best effort", "strict"])
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("questions", "most"), [(0, 45), (12, 15)])
def test_the_only_queue_with_quota_has_its_turn_behind_many_without(
    policy: Policy, *, own: bool, questions: int, most: int
) -> None:
    heads, free = 40, 30
    queues = tuple(Queue(name=f"q{index}", nominal={"h100": 1}) for index in range(heads))
    running = [
        admitted(gang(f"r{index}", queue=f"q{index}"), "n0")
        for index in range(heads)
        if index != free
    ]
    waiting = [
        gang(
            f"w{index}",
            key=f"{f'ns{index}' if own else 'training'}/w{index}",
            queue=f"q{index}",
            at=float(index),
        )
        for index in range(heads)
    ]
    snapshot = cluster(node("n0", "rack-0", gpus=100), queues=queues, running=running)
    before = Decisions()
    for _ in range(most):
        given = CycleInput(
            snapshot=snapshot,
            pending=tuple(waiting),
            policy=policy,
            now=0.0,
            try_budget=TRY_BUDGET,
        )
        given = following(given, before)
        before = decide(given, work=ticking(questions))
        if before.placed:
            break
    assert [each.uid for each in before.placed] == [f"uid-w{free}"]


@pytest.mark.parametrize("questions", range(14))
def test_a_replay_of_a_group_ends_at_the_same_question(questions: int) -> None:
    """The orders of a group ask the same questions again."""
    small = [admitted(gang(f"s{index}", gpus=2, priority=-1), f"n{index}") for index in range(4)]
    given = CycleInput(
        snapshot=cluster(*racks(count=2), running=small, queues=(queue("research", 100),)),
        pending=(
            gang("head", gpus=64, priority=9),
            *(
                gang(name, nodes=nodes, gpus=2, priority=5, group="g", group_gangs=2)
                for name, nodes in (("a", 1), ("b", 2))
            ),
        ),
        policy=Policy(),
        now=0.0,
        try_budget=TRY_BUDGET,
    )
    decisions = decide(given, work=ticking(questions))
    assert decisions == decide(replace(given, late_from=decisions.late_at))


@pytest.mark.parametrize("questions", range(10))
def test_a_replay_without_kept_answers_ends_at_the_same_question(questions: int) -> None:
    """The answer of an earlier cycle holds in one pool and not in the other."""
    pools = ("a", "b")
    queues = (Queue(name="research", nominal=dict.fromkeys(pools, 100)),)
    held = [admitted(gang(f"h{index}", gpus=2), f"a{index}", pool="a") for index in range(2)]
    nodes = [node(f"a{index}", "r", pool="a") for index in range(2)]
    nodes.append(node("b0", "r", pool="b", unschedulable=True))
    full = cluster(*nodes, queues=queues, running=held, pools=pools)
    waits = gang("x", gpus=2, per_pod=pod(2, cpu=1))
    first = CycleInput(
        snapshot=full, pending=(waits,), policy=Policy(), now=0.0, try_budget=TRY_BUDGET
    )
    cache = CycleCache()
    decide(first, cache=cache)
    a0, a1, b0 = full.nodes
    changed = (a0, replace(a1, used=a1.used + pod(0, cpu=1)), replace(b0, unschedulable=False))
    given = replace(
        first,
        snapshot=replace(full, nodes=changed),
        pending=(gang("head", gpus=64, priority=5), waits),
    )
    decisions = decide(given, cache=cache, work=ticking(questions))
    assert decisions == decide(replace(given, late_from=decisions.late_at))


def test_a_replay_of_a_fault_finds_the_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempts after the first one have no clock, so they reach the gang again."""
    attempted = Admission._try

    def raising(self: Admission, item: Gang, **named: Any) -> Any:
        if item.uid == "uid-bad":
            raise RuntimeError("boom")
        return attempted(self, item, **named)

    monkeypatch.setattr(Admission, "_try", raising)
    given = CycleInput(
        snapshot=cluster(*racks()),
        pending=(*different(6), gang("bad", at=99.0)),
        policy=Policy(),
        now=0.0,
        try_budget=TRY_BUDGET,
    )
    for questions in (0, 20, 40, 1000):
        decisions = decide(given, work=ticking(questions))
        assert [(each.uid, each.stage) for each in decisions.faults] in (
            [],
            [("uid-bad", Stage.ADMIT)],
        )
        assert decisions == decide(replace(given, late_from=decisions.late_at))
    assert decisions.faults


def held(name: str, place: str, *, gpus: int, cost: float) -> Admitted:
    item = gang(name, gpus=gpus, priority=-1)
    return admitted(item, place, gpu_seconds_at_risk=cost)


@pytest.mark.parametrize("idle", [0, MAX_EXACT_CANDIDATES])
def test_victims_are_not_improved_when_the_time_is_over(idle: int) -> None:
    """With few candidates all sets are tried, with many some are exchanged: `a` and `c` do."""
    running = [
        held("a", "n0", gpus=3, cost=3.0),
        held("b", "n0", gpus=4, cost=4.4),
        held("c", "n1", gpus=2, cost=2.4),
        *(held(f"z{index}", f"z{index}", gpus=1, cost=1000.0) for index in range(idle)),
    ]
    nodes = [node(f"n{index}", "r0", gpus=8) for index in range(4)]
    nodes += [node(f"z{index}", "r0", gpus=8) for index in range(idle)]
    snapshot = cluster(*nodes, running=running, queues=(queue("research", 9 + idle),))
    item = gang("x", gpus=5, priority=5)
    given = CycleInput(
        snapshot=snapshot,
        pending=(item,),
        policy=Policy(restart_seconds=0.0, priority_seconds=0.0),
        now=0.0,
        try_budget=TRY_BUDGET,
        put_off=(item.uid,),
    )
    made = [decide(given, work=work) for work in (Work(), over())]
    names = [{victim.key[-1] for victim in each.preemptions[0].victims} for each in made]
    assert names == [{"a", "c"}, {"a", "b"}]
    assert decide(replace(given, late_from=made[1].late_at)) == made[1]


def test_one_set_of_victims_is_searched_when_the_time_is_over() -> None:
    """Each of three gangs shares its two nodes. All of them cost 12, and three others cost 15."""
    ring = [
        admitted(
            gang(f"r{index}", nodes=2, gpus=1, priority=-1),
            f"n{index}",
            f"n{(index + 1) % 3}",
            gpu_seconds_at_risk=4.0,
        )
        for index in range(3)
    ]
    alone = [held(f"s{index}", f"n{index}", gpus=2, cost=5.0) for index in range(3, 6)]
    dear = [held(f"z{index}", f"z{index}", gpus=2, cost=1000.0) for index in range(10)]
    nodes = [*racks(count=1, nodes=6), *(node(f"z{index}", "r1", gpus=2) for index in range(10))]
    item = gang("x", nodes=3, gpus=2, priority=5)
    given = CycleInput(
        snapshot=cluster(*nodes, running=[*ring, *alone, *dear], queues=(queue("research", 100),)),
        pending=(item,),
        policy=Policy(restart_seconds=0.0, priority_seconds=0.0),
        now=0.0,
        try_budget=TRY_BUDGET,
        put_off=(item.uid,),
    )
    made = [decide(given, work=work) for work in (Work(), over())]
    names = [sorted(victim.key[-2:] for victim in each.preemptions[0].victims) for each in made]
    assert names == [["r0", "r1", "r2"], ["s3", "s4", "s5"]]
    assert decide(replace(given, late_from=made[1].late_at)) == made[1]


def test_a_gang_that_yields_to_several_is_put_off_when_the_cycle_is_overdue() -> None:
    """It borrows in pool b, so the first jobs of other queues are asked before. They do not fit."""
    queues = (
        Queue(name="org", nominal={}),
        Queue(name="z", nominal={"a": 1}),
        Queue(name="x", nominal={"a": 3, "b": 0}, parent="org"),
        *(Queue(name=name, nominal={"a": 0, "b": 4}, parent="org") for name in "uvw"),
    )
    nodes = [node("a0", "r", gpus=1, pool="a"), *(node(f"b{i}", gpus=3, pool="b") for i in "012")]
    given = CycleInput(
        snapshot=cluster(*nodes, queues=queues, pools=("a", "b")),
        pending=(
            gang("first", gpus=64, at=-1.0, queue="z"),
            replace(gang("borrows", gpus=3, queue="x", pools=("a", "b")), key="team/borrows"),
            *(gang(name, gpus=4, at=1, queue=name, pool="b") for name in "uvw"),
        ),
        policy=Policy(),
        now=0.0,
        try_budget=TRY_BUDGET,
    )
    put_off = set[str]()
    for questions in range(12):
        made = decide(given, work=ticking(questions))
        assert decide(replace(given, late_from=made.late_at)) == made
        if "uid-borrows" in made.put_off:
            assert not made.placed
            put_off.update(place for place in made.late_at if "beyond again" in place)
        else:
            assert [each.uid for each in made.placed] == ["uid-borrows"]
    assert put_off == {f"admit: beyond again uid-borrows {number}" for number in (1, 3)}


def test_an_overdue_cycle_makes_one_reservation_in_each_pool() -> None:
    """All three gangs are tried whatever the time."""
    pools = ("a", "b")
    nodes = [node(f"n{pool}", gpus=2, pool=pool) for pool in pools]
    running = [
        admitted(gang(f"r{pool}", gpus=2, max_runtime_seconds=50.0), f"n{pool}", pool=pool)
        for pool in pools
    ]
    line = [
        gang(f"g{at}", gpus=2, at=at, pool=pool, max_runtime_seconds=10.0)
        for at, pool in enumerate("aab")
    ]
    given = CycleInput(
        snapshot=cluster(*nodes, running=running, pools=pools),
        pending=tuple(line),
        policy=Policy(waiting=WaitingRule.BACKFILL),
        now=0.0,
        try_budget=TRY_BUDGET,
        put_off=tuple(each.uid for each in line),
    )
    made = decide(given, work=over())
    assert decide(replace(given, late_from=made.late_at)) == made
    assert [each.uid for each in made.reservations] == ["uid-g0", "uid-g2"]
    all_made = decide(given).reservations
    assert [each.uid for each in all_made] == ["uid-g0", "uid-g1", "uid-g2"]


def test_a_gang_that_is_tried_whatever_the_time_yields_to_few_gangs_that_start() -> None:
    """Each gang that starts before it costs one more search for it, and there may be hundreds."""
    entitled = tuple(f"q{index}" for index in range(8))
    queues = (
        Queue(name="org", nominal={}),
        Queue(name="x", nominal={"a": 3, "b": 0}, parent="org"),
        *(Queue(name=name, nominal={"a": 0, "b": 1}, parent="org") for name in entitled),
    )
    nodes = [node("a0", "r", gpus=0, pool="a"), *(node(f"b{i}", gpus=3, pool="b") for i in "0123")]
    given = CycleInput(
        snapshot=cluster(*nodes, queues=queues, pools=("a", "b")),
        pending=(
            gang("borrows", gpus=1, queue="x", pools=("a", "b")),
            *(gang(name, gpus=1, at=1, queue=name, pool="b") for name in entitled),
        ),
        policy=Policy(),
        now=0.0,
        try_budget=TRY_BUDGET,
        put_off=("uid-borrows",),
    )
    made = decide(given, work=over())
    assert decide(replace(given, late_from=made.late_at)) == made
    assert made.put_off[0] == "uid-borrows"
    assert made.late_at[-1] == "admit: beyond again uid-borrows 6"
    assert [each.uid for each in made.placed] == [f"uid-{name}" for name in entitled[:6]]
    assert [each.uid for each in decide(given, work=Work()).placed] == [
        *(f"uid-{name}" for name in entitled)
    ]


def test_costly_gangs_that_were_tried_take_turns_under_the_strict_rule() -> None:
    """Ordinary ones are tried in each cycle: they hold back only what they wait for."""
    pools = ("a", "b", "c")
    roles = tuple(Role(name=f"r{index}", pods=2, per_pod=pod(0)) for index in range(2))
    line = [gang(pool, gpus=64, pool=pool, roles=roles) for pool in "ab"]
    line.append(gang("c", gpus=64, pool="c"))
    given = CycleInput(
        snapshot=cluster(*(node(f"n{pool}", "r", pool=pool) for pool in pools), pools=pools),
        pending=tuple(line),
        policy=STRICT,
        now=0.0,
        try_budget=TRY_BUDGET,
        known=frozenset(each.uid for each in line),
    )
    answers: list[set[str]] = []
    for _ in range(4):
        made = decide(given, work=over())
        assert decide(replace(given, late_from=made.late_at)) == made
        answers.append(
            {each.key for each in made.blocked if each.reason is not BlockReason.NOT_TRIED}
        )
        given = following(given, made)
    assert answers == [
        {"training/c"},
        {"training/a", "training/c"},
        {"training/b", "training/c"},
        {"training/a", "training/c"},
    ]


def test_fewer_ends_are_examined_for_a_reservation_when_the_time_is_over() -> None:
    # Enough GPUs are free when six of the first jobs have ended, but whole nodes are free later.
    running = [
        admitted(
            gang(f"{name}{index:02}", max_runtime_seconds=since + 10.0 * (index + 1)), f"n{index}"
        )
        for name, since in (("a", 0.0), ("b", 1000.0))
        for index in range(40)
    ]
    snapshot = cluster(*racks(count=1, nodes=40), running=running, queues=(queue("research", 100),))
    big = gang("big", nodes=3, gpus=2)
    given = CycleInput(
        snapshot=snapshot,
        pending=(big,),
        policy=Policy(waiting=WaitingRule.BACKFILL),
        now=0.0,
        try_budget=TRY_BUDGET,
        put_off=("uid-big",),
    )
    made = [decide(given, work=work) for work in (Work(), over())]
    assert [each.reservations[0].start_at for each in made] == [1030.0, 1290.0]
    assert decide(replace(given, late_from=made[1].late_at)) == made[1]
    # And for a gang whose searches are costly.
    roles = tuple(Role(name=f"r{index}", pods=9, per_pod=pod(0)) for index in range(8))
    made.append(decide(replace(given, pending=(replace(big, roles=roles),))))
    assert made[2].reservations[0].start_at == 1140.0


def broken(name: str, node: str, *, costly: bool = False, **fields: Any) -> Admitted:
    """A gang whose last pod is lost; a costly one has roles."""
    roles = tuple(Role(name=f"r{i}", pods=1, per_pod=pod(0)) for i in range(2)) if costly else ()
    names = (*(node for _ in roles), node, "gone")
    item = gang(name, nodes=2, gpus=2, roles=roles, **fields)
    return admitted(item, *names, lost=frozenset({len(names) - 1}))


def test_a_repair_takes_free_slots_whatever_the_time() -> None:
    held = broken("a", "n0")
    (made,) = cycles(cluster(*racks(), running=[held]), [], count=1, policy=Policy())
    assert [each.key for each in made.placed] == ["training/a"]


def test_costly_repairs_take_turns() -> None:
    """Nothing is free, so each search fails. The first four are tried whatever the time."""
    nodes = [node(f"n{index}") for index in range(8)]
    running = [broken(f"g{index}", f"n{index}", costly=True) for index in range(8)]
    made = cycles(cluster(*nodes, running=running), [], count=6, policy=Policy())
    assert [len(tried(each)) for each in made] == [4, *([5] * 5)]
    assert set().union(*map(tried, made)) == {f"g{index}" for index in range(8)}
    assert [len(each.put_off) for each in made] == [4, *([3] * 5)]


def test_victims_for_repairs_take_turns() -> None:
    """A victim is enough for one gang. The first twelve are searched for whatever the time."""
    nodes = [node(f"n{index}") for index in range(20)]
    running = [broken(f"g{index:02}", f"n{index}", priority=2) for index in range(16)]
    running += [
        admitted(gang(f"low{index}", gpus=2, priority=3 - 3 * (index == 0)), f"n{16 + index}")
        for index in range(4)
    ]
    snapshot = cluster(*nodes, running=running, queues=(queue("research", 99),))
    policy = Policy(repairs_preempt=True)
    first, second = cycles(snapshot, [], count=2, policy=policy)
    assert [each.key for each in first.preemptions] == ["training/g00"]
    assert first.put_off == tuple(f"uid-g{index}" for index in range(12, 16))
    assert second.put_off == ("uid-g15",)


def test_a_few_broken_gangs_come_before_pending_ones_whatever_the_time() -> None:
    held = broken("a", "n0", costly=True)
    (made,) = cycles(
        cluster(node("n0"), node("n1"), running=[held]),
        [gang("low", gpus=2)],
        count=1,
        policy=Policy(),
    )
    assert [each.key for each in made.placed] == ["training/a"]


def test_a_nominated_repair_is_never_put_off() -> None:
    """Its victims leave for it, so its places are kept, and taken once they are free."""
    costly_gangs = [broken(f"b{index}", f"n{index + 2}", costly=True) for index in range(6)]
    held = broken("z", "n0", costly=True, at=9.0)
    nominated = replace(held, nominated=dict.fromkeys(held.lost, "n1"), nominated_pool="h100")
    low = admitted(gang("low", gpus=2), "n1", leaving=True)
    nodes = [node(f"n{index}") for index in range(8)]
    waits = cluster(*nodes, running=[*costly_gangs, nominated, low])
    (first,) = cycles(waits, [], count=1, policy=Policy(repairs_preempt=True))
    reasons = {each.key: each.reason for each in first.blocked}
    assert reasons["training/z"] is BlockReason.WAITING_FOR_VICTIMS
    assert reasons["training/b5"] is BlockReason.NOT_TRIED
    gone = cluster(*nodes, running=[*costly_gangs, nominated])
    (second,) = cycles(gone, [gang("new", gpus=2)], count=1, policy=Policy(repairs_preempt=True))
    assert [(each.key, each.assignment[-1]) for each in second.placed] == [("training/z", "n1")]


def test_a_surplus_gang_gives_up_whatever_the_time() -> None:
    base = with_surplus(gang("a", nodes=4, gpus=2, sizes=(1, 2, 4)), smallest=1)
    assert base.surplus is not None
    costly_gangs = [broken(f"b{index}", f"n{index + 2}", costly=True) for index in range(6)]
    surplus = admitted(base.surplus, "n1", "gone", lost=frozenset({1}))
    snapshot = cluster(
        *(node(f"n{index}") for index in range(8)),
        running=[*costly_gangs, admitted(base, "n0"), surplus],
    )
    (made,) = cycles(snapshot, [], count=1, policy=Policy())
    assert [each.uid for each in made.resized] == [base.surplus.uid]
    assert all("surplus" not in each.uid for each in made.blocked)


def test_an_elastic_gang_shrinks_whatever_the_time() -> None:
    """Its sizes are not bisected in a repair, so they do not make it costly."""
    elastic = gang("e", nodes=4, gpus=2, sizes=(1, 2, 4))
    running = [
        admitted(replace(elastic, key=f"training/e{at}", uid=f"uid-e{at}"), f"n{at}", "gone")
        for at in range(8)
    ]
    running = [replace(each, lost=frozenset({1})) for each in running]
    snapshot = cluster(*(node(f"n{at}") for at in range(8)), running=running)
    (made,) = cycles(snapshot, [], count=1, policy=Policy())
    assert len(made.resized) == 8


def test_a_second_kind_of_a_namespace_has_its_turn_among_many_namespaces() -> None:
    """The first one is tried in each cycle, as it comes first."""
    kinds = costly(
        [
            gang("m1", at=-1.0, per_pod=pod(64, cpu=999), key="calm/m1"),
            *(
                gang(f"g{at}", at=float(at), per_pod=pod(64, cpu=at), key=f"team-{at}/g{at}")
                for at in range(200)
            ),
            gang("m2", at=200.0, per_pod=pod(64, cpu=201), key="calm/m2"),
        ]
    )
    made = cycles(cluster(*racks()), kinds, count=12, policy=Policy(), work=Work)
    assert [sorted(tried(each) & {"m1", "m2"}) for each in made[:2]] == [["m1"], ["m1", "m2"]]
    assert len(set().union(*map(tried, made))) == len(kinds)


def test_a_namespace_with_one_gang_is_answered_before_crowded_ones_again() -> None:
    """All wait behind the first gang, and a cycle answers only some of them."""
    holds = [admitted(gang(f"holds{index}", gpus=2), f"n{index}") for index in range(4)]
    behind = [
        gang(f"g{at}", at=float(at), per_pod=pod(1, cpu=at), key=f"team-{team}/g{at}")
        for team in range(3)
        for at in range(60 * team, 60 * team + 60)
    ]
    calm = gang("calm", at=999.0, key="calm/calm")
    line = [gang("first", gpus=2, at=-1.0), *behind, calm]
    snapshot = cluster(*racks(), running=holds)
    made = cycles(snapshot, line, count=4, policy=Policy(waiting=WaitingRule.STRICT), work=Work)
    assert ["calm" in tried(each) for each in made[:2]] == [False, True]
    assert set().union(*map(tried, made)) >= {each.uid.removeprefix("uid-") for each in line}
