"""Whom a queue's own rule lets its gangs send away."""

from __future__ import annotations

import pytest

from drumline_scheduler import (
    Policy,
    PreemptionLimit,
    PreemptionRule,
    Reclaim,
    VictimReason,
    WithinQueue,
)
from tests.property.invariants import violations
from tests.texts import missing
from tests.unit.scheduler.builders import admitted, cluster, gang, queue, racks, run

LOWER, NEVER = WithinQueue.LOWER_PRIORITY, WithinQueue.NEVER


@pytest.mark.parametrize(
    ("within", "reclaim", "victim"),
    [
        (LOWER, Reclaim.NEVER, "training/own"),
        (NEVER, Reclaim.ANY, "training/other"),
        (LOWER, Reclaim.ANY, "training/other"),
        (NEVER, Reclaim.FAIR_SHARE, "training/other"),
        (NEVER, Reclaim.LOWER_PRIORITY, "training/other"),
    ],
)
def test_its_own_or_those_who_borrowed(within: WithinQueue, reclaim: Reclaim, victim: str) -> None:
    """The borrower would lose less."""
    running = [
        admitted(gang("own", gpus=2, queue="a"), "n0", gpu_seconds_at_risk=500.0),
        admitted(gang("other", gpus=2, queue="b"), "n1", gpu_seconds_at_risk=100.0),
    ]
    rule = PreemptionRule(within_queue=within, reclaim=reclaim)
    queues = (
        queue("org"),
        queue("a", 4, parent="org", preemption=rule),
        queue("b", 0, parent="org"),
    )
    snapshot = cluster(*racks(count=1), running=running, queues=queues)
    (preemption,) = run(snapshot, gang("x", gpus=2, queue="a", priority=5)).preemptions
    assert [victim.key for victim in preemption.victims] == [victim]


@pytest.mark.parametrize(("priority", "leaves"), [(4, True), (5, False), (6, False)])
def test_by_lower_priority_only_lower_jobs_are_reclaimed(priority: int, leaves: bool) -> None:
    rule = PreemptionRule(within_queue=NEVER, reclaim=Reclaim.LOWER_PRIORITY)
    queues = (
        queue("org"),
        queue("a", 2, parent="org", preemption=rule),
        queue("b", 0, parent="org"),
    )
    other = gang("other", gpus=2, queue="b", priority=priority)
    snapshot = cluster(*racks(count=1, nodes=1), running=[admitted(other, "n0")], queues=queues)
    decisions = run(snapshot, asks := gang("x", gpus=2, queue="a", priority=5))
    assert bool(decisions.preemptions) is leaves
    assert not violations(snapshot=snapshot, pending=[asks], decisions=decisions)


def test_without_a_rule_nobody_is_sent_away() -> None:
    rule = PreemptionRule(within_queue=NEVER, reclaim=Reclaim.NEVER)
    queues = (queue("org"), queue("a", 4, parent="org", preemption=rule))
    running = [admitted(gang("own", gpus=2, queue="a"), "n0")]
    snapshot = cluster(*racks(count=1, nodes=1), running=running, queues=queues)
    assert run(snapshot, gang("x", gpus=2, queue="a", priority=5)).preemptions == ()


@pytest.mark.parametrize(
    ("times", "until"),
    [
        ((), None),
        ((600.0, 1200.0), None),
        ((1200.0, 0.0, 600.0), 3600.0),
        ((0.0, 600.0, 1200.0, 1500.0), 4200.0),
    ],
    ids=str,
)
def test_who_was_preempted_often_is_spared_until_one_of_the_last_is_old(
    times: tuple[float, ...], until: float | None
) -> None:
    assert PreemptionLimit(times=3, seconds=3600.0).exempt_until(times) == until


@pytest.mark.parametrize(("times", "seconds"), [(0, 1.0), (1, 0.0)])
def test_a_limit_lets_somebody_be_preempted_some_time(times: int, seconds: float) -> None:
    with pytest.raises(ValueError, match="at least 1 preemption"):
        PreemptionLimit(times=times, seconds=seconds)


def test_another_victim_is_taken_while_one_is_spared_and_none_is_said_to_be() -> None:
    policy = Policy(preemption_limit=PreemptionLimit(times=2, seconds=100.0))
    tired = admitted(gang("tired", gpus=2), "n0", preempted_at=(10.0, 20.0))
    fresh = admitted(gang("fresh", gpus=2), "n1", preempted_at=(20.0,), gpu_seconds_at_risk=9e9)
    snapshot = cluster(*racks(count=1), running=[tired, fresh], queues=(queue("research", 4),))
    urgent = gang("x", gpus=2, priority=5)
    (preemption,) = run(snapshot, urgent, policy=policy, now=30.0).preemptions
    assert [victim.key for victim in preemption.victims] == ["training/fresh"]
    both = gang("y", nodes=2, gpus=2, priority=5)
    waits = run(snapshot, both, policy=policy, now=30.0)
    assert not missing(waits.blocked[0].message, "training/tired")
    assert waits.retry_at == 110.0
    assert run(snapshot, both, policy=policy, now=110.0).preemptions


def test_what_a_gang_borrows_is_reclaimed_however_often_it_was_preempted() -> None:
    """Its own queue could else have it spared, at the price of some restarts."""
    policy = Policy(preemption_limit=PreemptionLimit(times=2, seconds=100.0))
    queues = (queue("all", 0), queue("research", 2, parent="all"), queue("other", 2, parent="all"))
    tired = [
        admitted(gang(name, gpus=2, nodes=1), host, preempted_at=(10.0, 20.0))
        for name, host in (("a", "n0"), ("b", "n1"))
    ]
    snapshot = cluster(*racks(count=1), running=tired, queues=queues)
    owner = gang("owner", gpus=2, queue="other")
    decisions = run(snapshot, owner, policy=policy, now=30.0)
    (preemption,) = decisions.preemptions
    assert [victim.why for victim in preemption.victims] == [VictimReason.BORROWED]
    asked = {"snapshot": snapshot, "pending": [owner], "policy": policy, "now": 30.0}
    assert violations(decisions=decisions, **asked) == ()
    own = gang("own", gpus=2, priority=5)
    assert run(snapshot, own, policy=policy, now=30.0).preemptions == ()
