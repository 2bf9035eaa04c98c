"""A queue that is drained: what it runs leaves, nothing of it starts, and all may come back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import Admitted, BlockReason, Queue, QueueEvictionReason, Snapshot
from drumline_scheduler.model import Budget, WhenSpent
from drumline_scheduler.queue_evictions import stopped_queues
from tests.property.invariants import violations
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, node, queue, run

NOW = 1_800_000_000.0
OPEN = queue("research", 8)
DRAINED = replace(OPEN, held=True, drained=True)
OTHER = queue("other", 8)


def site(*running: Admitted, queues: tuple[Queue, ...] = (DRAINED, OTHER)) -> Snapshot:
    return cluster(node("n0"), node("n1"), queues=queues, running=running)


RUNS = admitted(gang("runs", gpus=2), "n0", gpu_seconds_at_risk=70.0)


def test_what_runs_leaves_and_what_waits_is_told_why() -> None:
    elsewhere = admitted(gang("elsewhere", gpus=2, queue="other"), "n1")
    snapshot, waits = site(RUNS, elsewhere), gang("waits")
    decisions = run(snapshot, waits)
    (eviction,) = decisions.evictions
    assert (eviction.key, eviction.queue, eviction.gpus) == ("training/runs", "research", 2)
    assert eviction.why is QueueEvictionReason.QUEUE_DRAINED
    assert eviction.gpu_seconds_lost == 70.0
    (blocked,) = decisions.blocked
    assert blocked.reason is BlockReason.QUEUE_HELD
    assert not missing(blocked.message, "queue research", "drained", "stopPolicy")
    assert violations(snapshot=snapshot, pending=[waits], decisions=decisions) == ()


def test_a_held_queue_keeps_what_runs() -> None:
    assert run(site(RUNS, queues=(replace(OPEN, held=True),))).evictions == ()


@pytest.mark.parametrize(
    "held",
    [
        replace(RUNS, leaving=True),
        replace(RUNS, leaving=True, departs=True),
        replace(RUNS, leaving=True, is_residual=True),
        replace(RUNS, is_residual=True, is_foreign=True),
    ],
    ids=["leaves for another", "told before", "remains", "foreign"],
)
def test_nobody_is_told_who_leaves_already_or_is_no_job(held: Admitted) -> None:
    decisions = run(site(held))
    assert (decisions.evictions, decisions.stay) == ((), ())


def test_whose_queue_is_open_again_stays_and_is_nobodys_room() -> None:
    leaves = replace(RUNS, leaving=True, departs=True)
    snapshot = site(leaves, queues=(OPEN,))
    waits = gang("waits", nodes=2, gpus=2)
    decisions = run(snapshot, waits)
    assert decisions.stay == (RUNS.gang.uid,)
    assert (decisions.evictions, decisions.placed, decisions.preemptions) == ((), (), ())
    assert violations(snapshot=snapshot, pending=[waits], decisions=decisions) == ()


def test_a_gang_that_is_to_leave_is_neither_repaired_nor_anybodys_victim() -> None:
    broken = admitted(gang("broken", nodes=2, gpus=2), "n0", "gone", lost=frozenset({1}))
    urgent = gang("urgent", nodes=2, gpus=2, queue="other", priority=9)
    snapshot = site(broken, queues=(DRAINED, replace(OTHER, parent=None)))
    decisions = run(snapshot, urgent)
    assert [eviction.uid for eviction in decisions.evictions] == [broken.gang.uid]
    assert (decisions.placed, decisions.resized, decisions.preemptions) == ((), (), ())


def test_slots_that_were_kept_for_a_waiting_gang_are_free_again() -> None:
    nominated = gang("waits", gpus=2, nominated=("n1",), nominated_pool="h100")
    late = gang("late", nodes=2, gpus=2, queue="other")
    decisions = run(site(), nominated, late)
    assert [placed.key for placed in decisions.placed] == [late.key]


def test_a_queue_that_lets_start_what_it_sends_away_is_rejected() -> None:
    with pytest.raises(ValueError, match="drained"):
        replace(OPEN, drained=True)


def test_the_invariant_names_whoever_goes_on_or_leaves_without_need() -> None:
    snapshot = site(RUNS)
    decisions = run(snapshot)
    without = replace(decisions, evictions=())
    (problem,) = violations(snapshot=snapshot, pending=(), decisions=without)
    assert not missing(problem, "training/runs", "drained", "queue research")
    opened = site(RUNS, queues=(OPEN,))
    (problem,) = violations(snapshot=opened, pending=(), decisions=decisions)
    assert not missing(problem, "training/runs", "drained")


def test_queues_that_are_drained_or_expired_give_up_other_workloads_too() -> None:
    budget = Budget(gpu_hours=1, window_days=1, when_spent=WhenSpent.EXPIRE)
    spent, warned = (
        replace(OTHER, name=name, budget=replace(budget, when_spent=when))
        for name, when in (("spent", WhenSpent.EXPIRE), ("warned", WhenSpent.WARN))
    )
    snapshot = site(queues=(DRAINED, OTHER, spent, warned))
    day = int(NOW // 86_400)
    had = {day: 3601}
    stopped = stopped_queues(replace(snapshot, spent={"spent": had, "warned": had}), now=NOW)
    assert stopped.keys() == {"research", "spent"}
    assert not missing(stopped["spent"], "queue spent")
    assert stopped_queues(site(queues=(OTHER,)), now=NOW) == {}


SMALLER = queue("research", 4, evicts_excess=True)
A, B, C = (
    admitted(gang(name, gpus=gpus, priority=priority), place, gpu_seconds_at_risk=risk)
    for name, gpus, priority, risk, place in (
        ("a", 4, 1, 0.0, "n0"),
        ("b", 2, 0, 9.0, "n1"),
        ("c", 2, 0, 5.0, "n1"),
    )
)


def lowered(*running: Admitted, to: Queue = SMALLER, cohort: tuple[Queue, ...] = ()) -> Snapshot:
    nodes = (node("n0", gpus=4), node("n1", gpus=4))
    return cluster(*nodes, queues=(to, *cohort), running=running or (A, B, C))


def leave(snapshot: Snapshot) -> list[str]:
    decisions = run(snapshot, gang("new"))
    assert violations(snapshot=snapshot, pending=[gang("new")], decisions=decisions) == ()
    assert decisions.placed == ()
    return [eviction.key.removeprefix("training/") for eviction in decisions.evictions]


def test_a_queue_takes_back_what_runs_above_its_lowered_quota() -> None:
    assert leave(lowered()) == ["b", "c"]
    assert leave(lowered(to=replace(SMALLER, nominal={"h100": 6}))) == ["c"]
    assert leave(lowered(to=replace(SMALLER, evicts_excess=False))) == []
    (eviction, _) = run(lowered()).evictions
    assert eviction.why is QueueEvictionReason.QUOTA_LOWERED
    assert not missing(eviction.message, "research", "8 GPUs", "h100", "quota of 4")


def test_a_large_gang_spares_the_small_ones_before_it() -> None:
    large = admitted(gang("large", gpus=4), "n0", gpu_seconds_at_risk=50.0)
    assert leave(lowered(large, B, C)) == ["b", "c"]
    assert leave(lowered(large, C, to=replace(SMALLER, nominal={"h100": 2}))) == ["large"]


def test_notified_gangs_leave_first_and_stay_once_the_quota_is_raised() -> None:
    leaving = [replace(each, leaving=True, departs=True) for each in (A, B)]
    assert leave(lowered(*leaving, C)) == []
    assert run(lowered(*leaving, C)).stay == (B.gang.uid,)
    raised = replace(SMALLER, nominal={"h100": 8})
    assert set(run(lowered(*leaving, C, to=raised)).stay) == {A.gang.uid, B.gang.uid}


def test_permitted_borrowing_stays_and_lost_cohort_quota_evicts() -> None:
    lender = queue("lender", 4, parent="org")
    member = replace(SMALLER, parent="org")
    tree = (queue("org"), lender)
    assert leave(lowered(to=member, cohort=tree)) == []
    lost = (queue("org"), replace(lender, nominal={"h100": 2}))
    assert leave(lowered(to=member, cohort=lost)) == ["c"]
    limited = replace(member, borrowing_limit={"h100": 1})
    assert leave(lowered(to=limited, cohort=tree)) == ["b", "c"]


@pytest.mark.parametrize("changes", [{"is_foreign": True}, {"is_residual": True}])
def test_pods_without_a_job_evict_no_job(changes: dict[str, bool]) -> None:
    other = replace(C, preemptible=False, **changes)
    assert leave(lowered(A, other)) == []


def test_a_short_outage_takes_nothing_back() -> None:
    percentage = replace(SMALLER, nominal={"h100": 2}, lasting_nominal={"h100": 8})
    assert leave(lowered(to=percentage)) == []
