"""What went wrong in other schedulers' preemption and borrowing, as worlds in which it must not.

The numbers are those of our list of peers' issues. S5, S14 and S18 stand with the tests of cycles,
S6 with those of groups, S10 to S12 with those of repairs.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import Admitted, BlockReason, Queue, Reclaim, Snapshot
from tests.unit.scheduler.builders import (
    PREEMPTS,
    admitted,
    after,
    bound,
    cluster,
    gang,
    node,
    pod,
    queue,
    racks,
    room,
    run,
    still_waiting,
    without,
)


def gone(snapshot: Snapshot, item: Admitted) -> Snapshot:
    """The snapshot without a running gang."""
    return without(snapshot, item.gang.key.removeprefix("training/"))


def test_s1_reclaim_stays_inside_one_rack_and_leaves_the_borrower_its_quota() -> None:
    """178 nodes of 4 in racks of 18; `u` has 432 GPUs of its own and borrows the rest."""
    nodes = [rack for rack in racks(count=10, nodes=18, gpus=4) if rack.name not in {"n0", "n20"}]
    queues = (queue("org"), queue("u", 432, parent="org"), queue("g", 288, parent="org"))
    running = [
        admitted(gang(f"u{i:03}", gpus=4, queue="u"), each.name, gpu_seconds_at_risk=float(i % 7))
        for i, each in enumerate(nodes)
    ]
    snapshot = cluster(*nodes, running=running, queues=queues)
    wants = gang("g", nodes=16, gpus=4, queue="g", required_level="rack")
    preemption = run(snapshot, wants).preemptions[0]
    home = {node.name: node.domains for node in nodes}
    gone_from = {home[h.assignment[0]] for h in running if h.gang.key in
                 {v.key for v in preemption.victims}}  # fmt: skip
    assert gone_from == {preemption.domain}
    assert len(preemption.victims) == 16
    assert 4 * (len(running) - 16) >= 432


def test_s2_both_the_gpu_and_the_slot_blocker_leave() -> None:
    big = node("n0", "rack-0", allocatable=room(8, pods=2))
    running = [
        admitted(gang("gpu", gpus=8), "n0"),
        admitted(gang("cpu", per_pod=pod(0, cpu=1)), "n0"),
    ]
    snapshot = cluster(big, running=running, queues=(queue("research", 100),))
    wants = gang("x", nodes=2, gpus=4, priority=5)
    victims = run(snapshot, wants).preemptions[0].victims
    assert [victim.key for victim in victims] == ["training/cpu", "training/gpu"]


def test_s3_nobody_leaves_for_a_gang_that_would_still_not_fit() -> None:
    running = [
        admitted(gang(f"{kind}-{i}-{k}", priority=level), f"n{i}")
        for i in range(4)
        for kind, level, count in (("high", 5, 6), ("low", 0, 2))
        for k in range(count)
    ]
    snapshot = cluster(
        *racks(count=1, nodes=4, gpus=8), running=running, queues=(queue("research", 100),)
    )
    decisions = run(
        snapshot, gang("eight", gpus=8, priority=5), gang("one", gpus=1, priority=5, at=1)
    )
    assert [(preemption.key, len(preemption.victims)) for preemption in decisions.preemptions] == [
        ("training/one", 1)
    ]


def test_s4_one_victim_is_enough_where_one_is() -> None:
    running = [admitted(gang(f"r{i:02}", per_pod=pod(0, cpu=1)), "n0") for i in range(11)]
    full = node("n0", "rack-0", allocatable=room(0, cpu=11))
    snapshot = cluster(full, running=running, queues=(queue("research", 100),))
    decisions = run(snapshot, gang("x", per_pod=pod(0, cpu=1), priority=5))
    assert len(decisions.preemptions[0].victims) == 1


def test_s7_victims_that_leave_one_after_the_other_do_not_come_back_before_the_preemptor() -> None:
    queues = (queue("org"), queue("a", 0, parent="org"), queue("b", 8, parent="org"))
    running = [admitted(gang(f"a{i}", gpus=4, queue="a"), f"n{i}") for i in range(2)]
    snapshot = cluster(*racks(count=1, gpus=4), running=running, queues=queues)
    wants = gang("b", nodes=2, gpus=4, queue="b", at=9)
    first = run(snapshot, wants)
    assert len(first.preemptions[0].victims) == 2
    waiting = still_waiting([wants], first)
    world = after(snapshot, [wants], first)
    for held in world.admitted:
        world = gone(world, held)
        back = [
            held.gang
            for held in running
            if held.gang.uid not in {h.gang.uid for h in world.admitted}
        ]
        decisions = run(world, *waiting, *back)
        assert decisions.preemptions == ()
        assert {placed.key for placed in decisions.placed} <= {"training/b"}
    assert [placed.key for placed in decisions.placed] == ["training/b"]


def test_s8_two_queues_that_reclaim_at_once_send_each_borrower_away_once() -> None:
    queues = (queue("org"), *(queue(name, 4, parent="org") for name in "abc"))
    running = [admitted(gang(f"a{i}", nodes=3, gpus=2, queue="a"), *(
        f"n{3 * i + k}" for k in range(3))) for i in range(2)]  # fmt: skip
    snapshot = cluster(*racks(count=1, nodes=6), running=running, queues=queues)
    wants = [gang(name, nodes=2, gpus=2, queue=name) for name in "bc"]
    decisions = run(snapshot, *wants)
    answer = [victim.key for preemption in decisions.preemptions for victim in preemption.victims]
    assert sorted(answer) == ["training/a0", "training/a1"]
    left = still_waiting(wants, decisions)
    world = after(snapshot, wants, decisions)
    for held in world.admitted:
        world = gone(world, held)
    assert len(run(world, *left).placed) == 2


def test_s9_a_victim_that_a_later_choice_makes_needless_stays() -> None:
    running = [
        admitted(gang("x", gpus=2), "n0", gpu_seconds_at_risk=1),
        admitted(gang("y", nodes=2, gpus=2), "n1", "n2", gpu_seconds_at_risk=1),
        admitted(gang("z", gpus=2), "n3", gpu_seconds_at_risk=9),
    ]
    nodes = racks(count=1, nodes=4)
    snapshot = cluster(*nodes, running=running, queues=(queue("research", 100),))
    item, two = (gang(name, nodes=k, gpus=2, priority=5) for name, k in (("one", 2), ("two", 1)))
    decisions = run(snapshot, item, two)
    answer = [victim.key for p in decisions.preemptions for victim in p.victims]
    assert sorted(answer) == ["training/x", "training/y"]


def test_s13_a_gang_grows_by_a_whole_step_or_not_at_all_while_its_new_pods_are_not_bound() -> None:
    elastic = gang("e", nodes=4, gpus=2, sizes=(2, 4))
    world = cluster(*racks(count=1, nodes=3), running=[admitted(elastic, "n0", "n1")])
    assert run(world).resized == ()
    larger = replace(world, nodes=(*world.nodes, *racks(count=1, nodes=4)[3:]))
    first = run(larger)
    assert [resized.added for resized in first.resized] == [("n2", "n3")]
    grown = after(larger, [], first)
    assert [held.reserved for held in grown.admitted] == [frozenset({2, 3})]
    again = run(grown, gang("other", gpus=2))
    assert (again.placed, again.resized) == ((), ())


def test_s15_an_idle_quota_is_lent_although_its_owner_waits_for_something_it_cannot_get() -> None:
    queues = (queue("org"), queue("a", 4, parent="org"), queue("b", 4, parent="org"))
    snapshot = cluster(*racks(gpus=2), queues=queues)
    stuck = gang("stuck", gpus=2, nodes=2, queue="a", selector={"zone": "moon"})
    borrower = gang("borrower", nodes=4, gpus=2, queue="b", at=1)
    decisions = run(snapshot, stuck, borrower)
    assert [placed.key for placed in decisions.placed] == ["training/borrower"]


def test_s16_what_leaves_broken_holds_nothing_once_it_is_gone() -> None:
    """A gang is told to leave while some of its pods are lost and others not bound yet."""
    item = gang("v", nodes=3, gpus=2)
    answer = admitted(
        item, "n0", "n1", "n2", leaving=True, lost=frozenset({0}), reserved=frozenset({2})
    )
    nodes = racks(count=1, nodes=3)
    high = gang("high", nodes=3, gpus=2, priority=5)
    queues = (queue("research", 6),)
    waits = run(cluster(*nodes, running=[answer], queues=queues), high)
    assert (waits.placed, waits.preemptions, waits.resized) == ((), (), ())
    assert {blocked.key for blocked in waits.blocked} == {"training/high"}
    assert [placed.key for placed in run(cluster(*nodes, queues=queues), high).placed] == [high.key]


def test_s17_same_queue_and_other_queue_victims_mixed_do_not_push_each_other_out() -> None:
    queues = (queue("org"), queue("a", 4, parent="org"), queue("b", 4, parent="org"))
    nodes = racks(count=1, nodes=4)
    pairs = {name: gang(name, nodes=2, gpus=2, queue=q, priority=p, at=k) for k, (name, q, p) in
             enumerate([("a-low", "a", 0), ("b-low", "b", 0), ("a-high", "a", 5),
                        ("b-high", "b", 5), ("a-mid", "a", 2)])}  # fmt: skip
    world, pending, rounds = cluster(*nodes, queues=queues), list(pairs.values()), 0
    evictions: list[str] = []
    while rounds < 20:
        rounds += 1
        decisions = run(world, *pending)
        if not (decisions.placed or decisions.preemptions):
            break
        world = after(world, pending, decisions)
        pending = still_waiting(pending, decisions)
        for held in world.admitted:
            if held.leaving:
                evictions.append(held.gang.key)
                pending.append(held.gang)
                world = gone(world, held)
    assert rounds < 20
    assert sorted(held.gang.key for held in world.admitted) == [
        "training/a-high",
        "training/b-high",
    ]
    assert len(evictions) == len(set(evictions))


def test_s19_one_gpu_too_few_to_reclaim_is_refused_and_nobody_leaves() -> None:
    nodes = racks(count=1, nodes=12, gpus=8)
    queues: tuple[Queue, ...] = (
        queue("org"),
        queue("q0", 96 - 79, parent="org"),
        queue("q1", 80, parent="org"),
    )
    running = [admitted(gang(f"r{i:02}", queue="q0"), f"n{i // 8}") for i in range(96)]
    snapshot = cluster(*nodes, running=running, queues=queues)
    wants = gang("x", nodes=10, gpus=8, queue="q1")
    decisions = run(snapshot, wants)
    assert decisions.preemptions == ()
    assert decisions.blocked[0].reason is BlockReason.QUOTA_EXHAUSTED


GUARANTEED = (queue("root"), queue("be", parent="root"), queue("gu", 4, parent="root"))


@pytest.mark.parametrize("rule", [Reclaim.ANY, Reclaim.LOWER_PRIORITY, Reclaim.FAIR_SHARE])
def test_a_queue_without_quota_reclaims_what_its_cohort_is_guaranteed(rule: Reclaim) -> None:
    """kueue#3948: the cohort has the guarantee, not the queue."""
    best = admitted(gang("best", gpus=4, queue="be"), "n0")
    own = queue("guq", parent="gu", preemption=replace(PREEMPTS, reclaim=rule))
    snapshot = cluster(node("n0", gpus=4), running=(best,), queues=(*GUARANTEED, own))
    sure = gang("sure", gpus=4, queue="guq", priority=1)
    (preemption,) = run(snapshot, sure).preemptions
    assert [victim.key for victim in preemption.victims] == [best.gang.key]
    # Afterwards the borrower cannot take the GPUs back.
    world = gone(after(snapshot, [sure], run(snapshot, sure)), best)
    again = run(world, *still_waiting([sure], run(snapshot, sure)), best.gang)
    assert [placed.key for placed in again.placed] == [sure.key]
    assert again.preemptions == ()


