"""Turns by fair share: who is next, and that everybody gets what he is due in the long run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import heappop, heappush
from random import Random

import pytest

from drumline_scheduler import (
    Admitted,
    Gang,
    Node,
    Policy,
    Pool,
    PreemptionRule,
    Queue,
    Reclaim,
    Resources,
    Snapshot,
)
from drumline_scheduler.model import Ordering, OrderKey, order_key
from drumline_scheduler.queueing.order import Above, BorrowingLevels, SchedulingOrder
from drumline_scheduler.quota.fair_sharing import decay
from drumline_scheduler.quota.pool_selection import PoolSelector
from drumline_scheduler.quota.quota_ledger import QuotaLedger, ledger_of
from tests.unit.scheduler.builders import admitted, cluster, gang, node, queue, run

FAIR = Policy(order=Ordering.FAIR_SHARE)
GPUS = 32


def never(_: Gang) -> bool:
    return False


def line_by_line(gangs: Iterable[Gang], ledger: QuotaLedger) -> Iterator[Gang]:
    """The order in which gangs come forward of which nobody is passed over."""
    chains = [[each_gang] for each_gang in gangs]
    return SchedulingOrder(
        chains, quota=ledger, borrowing=borrowing(ledger).lowest, passed=never, closed=never
    )


def book(
    *queues: Queue,
    history: dict[str, float] | None = None,
    policy: Policy = FAIR,
    gpus: int = GPUS,
) -> QuotaLedger:
    """The empty book of queues on one node."""
    whole = Resources(gpus=gpus, pods=999)
    snapshot = Snapshot(
        nodes=(Node(name="n0", pool="h100", allocatable=whole),),
        pools=(Pool(name="h100"),),
        queues=queues,
        history=history or {},
    )
    return ledger_of(snapshot=snapshot, policy=policy)


def borrowing(ledger: QuotaLedger) -> BorrowingLevels:
    pools = PoolSelector(pools=(Pool(name="h100"),), quota=ledger)
    return BorrowingLevels(quota=ledger, pools=pools, queues=ledger.tree.queues)


def turns(ledger: QuotaLedger, gangs: Iterable[Gang], *, room: int = GPUS) -> list[str]:
    """Who is looked at, and starts as long as there is room."""
    output: list[str] = []
    for each_gang in line_by_line(sorted(gangs, key=order_key), ledger):
        output.append(each_gang.uid.removeprefix("uid-"))
        if each_gang.gpus <= room:
            room -= each_gang.gpus
            ledger.hold(gang=each_gang, pool="h100", size=each_gang.nodes)
    return output


def some(name: str, count: int, *, gpus: int = 1) -> list[Gang]:
    return [gang(f"{name}{i}", gpus=gpus, at=float(i), queue=name) for i in range(count)]


def test_queues_take_turns_and_a_double_weight_gets_two() -> None:
    result = book(queue("a", 99), queue("b", 99, weight=2.0))
    output = turns(result, [*some("a", 3), *some("b", 6)])
    assert output == ["a0", "b0", "b1", "a1", "b2", "b3", "a2", "b4", "b5"]


def test_who_has_had_much_waits_for_the_others() -> None:
    past = 3.5 / FAIR.history_weight
    result = book(queue("a", 99), queue("b", 99), history={"a": 86400 * past / GPUS / 0.693147})
    assert turns(result, [*some("a", 2), *some("b", 6)])[:6] == ["b0", "b1", "b2", "b3", "a0", "b4"]


def test_priority_decides_inside_a_queue_and_between_equal_shares_only() -> None:
    result = book(queue("a", 99), queue("b", 99))
    high = [gang(f"b{i}", queue="b", priority=9, at=i) for i in range(2)]
    assert turns(result, [*some("a", 2), *high, gang("low", queue="b")]) == [
        "b0", "a0", "b1", "a1", "low",
    ]  # fmt: skip


def test_shares_are_compared_at_every_level_of_the_tree() -> None:
    tree = [
        queue("west"),
        queue("east"),
        queue("w1", 99, parent="west"),
        queue("w2", 99, parent="west"),
        queue("e1", 99, parent="east"),
    ]
    output = turns(book(*tree), [*some("w1", 2), *some("w2", 2), *some("e1", 4)])
    assert output == ["e10", "w10", "w20", "e11", "w11", "e12", "w21", "e13"]


def test_who_need_not_borrow_goes_first_however_much_it_has() -> None:
    tree = [queue("org"), queue("a", 8, parent="org"), queue("b", 0, parent="org", weight=99.0)]
    assert turns(book(*tree), [*some("a", 9), *some("b", 2)]) == [
        *(f"a{i}" for i in range(8)), "b0", "b1", "a8",
    ]  # fmt: skip


def test_an_elastic_gang_comes_after_those_who_borrow_nothing_and_before_those_who_must() -> None:
    tree = [queue("org"), *(queue(name, 4, parent="org") for name in "abc")]
    elastic = gang("elastic", nodes=6, queue="a", sizes=(1, 3, 6))
    must = gang("must", gpus=5, queue="b", priority=9)
    need_not = gang("need not", gpus=4, queue="c", at=9.0)
    assert turns(book(*tree), [elastic, must, need_not]) == ["need not", "elastic", "must"]


def test_a_borrower_leaves_an_elastic_gang_the_quota_of_its_queue() -> None:
    snapshot = cluster(
        node("n0", gpus=8),
        queues=(queue("org"), queue("x", 4, parent="org"), queue("y", 4, parent="org")),
        running=[admitted(gang("w", gpus=2, queue="y"), "n0")],
    )
    elastic = gang("elastic", nodes=8, queue="x", sizes=(1, 4, 8))
    decisions = run(snapshot, gang("b", gpus=4, queue="y", priority=9), elastic)
    assert [(placement.key, len(placement.assignment)) for placement in decisions.placed] == [
        ("training/elastic", 4)
    ]


def test_who_does_not_start_does_not_hold_up_the_others() -> None:
    result = book(queue("a", 99), queue("b", 99))
    output = turns(result, [*some("a", 2, gpus=20), *some("b", 3)], room=24)
    assert output == ["a0", "b0", "b1", "b2", "a1"]


def test_a_gang_of_no_queue_has_its_turn_too() -> None:
    assert turns(book(queue("a", 99)), [*some("a", 1), gang("lost", gpus=99, queue="x")]) == [
        "lost",
        "a0",
    ]


@pytest.mark.parametrize("seed", range(20))
def test_the_heaps_give_the_turns_that_looking_at_everybody_gives(seed: int) -> None:
    random = Random(seed)
    names = ["org", "west", "a", "b", "c", "d"]
    parents = [None, "org", "west", "west", random.choice(["org", None]), random.choice([*"abc"])]
    tree = [
        queue(name, random.randint(0, 6), parent=parent, weight=random.choice([1.0, 2.0, 0.5]))
        for name, parent in zip(names, parents, strict=True)
    ]
    gangs = [
        gang(f"g{i}", queue=random.choice(names), nodes=random.randint(1, 4), at=i,
             priority=random.randint(0, 1)) for i in range(30)
    ]  # fmt: skip
    gangs = [replace(each_gang, sizes=tuple(sorted({1, each_gang.nodes}))) for each_gang in gangs]
    history = {name: random.random() * 40000 for name in names}
    result = turns(book(*tree, history=history), gangs)
    assert result == looking_at_everybody(book(*tree, history=history), gangs)


def looking_at_everybody(ledger: QuotaLedger, gangs: list[Gang]) -> list[str]:
    """The same from the definition: at each level of the tree, the least of all members."""
    left, room, keys = sorted(gangs, key=order_key), GPUS, list[str]()
    while left:
        heads = {ledger.tree.leaf_of[first_of_a.queue]: first_of_a for first_of_a in reversed(left)}
        first_of_a = first_of(None, depth=0, ledger=ledger, heads=heads)
        keys.append(first_of_a.uid.removeprefix("uid-"))
        left.remove(first_of_a)
        if first_of_a.gpus <= room:
            room -= first_of_a.gpus
            ledger.hold(gang=first_of_a, pool="h100", size=first_of_a.nodes)
    return keys


def first_of(above: int | None, *, depth: int, ledger: QuotaLedger, heads: dict[int, Gang]) -> Gang:
    """Who is next below a branch."""
    if above in heads:
        return heads[above]
    paths = [ledger.tree.branches[leaf].path for leaf in heads]
    members = {
        path[-1] if above is None else path[path.index(above) - 1]
        for path in paths
        if above is None or above in path
    }
    assert ledger.shares is not None
    ranked: list[tuple[tuple[Above, float, OrderKey], Gang]] = []
    for member in members:
        first_of_a = first_of(member, depth=depth + 1, ledger=ledger, heads=heads)
        beyond = borrowing(ledger).lowest(first_of_a)[: depth + 1]
        ranked.append(((beyond, ledger.shares.share(member), order_key(first_of_a)), first_of_a))
    return min(ranked, key=lambda entry: entry[0])[1]


def long_run(
    *queues: Queue,
    jobs: dict[str, tuple[int, float]],
    policy: Policy,
    gpus: int,
    starts: int,
) -> dict[str, float]:
    """The part of all GPU-seconds that each queue gets, on a virtual clock under saturating load.

    Each queue always has some more that want to start; whose turn it is waits for its room.

    Args:
        queues: what competes.
        jobs: by queue, the most GPUs of its jobs and their mean seconds.
        policy: how shares are counted.
        gpus: of the cluster.
        starts: after how many jobs the run ends.
    """
    random, now, number = Random(1), 0.0, 0
    history: dict[str, float] = {}
    running: list[tuple[float, Gang]] = []
    waiting: dict[str, list[Gang]] = {name: [] for name in jobs}
    served = dict.fromkeys(jobs, 0.0)
    while number < starts:
        for name, (most, _) in jobs.items():
            while len(waiting[name]) < 6:
                number += 1
                size = random.randint(1, most)
                waiting[name].append(gang(f"{number}", queue=name, gpus=size, at=number))
        result = book(*queues, history=history, policy=policy, gpus=gpus)
        for _, running_gang in running:
            result.hold(gang=running_gang, pool="h100", size=1)
        free = gpus - sum(item.gpus for _, item in running)
        line = sorted((item for own in waiting.values() for item in own), key=order_key)
        for running_gang in line_by_line(line, result):
            if running_gang.gpus > free:
                break
            free -= running_gang.gpus
            result.hold(gang=running_gang, pool="h100", size=1)
            waiting[running_gang.queue].remove(running_gang)
            heappush(
                running, (now + random.expovariate(1 / jobs[running_gang.queue][1]), running_gang)
            )
        seconds = running[0][0] - now
        held = {name: sum(item.gpus for _, item in running if item.queue == name) for name in jobs}
        shares = {name: amount / gpus for name, amount in held.items()}
        history = decay(
            history=history, shares=shares, seconds=seconds, half_life=policy.history_seconds
        )
        served = {name: amount + held[name] * seconds for name, amount in served.items()}
        now = heappop(running)[0]
    whole = sum(served.values())
    return {name: amount / whole for name, amount in served.items()}


def test_in_the_long_run_shares_are_the_weights_within_2_percent() -> None:
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    queues = [queue(name, parent="org", weight=weight) for name, weight in weights.items()]
    result = long_run(
        queue("org", 9999),
        *queues,
        jobs={"a": (1, 300.0), "b": (2, 900.0), "c": (5, 200.0)},
        policy=replace(FAIR, history_seconds=3600.0),
        gpus=64,
        starts=1200,
    )
    assert result == pytest.approx({"a": 1 / 8, "b": 2 / 8, "c": 5 / 8}, rel=0.02)


@pytest.mark.extended
def test_also_where_jobs_are_as_large_as_shares_if_the_past_counts_for_more() -> None:
    result = long_run(
        queue("org", 9999),
        queue("a", parent="org"),
        queue("b", parent="org", weight=3.0),
        jobs={"a": (8, 300.0), "b": (5, 100.0)},
        policy=replace(FAIR, history_weight=100.0, history_seconds=7200.0),
        gpus=32,
        starts=3000,
    )
    assert result == pytest.approx({"a": 1 / 4, "b": 3 / 4}, rel=0.02)


def test_in_the_long_run_members_divide_what_their_cohort_gets() -> None:
    queues = [
        queue("org", 9999),
        queue("west", parent="org", weight=3.0),
        queue("east", parent="org"),
        queue("w1", parent="west"),
        queue("w2", parent="west", weight=2.0),
    ]
    jobs = {"w1": (2, 300.0), "w2": (3, 200.0), "east": (2, 250.0)}
    policy = replace(FAIR, history_seconds=3600.0)
    result = long_run(*queues, jobs=jobs, policy=policy, gpus=64, starts=900)
    assert result == pytest.approx({"w1": 1 / 4, "w2": 2 / 4, "east": 1 / 4}, rel=0.02)


def test_two_queues_whose_jobs_take_everything_take_turns() -> None:
    """Usage that decays must not make one of them starve, nor send anybody away half done."""
    rule = PreemptionRule(reclaim=Reclaim.FAIR_SHARE)
    queues = (
        queue("org", GPUS, preemption=rule),
        queue("a", parent="org", preemption=rule),
        queue("b", parent="org", preemption=rule),
    )
    history, started = dict[str, float](), list[str]()
    running: tuple[Admitted, ...] = ()
    for step in range(48):  # every 20 minutes; a job takes an hour
        number = step // 3
        if step % 3 == 0:
            running = ()
        waiting = [gang(f"{name}{number}", queue=name, gpus=GPUS, at=number) for name in "ab"]
        waiting = [item for item in waiting if item not in [held.gang for held in running]]
        snapshot = replace(
            cluster(node("n0", gpus=GPUS), levels=(), queues=queues, running=running),
            history=history,
        )
        decisions = run(snapshot, *waiting, policy=FAIR, now=step * 1200.0)
        assert decisions.preemptions == ()
        for each_gang in decisions.placed:
            chosen = next(job for job in waiting if job.uid == each_gang.uid)
            running = (*running, admitted(chosen, "n0"))
            started.append(chosen.queue)
        shares = dict.fromkeys((held.gang.queue for held in running), 1.0)
        history = decay(history=history, shares=shares, seconds=1200, half_life=86400)
    assert started == ["a", "b"] * 8
