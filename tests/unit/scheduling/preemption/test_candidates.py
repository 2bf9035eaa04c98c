"""Whom a queue's own rule lets its gangs send away."""

from __future__ import annotations

import pytest

from drumline.scheduling import PreemptionRule, Reclaim, WithinQueue
from tests.unit.scheduling.builders import admitted, cluster, gang, queue, racks, run

LOWER, NEVER = WithinQueue.LOWER_PRIORITY, WithinQueue.NEVER


@pytest.mark.parametrize(
    ("within", "reclaim", "victim"),
    [
        (LOWER, Reclaim.NEVER, "training/own"),
        (NEVER, Reclaim.ANY, "training/other"),
        (LOWER, Reclaim.ANY, "training/other"),
        (NEVER, Reclaim.FAIR_SHARE, "training/other"),
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


def test_without_a_rule_nobody_is_sent_away() -> None:
    rule = PreemptionRule(within_queue=NEVER, reclaim=Reclaim.NEVER)
    queues = (queue("org"), queue("a", 4, parent="org", preemption=rule))
    running = [admitted(gang("own", gpus=2, queue="a"), "n0")]
    snapshot = cluster(*racks(count=1, nodes=1), running=running, queues=queues)
    assert run(snapshot, gang("x", gpus=2, queue="a", priority=5)).preemptions == ()