def test_a_cohort_that_is_above_its_quota_gives_its_queue_no_right() -> None:
    """Another queue of the cohort already uses the guarantee, so queues outside lose nothing."""
    best = admitted(gang("best", gpus=2, queue="be"), "n0")
    sibling = admitted(gang("sibling", gpus=4, queue="gus"), "n1")
    snapshot = cluster(node("n0"), node("n1", gpus=4), running=(best, sibling), queues=())
    queues = (
        *GUARANTEED,
        queue("spare", 2, parent="root"),
        queue("gus", parent="gu", preemption=PREEMPTS),
        queue("guq", parent="gu", preemption=PREEMPTS),
    )
    snapshot = replace(snapshot, queues=queues)
    assert run(snapshot, gang("x", gpus=2, queue="guq")).preemptions == ()


def test_s20_places_that_victims_pods_still_hold_are_given_to_nobody() -> None:
    victim = admitted(gang("v", gpus=2), "n0")
    snapshot = cluster(*racks(count=1, nodes=1), running=[victim], queues=(queue("research", 9),))
    high, other = gang("high", gpus=2, priority=5), gang("other", at=1)
    first = run(snapshot, high, other)
    left = still_waiting([high, other], first)
    going = bound("n0", [victim])
    world = gone(after(snapshot, [high, other], first), victim)
    ending = replace(
        world,
        nodes=tuple(replace(node, used=going, terminating=going) for node in world.nodes),
    )
    assert run(ending, *left).placed == ()
    assert [placed.key for placed in run(world, *left).placed] == ["training/high"]
