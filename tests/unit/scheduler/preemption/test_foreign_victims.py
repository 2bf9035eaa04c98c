"""Foreign pods by which a queue borrows give way to whom the quota belongs, and to nobody else."""

from __future__ import annotations

import pytest

from drumline_scheduler import Admitted, Decisions, Snapshot
from drumline_scheduler.decisions import VictimReason
from drumline_scheduler.model import Gang
from tests.property.invariants import violations
from tests.unit.scheduler.builders import BEST_EFFORT, admitted, cluster, gang, node, queue, run


def pod(name: str, place: str, *, gpus: int = 1, gives_back: bool = True) -> Admitted:
    held = gang(name, gpus=gpus, queue="serving")
    return admitted(held, place, is_residual=True, is_foreign=True, preemptible=gives_back)


def lending(*pods: Admitted, own: int = 2, gpus: int = 4) -> Snapshot:
    """A node full of serving's pods, `own` of whose GPUs are its quota; the rest is research's."""
    queues = (
        queue("org"),
        queue("research", gpus - own, parent="org"),
        queue("serving", own, parent="org"),
    )
    return cluster(node("n0", "rack-0", gpus=gpus), queues=queues, running=pods)


def lawful(snapshot: Snapshot, *pending: Gang) -> Decisions:
    decisions = run(snapshot, *pending)
    assert not violations(
        snapshot=snapshot, pending=pending, decisions=decisions, policy=BEST_EFFORT, now=0.0
    )
    return decisions


def test_as_many_pods_leave_as_the_lender_needs() -> None:
    snapshot = lending(*(pod(f"chat-{number}", "n0") for number in range(4)))
    (preemption,) = lawful(snapshot, gang("x", gpus=1, queue="research")).preemptions
    (victim,) = preemption.victims
    assert (victim.gpus, victim.why) == (1, VictimReason.BORROWED)
    (preemption,) = lawful(snapshot, gang("x", gpus=2, queue="research")).preemptions
    assert len(preemption.victims) == 2


def test_no_pod_leaves_of_which_the_queue_owns_a_part() -> None:
    """Of 3 + 1 GPUs serving has borrowed one: a job of 3 would leave for it, a pod does not."""
    large, small = pod("large", "n0", gpus=3), pod("small", "n0")
    wants = gang("x", gpus=1, queue="research")
    (preemption,) = lawful(lending(large, small, own=3), wants).preemptions
    assert [victim.key for victim in preemption.victims] == ["training/small"]
    kept = pod("small", "n0", gives_back=False)
    assert lawful(lending(large, kept, own=3), wants).preemptions == ()
    job = admitted(gang("large", gpus=3, queue="serving"), "n0")
    (preemption,) = lawful(lending(job, kept, own=3), wants).preemptions
    assert [victim.key for victim in preemption.victims] == ["training/large"]


@pytest.mark.parametrize("own", [1, 2])
def test_pods_and_jobs_together_leave_the_queue_its_quota(own: int) -> None:
    """Two pods of 1, a job of 2: with 2 of its own serving has borrowed what the lender needs."""
    job = admitted(gang("job", gpus=2, queue="serving"), "n0", gpu_seconds_at_risk=1e6)
    snapshot = lending(pod("a", "n0"), pod("b", "n0"), job, own=own)
    wants = gang("x", gpus=4 - own, queue="research")
    (preemption,) = lawful(snapshot, wants).preemptions
    assert sum(victim.gpus for victim in preemption.victims) == 4 - own


def test_pods_of_its_own_queue_give_way_to_no_job() -> None:
    snapshot = lending(*(pod(f"chat-{number}", "n0") for number in range(4)))
    wants = gang("x", gpus=1, queue="serving", priority=1000)
    assert lawful(snapshot, wants).preemptions == ()


def test_pods_stay_where_their_queue_does_not_give_back() -> None:
    pods = (pod(f"chat-{number}", "n0", gives_back=False) for number in range(4))
    assert lawful(lending(*pods), gang("x", gpus=1, queue="research")).preemptions == ()
