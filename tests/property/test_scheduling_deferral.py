"""One namespace with many kinds of waiting gangs: bounded work, and a turn for each of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from drumline_scheduler import (
    AskedNodes,
    BlockReason,
    CycleCache,
    CycleInput,
    Decisions,
    Gang,
    Policy,
    Queue,
    Role,
    WaitingRule,
    decide,
)
from drumline_scheduler.model import order_key
from drumline_scheduler.queueing.deferral import NAMESPACES, TRY_BUDGET
from drumline_scheduler.queueing.search_costs import cost_of
from drumline_scheduler.work import Work
from tests.property.scale import many
from tests.property.test_scheduling_cycle_cache import POLICIES, Life
from tests.unit.scheduler.builders import (
    STRICT,
    admitted,
    cluster,
    following,
    gang,
    node,
    pod,
    ticking,
)

FULL = cluster(*(node(f"n{index}", gpus=2, used=pod(2)) for index in range(8)))


def kinds(count: int, *, namespace: str = "crowd", **changes: object) -> list[Gang]:
    """Gangs of which no two are equal, and none fits."""
    return [
        gang(
            f"{namespace}-{index}",
            key=f"{namespace}/{index:03}",
            at=float(index),
            per_pod=pod(1, cpu=1 + index % 60),
            selector={"kind": str(index)} if index >= 60 else {},
            **changes,
        )
        for index in range(count)
    ]


def cycles(
    pending: list[Gang],
    *,
    count: int,
    budget: int | None = TRY_BUDGET,
    policy: Policy | None = None,
) -> list[Decisions]:
    """Cycles of which each knows what the one before deferred."""
    made: list[Decisions] = []
    cache = CycleCache()
    for _ in range(count):
        given = CycleInput(
            snapshot=FULL,
            pending=tuple(pending),
            policy=policy or Policy(),
            now=0.0,
            try_budget=budget,
        )
        given = following(given, made[-1]) if made else given
        made.append(decide(given, cache=cache))
        assert made[-1] == decide(given)  # a replay decides the same
    return made


def not_tried(decisions: Decisions) -> set[str]:
    return {each.key for each in decisions.blocked if each.reason is BlockReason.NOT_TRIED}


def not_passed(pending: list[Gang], decisions: Decisions, *, known: frozenset[str]) -> bool:
    """Return whether no gang of the same pool starts behind a deferred one."""
    queue = {gang.uid: gang.queue for gang in pending}
    order = {gang.uid: order_key(gang) for gang in pending if not gang.nominated}
    # A gang of a queue without quota is held itself, so it holds the pool for no other queue.
    for_quota = (BlockReason.QUOTA_EXHAUSTED, BlockReason.USER_LIMIT)
    spent = {queue.get(each.uid) for each in decisions.blocked if each.reason in for_quota}
    unknown = [
        order[uid]
        for uid in decisions.deferred
        if uid in order and uid not in known and queue[uid] not in spent
    ]
    starts = [order[each.uid] for each in decisions.placed if each.uid in order]
    return not unknown or all(start < min(unknown) for start in starts)


def test_no_gang_is_deferred_within_the_budget() -> None:
    pending = [*kinds(TRY_BUDGET), *kinds(TRY_BUDGET, namespace="other")]
    (with_budget,) = cycles(pending, count=1)
    (without,) = cycles(pending, count=1, budget=None)
    assert with_budget == without


@pytest.mark.parametrize("count", [TRY_BUDGET + 1, 3 * TRY_BUDGET])
def test_each_kind_is_tried_in_turn_and_others_in_each_cycle(count: int) -> None:
    pending = [*kinds(count), *kinds(3, namespace="other")]
    turns = -(-(count - TRY_BUDGET // 2) // (TRY_BUDGET // 2))
    made = cycles(pending, count=turns)
    for decisions in made:
        assert len(not_tried(decisions)) == count - TRY_BUDGET
        assert all(key.startswith("crowd/") for key in not_tried(decisions))
        assert {each.key for each in decisions.blocked} == {each.key for each in pending}
    assert not set.intersection(*map(not_tried, made))


def crowds(count: int, *, each: int = TRY_BUDGET) -> list[Gang]:
    """Namespaces that are all within their own budgets, with kinds of which no two are equal."""
    return [
        replace(item, selector={"kind": f"{number}-{index}"})
        for number in range(count)
        for index, item in enumerate(kinds(each, namespace=f"crowd-{number:03}"))
    ]


def test_many_namespaces_share_half_of_the_budget_under_the_strict_rule() -> None:
    pending = crowds(50)
    made = cycles(pending, count=10, policy=STRICT)
    known = [0, *(len(each.known) for each in made)]
    assert all(
        0 < after - before <= NAMESPACES * TRY_BUDGET // 2 for before, after in pairwise(known)
    )


def test_a_namespace_with_few_kinds_waits_for_no_crowd() -> None:
    late = [replace(item, queued_at=10_000.0) for item in kinds(3, namespace="modest")]
    for decisions in cycles([*crowds(70, each=4), *late], count=3):
        assert not {gang.key for gang in late} & not_tried(decisions)


def test_namespaces_with_one_kind_each_are_tried_within_two_cycles() -> None:
    """Each cycle tries those first that the cycle before put off."""
    pending = crowds(NAMESPACES * TRY_BUDGET * 3 // 2, each=1)
    before, after = cycles(pending, count=2)
    assert not_tried(before)
    assert not not_tried(before) & not_tried(after)


@pytest.mark.parametrize("first", ["a-first", "z-last"])
def test_all_kinds_of_a_larger_namespace_are_tried_in_the_second_cycle(first: str) -> None:
    count = NAMESPACES * TRY_BUDGET // 3 + 1
    late = [replace(item, queued_at=10_000.0) for item in kinds(4, namespace=first)]
    before, after = cycles([*crowds(count, each=3), *late], count=2)
    keys = {gang.key for gang in late}
    assert keys & not_tried(before)
    assert not keys & not_tried(before) & not_tried(after)


def test_each_kind_of_many_namespaces_has_its_turn() -> None:
    count = 12
    pending = crowds(count)
    half = NAMESPACES * TRY_BUDGET // 2
    turns = -(-(len(pending) - half) // half)
    made = cycles(pending, count=turns)
    assert all(len(pending) - len(not_tried(each)) == NAMESPACES * TRY_BUDGET for each in made)
    assert not set.intersection(*map(not_tried, made))


def test_many_namespaces_hold_a_modest_one_up_for_one_cycle_at_most() -> None:
    crowd = crowds(100)
    late = kinds(1, namespace="modest")[0]
    late = replace(late, queued_at=1e6, priority=-1)
    first = cycles(crowd, count=2)[-1]
    waits, before = 0, first
    while True:
        given = CycleInput(
            snapshot=FULL,
            pending=(*crowd, late),
            policy=Policy(),
            now=0.0,
            try_budget=TRY_BUDGET,
            deferred=before.deferred,
        )
        before = decide(given)
        if late.key not in not_tried(before):
            break
        waits += 1
    assert waits <= 1


def test_the_first_in_order_are_tried_in_each_cycle() -> None:
    pending = kinds(2 * TRY_BUDGET)
    late = replace(pending.pop(), priority=9)
    made = cycles([*pending, late], count=4)
    assert all(late.key not in not_tried(decisions) for decisions in made)


def test_a_gang_for_which_nodes_were_requested_is_tried_in_each_cycle() -> None:
    pending = kinds(3 * TRY_BUDGET)
    last = pending[-1]
    given = CycleInput(
        snapshot=FULL,
        pending=tuple(pending),
        policy=Policy(),
        now=0.0,
        try_budget=TRY_BUDGET,
    )
    asked = (AskedNodes(uid=last.uid, pool="p", nodes=1),)
    assert last.key in not_tried(decide(given))
    decisions = decide(replace(given, snapshot=replace(FULL, asked=asked)))
    assert last.key not in not_tried(decisions)
    assert not decisions.faults


def test_roles_cost_more_and_the_work_of_a_cycle_is_bounded() -> None:
    roles = tuple(
        Role(name=f"r{index}", pods=11, per_pod=pod(0, cpu=1 + index)) for index in (0, 1)
    )
    pending = [
        replace(each, roles=tuple(replace(role, per_pod=pod(0, cpu=2 + index)) for role in roles))
        for index, each in enumerate(kinds(100))
    ]
    assert cost_of(pending[0]) > 1
    modest = gang("modest", key="other/modest", at=1e6)
    given = CycleInput(
        snapshot=FULL,
        pending=(*pending, modest),
        policy=Policy(),
        now=0.0,
        try_budget=TRY_BUDGET,
    )
    work, alone = Work(), Work()
    decisions = decide(given, work=work)
    decide(replace(given, pending=(pending[0],)), work=alone)
    assert modest.key not in not_tried(decisions)
    assert work.steps <= alone.steps * (TRY_BUDGET // cost_of(pending[0]) + 2)


def test_a_group_has_its_turn_as_a_whole() -> None:
    members = [replace(each, group="g", group_gangs=3) for each in kinds(3, namespace="crowd")]
    late = [
        replace(each, key=f"{each.key}-g", uid=f"{each.uid}-g", queued_at=1e6) for each in members
    ]
    made = cycles([*kinds(2 * TRY_BUDGET), *late], count=6)
    deferred = [{each.key for each in late} & not_tried(decisions) for decisions in made]
    assert all(len(keys) in (0, 3) for keys in deferred)
    assert any(keys for keys in deferred)
    assert not all(deferred)


def test_gangs_that_may_not_use_their_queue_cost_nothing() -> None:
    pending = [*kinds(2 * TRY_BUDGET, queue="nobody"), *kinds(TRY_BUDGET, namespace="crowd")]
    pending = [replace(each, uid=f"{each.uid}-{each.queue}") for each in pending]
    (decisions,) = cycles(pending, count=1)
    assert not not_tried(decisions)


def test_under_the_strict_rule_no_gang_is_deferred_that_holds_others_back() -> None:
    waits = gang("waits", per_pod=pod(1), at=-1.0, queue="research")
    made = cycles([*kinds(2 * TRY_BUDGET), waits], count=3, policy=STRICT)
    assert not any(decisions.deferred for decisions in made)
    reasons = {each.reason for each in made[-1].blocked}
    assert reasons == {BlockReason.INSUFFICIENT_GPUS, BlockReason.BEHIND_HIGHER_PRIORITY}


@pytest.mark.parametrize("in_groups", [False, True], ids=["gangs", "groups"])
def test_under_the_strict_rule_gangs_behind_another_are_explained_in_turn(
    *, in_groups: bool
) -> None:
    """Each of them costs a little, and a namespace may have any number of them."""
    count = 8 * TRY_BUDGET
    first = gang("waits", per_pod=pod(1), at=-1.0, queue="research")
    behind = kinds(count)
    if in_groups:
        behind = [
            replace(each, group=f"g{index // 2}", group_gangs=2)
            for index, each in enumerate(behind)
        ]
    made = cycles([first, *behind], count=15 if in_groups else 7, policy=STRICT)
    late = [not_tried(decisions) for decisions in made]
    assert all(count // 2 <= len(each) for each in late)
    assert not set.intersection(*late)
    assert all(first.key not in each for each in late)
    assert not any(decisions.placed for decisions in made)


def test_under_the_strict_rule_kinds_that_no_node_can_hold_take_turns() -> None:
    never = [
        replace(each, per_pod=pod(1, cpu=10_000 + index))
        for index, each in enumerate(kinds(4 * TRY_BUDGET))
    ]
    half = TRY_BUDGET // 2
    made = cycles(never, count=20, policy=STRICT)
    first, later = made[:8], made[8:]
    # Each cycle tries the next ones that nobody knows.
    assert [len(each.passed) for each in first] == [half * (1 + n) for n in range(8)]
    assert all(len(each.deferred) == 3 * TRY_BUDGET for each in later)
    tried = [{each.uid for each in never}.difference(each.deferred) for each in later]
    assert set[str]().union(*tried) == {each.uid for each in never}
    # A gang behind them that waits for capacity holds later ones back in each cycle.
    waits, behind = (gang(f"w{cpu}", per_pod=pod(1, cpu=cpu), at=1000.0 + cpu) for cpu in (1, 2))
    made = cycles([*never, waits, behind], count=12, policy=STRICT)
    reasons = [{each.uid: each.reason for each in decisions.blocked} for decisions in made]
    assert {each[behind.uid] for each in reasons} == {BlockReason.BEHIND_HIGHER_PRIORITY}
    assert reasons[-1][waits.uid] is BlockReason.INSUFFICIENT_GPUS


def test_under_the_strict_rule_no_gang_passes_one_that_was_not_tried() -> None:
    """A gang of another namespace that fits starts once all gangs before it are known."""
    never = [
        replace(each, per_pod=pod(1, cpu=10_000 + index))
        for index, each in enumerate(kinds(TRY_BUDGET))
    ]
    fits = gang("fits", key="other/fits", per_pod=pod(0), at=1e6)
    first, second = cycles([*never, fits], count=2, policy=STRICT)
    answers = {each.uid: each for each in first.blocked}
    assert answers[fits.uid].reason is BlockReason.BEHIND_HIGHER_PRIORITY
    assert set(answers[fits.uid].blockers) <= not_tried(first)
    assert {each.uid for each in second.placed} == {fits.uid}


def test_under_the_strict_rule_a_costly_gang_leaves_the_budget_of_others() -> None:
    roles = tuple(Role(name=f"r{i}", pods=11, per_pod=pod(10_000)) for i in range(2))
    costly = gang("costly", key="crowd/costly", nodes=30_000, roles=roles, per_pod=pod(10_000))
    modest = gang("modest", key="other/modest", per_pod=pod(10_001), at=1e6)
    assert cost_of(costly) > NAMESPACES * TRY_BUDGET // 2
    (decisions,) = cycles([costly, modest], count=1, policy=STRICT)
    assert not not_tried(decisions)


def test_under_the_strict_rule_groups_with_a_member_that_no_pool_takes_cost_no_search() -> None:
    """The first cycle answers all of them, and they hold no other gang back."""
    pairs = [
        replace(
            each,
            group=f"g{index // 2}",
            group_gangs=2,
            pool="gone" if index % 2 else None,
        )
        for index, each in enumerate(kinds(8 * TRY_BUDGET))
    ]
    behind, work = gang("behind", key="other/behind", per_pod=pod(1), at=1e6), Work()
    given = CycleInput(
        snapshot=FULL, pending=(*pairs, behind), policy=STRICT, now=0.0, try_budget=TRY_BUDGET
    )
    answers = {each.uid: each for each in decide(given, work=work).blocked}
    assert {answers[each.uid].reason for each in pairs[1::2]} == {BlockReason.POOL_NOT_FOUND}
    assert {answers[each.uid].reason for each in pairs[::2]} == {BlockReason.WAITING_FOR_GROUP}
    assert answers[pairs[0].uid].blockers == (pairs[1].key,)
    assert answers[behind.uid].reason is BlockReason.INSUFFICIENT_GPUS
    alone = Work()
    decide(replace(given, pending=(behind,)), work=alone)
    assert work.steps == alone.steps


def test_under_the_strict_rule_gangs_that_wait_for_quota_use_no_budget() -> None:
    """Costly gangs wait for the quota of their queues; one behind them is still tried once."""
    names = [f"q{index}" for index in range(4)]
    queues = tuple(Queue(name=name, nominal={"h100": 1}) for name in (*names, "research"))
    holders = [
        admitted(gang(f"h-{name}", queue=name, per_pod=pod(1)), f"n{index}")
        for index, name in enumerate(names)
    ]
    nodes = [node(f"n{index}", gpus=2) for index in range(8)]
    snapshot = cluster(*nodes, queues=queues, running=holders)
    costly = [
        gang(f"w{index}", queue=name, at=float(index), nodes=2, sizes=(1, 2))
        for index, name in enumerate(names)
    ]
    fits = gang("fits", at=1e6)
    given = CycleInput(
        snapshot=snapshot, pending=(*costly, fits), policy=STRICT, now=0.0, try_budget=TRY_BUDGET
    )
    decisions = decide(given)
    assert not_tried(decisions)
    for _ in costly:
        decisions = decide(
            replace(
                given,
                deferred=decisions.deferred,
                passed=decisions.passed,
                known=decisions.known,
            )
        )
    assert not not_tried(decisions)
    assert fits.uid in {each.uid for each in decisions.placed}


def test_under_the_strict_rule_equal_small_gangs_start_together() -> None:
    """Each start takes a search, but those of small gangs are not counted one by one."""
    many_equal = [
        gang(f"s{index}", per_pod=pod(0), at=float(index)) for index in range(2 * TRY_BUDGET)
    ]
    (decisions,) = cycles(many_equal, count=1, policy=STRICT)
    assert len(decisions.placed) == 2 * TRY_BUDGET


def test_a_group_with_a_member_that_waits_is_not_deferred_under_the_strict_rule() -> None:
    never = [replace(each, per_pod=pod(1, cpu=10_000)) for each in kinds(2, group="g")]
    never[1] = replace(never[1], per_pod=pod(1))
    pending = [replace(each, group_gangs=2) for each in never]
    for decisions in cycles(pending, count=3, budget=1, policy=STRICT):
        assert not decisions.deferred
        assert not decisions.passed


@pytest.mark.extended(keep=5)
@pytest.mark.parametrize("policy", POLICIES, ids=["best", "strict", "backfill", "fair", "moves"])
@pytest.mark.parametrize("seed", range(many(4, 40)))
@pytest.mark.parametrize("has_clock", [False, True])
def test_lives_with_a_small_budget(seed: int, policy: Policy, *, has_clock: bool) -> None:
    """With and without a cache the decisions are equal, and no kind waits for its turn for long.

    With a clock, most cycles run out of time, and a replay ends where they ended.
    """
    life, cache = Life(Random(seed)), CycleCache()
    chance, late = Random(seed), 0
    decisions = Decisions()
    since: dict[str, int] = {}
    for step in range(60):
        life.happen()
        given = CycleInput(
            snapshot=life.snapshot,
            pending=tuple(life.pending),
            policy=policy,
            now=life.now,
            try_budget=6,
        )
        given = following(given, decisions)
        work = ticking(chance.randrange(12)) if has_clock else Work()
        decisions = decide(given, cache=cache, work=work)
        assert decisions == decide(replace(given, late_from=decisions.late_at))
        late += bool(decisions.late_at)
        if policy.waiting is WaitingRule.STRICT:
            assert not_passed(life.pending, decisions, known=given.known)
        since = {uid: since.get(uid, step) for uid in (*decisions.deferred, *decisions.put_off)}
        assert all(step - began <= len(life.pending) for began in since.values())
        life.carry_out(decisions)
    assert bool(late) == has_clock
