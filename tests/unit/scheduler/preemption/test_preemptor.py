"""Who is sent away for whom, and how places are kept until they are free."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import (
    Blocked,
    BlockReason,
    Decisions,
    Gang,
    Preemption,
    Queue,
    Reclaim,
    Snapshot,
    Victim,
    VictimReason,
    WithinQueue,
)
from tests.texts import missing
from tests.unit.scheduler.builders import (
    PREEMPTS,
    admitted,
    after,
    bound,
    cluster,
    gang,
    node,
    queue,
    racks,
    run,
    still_waiting,
    without,
)

ALONE = (queue("research", 100),)
COHORT = (queue("org"), queue("a", 4, parent="org"), queue("b", 4, parent="org"))


def victims(decisions: Decisions) -> list[list[str]]:
    return [
        [victim.key.removeprefix("training/") for victim in preemption.victims]
        for preemption in decisions.preemptions
    ]


def full(**changes: float) -> Snapshot:
    """Two nodes of 2 GPUs, full of one low gang each; `changes` are their GPU-seconds at risk."""
    running = [
        admitted(gang(name, gpus=2), f"n{i}", gpu_seconds_at_risk=changes.get(name, 0.0))
        for i, name in enumerate(("r0", "r1"))
    ]
    return cluster(*racks(count=1), running=running, queues=ALONE)


HIGH = gang("high", gpus=2, priority=5, at=9)


def test_a_higher_priority_sends_the_one_away_that_loses_least() -> None:
    decisions = run(full(r0=300, r1=200), HIGH)
    (preemption,) = decisions.preemptions
    assert not missing(
        preemption.message, "training/r1", "LowerPriority", "2 GPUs", "200 GPU-seconds", "h100"
    )
    assert replace(preemption, message="") == Preemption(
        key="training/high",
        uid="uid-high",
        pool="h100",
        assignment=("n1",),
        victims=(
            Victim(
                key="training/r1",
                uid="uid-r1",
                gpus=2,
                gpu_seconds_lost=200,
                why=VictimReason.LOWER_PRIORITY,
            ),
        ),
        level="rack",
        domain=("rack-0",),
    )
    (blocked,) = decisions.blocked
    assert not missing(blocked.message, "training/r1", "1 place", "pool h100")
    assert replace(blocked, message="") == Blocked(
        key="training/high",
        uid="uid-high",
        reason=BlockReason.WAITING_FOR_VICTIMS,
        message="",
        blockers=("training/r1",),
        needed=2,
    )


@pytest.mark.parametrize(
    ("snapshot", "item"),
    [
        (full(), replace(HIGH, priority=0)),
        (replace(full(), queues=(queue("research", 100, preemption=replace(
            PREEMPTS, within_queue=WithinQueue.NEVER)),)), HIGH),
        (full(), replace(HIGH, nodes=3)),
        (full(), replace(HIGH, selector={"zone": "b"})),
        (full(), replace(HIGH, retry_at=50.0)),
        (replace(full(), admitted=tuple(
            replace(held, preemptible=False) for held in full().admitted)), HIGH),
    ],
    ids=["equal", "rule", "too big", "closed nodes", "backing off", "not preemptible"],
)  # fmt: skip
def test_nobody_is_sent_away(snapshot: Snapshot, item: Gang) -> None:
    decisions = run(snapshot, item)
    assert decisions.preemptions == ()
    assert decisions.blocked[0].reason is not BlockReason.WAITING_FOR_VICTIMS


def test_the_answer_stays_the_same_while_victims_save_and_while_their_pods_end() -> None:
    snapshot, first = full(r0=1), run(full(r0=1), HIGH)
    answer, left = after(snapshot, [HIGH], first), still_waiting([HIGH], first)
    again = run(answer, *left)
    assert (again.preemptions, again.blocked) == ((), first.blocked)
    ending = without(answer, "r1")
    going = bound("n1", snapshot.admitted)
    nodes = tuple(
        replace(node, used=going, terminating=going) if node.name == "n1" else node
        for node in ending.nodes
    )
    last = run(replace(ending, nodes=nodes), *left)
    assert last.preemptions == ()
    assert not missing(last.blocked[0].message, "1 place", "pool h100")
    assert run(ending, *left).placed[0].assignment == ("n1",)


def test_kept_places_are_nobody_elses_not_even_the_part_that_is_free_already() -> None:
    running = [admitted(gang("r0", gpus=2), "n0")]
    snapshot = cluster(*racks(count=1), running=running, queues=ALONE)
    pair = gang("pair", nodes=2, gpus=2, priority=5)
    first = run(snapshot, pair, gang("small", at=1))
    assert victims(first) == [["r0"]]
    assert first.placed == ()
    assert first.blocked[1].key == "training/small"
    assert first.blocked[1].blockers == ("training/pair",)
    answer, left = after(snapshot, [pair], first), still_waiting([pair], first)
    urgent = gang("urgent", priority=9)
    second = run(answer, *left, urgent)
    assert (second.placed, second.preemptions) == ((), ())
    assert run(without(answer, "r0"), *left, urgent).placed[0].key == "training/pair"


def test_what_victims_leave_beyond_the_need_is_open_to_the_next_preemptor() -> None:
    big = admitted(gang("big", nodes=2, gpus=2), "n0", "n1")
    snapshot = cluster(*racks(count=1), running=[big], queues=ALONE)
    item, two = gang("one", gpus=2, priority=5), gang("two", gpus=2, priority=4)
    first = run(snapshot, item, two)
    assert victims(first) == [["big"]]
    assert first.preemptions[0].key == "training/one"
    answer, left = after(snapshot, [item, two], first), still_waiting([item, two], first)
    assert run(answer, *left).preemptions == ()
    assert len(run(without(answer, "big"), *left).placed) == 2


def test_a_nominated_gang_starts_elsewhere_as_soon_as_it_can_and_gives_its_places_back() -> None:
    snapshot, first = full(r1=9), run(full(r1=9), HIGH)
    assert victims(first) == [["r0"]]
    answer, left = after(snapshot, [HIGH], first), still_waiting([HIGH], first)
    decisions = run(without(answer, "r1"), *left)
    assert [placed.assignment for placed in decisions.placed] == [("n1",)]


def test_a_nomination_whose_node_died_is_decided_anew() -> None:
    snapshot, first = full(r1=9), run(full(r1=9), HIGH)
    answer, left = after(snapshot, [HIGH], first), still_waiting([HIGH], first)
    dead = tuple(replace(node, ready=node.name != "n0") for node in answer.nodes)
    decisions = run(replace(answer, nodes=dead), *left)
    assert victims(decisions) == [["r1"]]
    assert decisions.preemptions[0].assignment == ("n1",)


def test_a_crash_between_nomination_and_notice_asks_for_the_same_victims_again() -> None:
    snapshot = full(r0=1)
    first = run(snapshot, HIGH)
    assert run(snapshot, *still_waiting([HIGH], first)) == first


def test_who_leaves_already_is_no_victim_again() -> None:
    snapshot = full()
    leaving = tuple(
        replace(held, leaving=held.gang.key == "training/r0") for held in snapshot.admitted
    )
    decisions = run(replace(snapshot, admitted=leaving), HIGH)
    assert (decisions.preemptions, decisions.placed) == ((), ())


def test_places_that_come_free_of_themselves_are_waited_for() -> None:
    snapshot = full()
    held = bound("n0", snapshot.admitted)
    nodes = tuple(
        replace(node, terminating=held) if node.name == "n0" else node
        for node in without(snapshot, "r0").nodes
    )
    used = tuple(replace(node, used=held) for node in nodes)
    left = without(snapshot, "r0").admitted
    assert run(replace(snapshot, nodes=used, admitted=left), HIGH).preemptions == ()


@pytest.mark.parametrize(("now", "names"), [(99.0, []), (100.0, [["r0"]])])
def test_a_minimum_runtime_protects_until_it_ends(now: float, names: list[list[str]]) -> None:
    snapshot = full(r1=1)
    snapshot = replace(
        snapshot,
        queues=(queue("research", 100, min_runtime_seconds=90.0),),
        admitted=tuple(replace(held, admitted_at=10.0) for held in snapshot.admitted),
    )
    decisions = run(snapshot, HIGH, now=now)
    assert victims(decisions) == names
    assert decisions.retry_at == (None if names else 100.0)


def test_the_lowest_priority_goes_where_all_else_is_equal() -> None:
    snapshot = full()
    low = tuple(
        replace(held, gang=replace(held.gang, priority=int(held.gang.key == "training/r0")))
        for held in snapshot.admitted
    )
    assert victims(run(replace(snapshot, admitted=low), HIGH)) == [["r1"]]


def test_the_domain_and_its_victims_are_chosen_together() -> None:
    running = [
        admitted(gang("r0", gpus=2), "n0", gpu_seconds_at_risk=10),
        admitted(gang("r1", gpus=2), "n2", gpu_seconds_at_risk=20),
        admitted(gang("r2", gpus=2), "n1", gpu_seconds_at_risk=500),
        admitted(gang("r3", gpus=2), "n3", gpu_seconds_at_risk=30),
    ]
    pair = gang("pair", nodes=2, gpus=2, priority=5, required_level="rack")
    decisions = run(cluster(*racks(), running=running, queues=ALONE), pair)
    assert victims(decisions) == [["r1", "r3"]]
    assert decisions.preemptions[0].domain == ("rack-1",)


def test_a_queue_reclaims_its_quota_from_a_borrower_of_any_priority() -> None:
    running = [
        admitted(gang("x", gpus=4, queue="a", priority=9), "n0"),
        admitted(gang("y", gpus=4, queue="a", priority=9), "n1", gpu_seconds_at_risk=5),
    ]
    snapshot = cluster(*racks(count=1, gpus=4), running=running, queues=COHORT)
    decisions = run(snapshot, gang("own", gpus=4, queue="b"))
    assert victims(decisions) == [["x"]]
    assert decisions.preemptions[0].victims[0].why is VictimReason.BORROWED


@pytest.mark.parametrize(
    ("queues", "item"),
    [
        (COHORT, gang("own", nodes=2, gpus=3, queue="b")),
        ((COHORT[0], COHORT[1], replace(COHORT[2], preemption=replace(
            PREEMPTS, reclaim=Reclaim.NEVER))), gang("own", gpus=4, queue="b")),
        ((COHORT[0], queue("a", 8, parent="org"), COHORT[2]), gang("own", gpus=4, queue="b")),
        ((*COHORT[:2], queue("b", 4)), gang("own", gpus=4, queue="b")),
    ],
    ids=["would borrow itself", "rule", "nobody borrows", "another tree"],
)  # fmt: skip
def test_nothing_is_reclaimed(queues: tuple[Queue, ...], item: Gang) -> None:
    running = [
        admitted(gang("x", gpus=4, queue="a"), "n0"),
        admitted(gang("y", gpus=4, queue="a"), "n1"),
    ]
    snapshot = cluster(*racks(count=1, gpus=4), running=running, queues=queues)
    assert run(snapshot, item).preemptions == ()


def test_no_more_is_reclaimed_than_was_borrowed_but_for_the_last_gang() -> None:
    """Queue a holds 8 of nominal 5: the second gang taken may go below, a third may not."""
    queues = (queue("org"), queue("a", 5, parent="org"), queue("b", 5, parent="org"))
    running = [admitted(gang(f"x{i}", gpus=2, queue="a"), f"n{i}") for i in range(4)]
    snapshot = cluster(*racks(count=1, nodes=4), running=running, queues=queues)
    two = gang("own", nodes=2, gpus=2, queue="b")
    assert victims(run(snapshot, two)) == [["x0", "x1"]]
    queues = (queue("org"), queue("a", 7, parent="org"), queue("b", 5, parent="org"))
    assert run(replace(snapshot, queues=queues), two).preemptions == ()


def test_nobody_is_sent_away_so_that_another_can_borrow() -> None:
    """Two queues that did so would push each other out for ever: this very world did."""
    running = [
        admitted(gang("low-a0", gpus=2, queue="a"), "n0"),
        admitted(gang("low-a1", gpus=2, queue="a"), "n1"),
    ]
    snapshot = cluster(*racks(count=1, nodes=4), running=running, queues=COHORT)
    greedy = gang("greedy", nodes=3, gpus=2, queue="a", priority=9)
    assert run(snapshot, greedy).placed == ()
    assert run(snapshot, greedy).preemptions == ()


def test_reclaim_in_a_tree_spares_the_branch_that_borrows_nothing() -> None:
    queues = (
        queue("org"),
        queue("west", parent="org"),
        queue("a", 2, parent="west"),
        queue("b", 2, parent="west"),
        queue("east", parent="org"),
        queue("c", 2, parent="east"),
        queue("d", 2, parent="east"),
    )
    running = [
        admitted(gang("b0", gpus=2, queue="b"), "n0", gpu_seconds_at_risk=8),
        admitted(gang("b1", gpus=2, queue="b"), "n1", gpu_seconds_at_risk=9),
        admitted(gang("c0", gpus=2, queue="c"), "n2"),
        admitted(gang("c1", gpus=2, queue="c"), "n3"),
    ]
    snapshot = cluster(*racks(count=1, nodes=4), running=running, queues=queues)
    assert victims(run(snapshot, gang("own", gpus=2, queue="a"))) == [["b0"]]
    assert victims(run(snapshot, gang("own", gpus=2, queue="d"))) == [["c0"]]


def test_own_lower_priorities_go_first_where_the_queue_is_over_its_quota_itself() -> None:
    running = [
        admitted(gang("mine", gpus=4, queue="b"), "n0"),
        admitted(gang("borrowed", gpus=4, queue="a"), "n1"),
        admitted(gang("nominal", gpus=4, queue="a"), "n2"),
    ]
    queues = (*COHORT, queue("c", 4, parent="org"))
    snapshot = cluster(*racks(count=1, nodes=3, gpus=4), running=running, queues=queues)
    decisions = run(snapshot, gang("high", gpus=4, queue="b", priority=5))
    assert victims(decisions) == [["mine"]]


def test_a_gang_of_another_pool_is_no_victim() -> None:
    spot = node("s0", "rack-0", pool="spot", gpus=2)
    running = [admitted(gang("r", gpus=2), "s0", pool="spot"), *full(r0=5).admitted]
    snapshot = cluster(
        *racks(count=1),
        spot,
        running=running,
        pools=("h100", "spot"),
        queues=(replace(ALONE[0], nominal={"h100": 100, "spot": 100}),),
    )
    assert victims(run(snapshot, replace(HIGH, pool="h100"))) == [["r1"]]
    assert victims(run(snapshot, HIGH)) == [["r1"]]
    assert run(snapshot, replace(HIGH, pool="spot")).preemptions[0].assignment == ("s0",)
