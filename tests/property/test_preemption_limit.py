"""Nobody is preempted too often by his own queue, priority is honoured after a bounded time, and
quota at once.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import Policy, PreemptionLimit, Snapshot
from tests.property.invariants import violations
from tests.unit.scheduler.builders import admitted, cluster, gang, node, queue, run

pytestmark = pytest.mark.extended(keep=20)

HOUR = 3600.0


def crowded(chance: Random, *, now: float) -> Snapshot:
    """One node, full of jobs of low priority, each with a past of its own."""
    count = chance.randint(1, 4)
    running = [
        admitted(
            gang(f"low-{number}", gpus=1, priority=chance.randint(0, 2)),
            "n0",
            preempted_at=tuple(now - chance.uniform(0, 2 * HOUR) for _ in range(6)),
            admitted_at=now - chance.uniform(0, HOUR),
        )
        for number in range(count)
    ]
    return cluster(node("n0", gpus=count), queues=(queue("research", count),), running=running)


@pytest.mark.parametrize("seed", range(40))
def test_an_important_job_waits_for_less_than_the_window(seed: int) -> None:
    chance = Random(seed)
    limit = PreemptionLimit(times=chance.randint(1, 4), seconds=chance.uniform(60, HOUR))
    policy, arrived = Policy(preemption_limit=limit), 10 * HOUR
    snapshot = crowded(chance, now=arrived)
    urgent = gang("urgent", gpus=chance.randint(1, len(snapshot.admitted)), priority=9)
    now = arrived
    decisions = run(snapshot, urgent, policy=policy, now=now)
    while not decisions.preemptions:
        assert "recently preempted, so exempt: training/low-" in decisions.blocked[0].message
        assert decisions.retry_at is not None
        assert now < decisions.retry_at < arrived + limit.seconds
        now = decisions.retry_at
        decisions = run(snapshot, urgent, policy=policy, now=now)
    asked = {"snapshot": snapshot, "pending": [urgent], "policy": policy, "now": now}
    assert violations(decisions=decisions, **asked) == ()


@pytest.mark.parametrize("seed", range(40))
def test_who_owns_quota_waits_for_nobody_s_past(seed: int) -> None:
    chance = Random(seed)
    now = 10 * HOUR
    limit = PreemptionLimit(times=chance.randint(1, 4), seconds=chance.uniform(60, HOUR))
    policy = Policy(preemption_limit=limit)
    crowd = crowded(chance, now=now)
    count = len(crowd.admitted)
    owned = chance.randint(1, count)
    queues = (
        queue("all"),
        queue("research", count - owned, parent="all"),
        queue("owner", owned, parent="all"),
    )
    snapshot = replace(crowd, queues=queues)
    claim = gang("claim", gpus=owned, queue="owner")
    decisions = run(snapshot, claim, policy=policy, now=now)
    (preemption,) = decisions.preemptions
    assert len(preemption.victims) == owned
    asked = {"snapshot": snapshot, "pending": [claim], "policy": policy, "now": now}
    assert violations(decisions=decisions, **asked) == ()


@pytest.mark.parametrize("seed", range(40))
def test_a_job_is_preempted_only_so_often_in_any_window(seed: int) -> None:
    """Urgent jobs come again and again; the low one comes back whenever there is room."""
    chance = Random(seed)
    limit = PreemptionLimit(times=chance.randint(1, 4), seconds=chance.uniform(600, HOUR))
    policy = Policy(preemption_limit=limit)
    left: list[float] = []
    now = 0.0
    for number in range(40):
        now += chance.expovariate(1 / 200.0)
        low = admitted(gang("low"), "n0", preempted_at=tuple(left[-16:]), admitted_at=now)
        snapshot = cluster(node("n0", gpus=1), queues=(queue("research", 1),), running=[low])
        urgent = gang(f"urgent-{number}", priority=9)
        if run(snapshot, urgent, policy=policy, now=now).preemptions:
            left.append(now)
    assert len(left) >= min(limit.times, 40)
    for first in left:
        within = [at for at in left if first <= at < first + limit.seconds]
        assert len(within) <= limit.times
