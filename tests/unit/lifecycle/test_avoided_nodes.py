"""A GPU fails under a member: it is placed again, and not on that node."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.lifecycle.incidents.avoided_nodes import (
    AVOID_SECONDS,
    MAX_AVOIDED,
    with_failed_devices,
)
from drumline.lifecycle.incidents.failures import classify
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan.actions import JobPlan
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.conditions import Phase, Reason
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import ExitCode
from tests.builders import (
    EPOCH,
    T0,
    a_job,
    a_pod,
    admitted,
    ended,
    observed,
    ready_pods,
    report,
    running,
    with_status,
)
from tests.unit.lifecycle.planning import decided

NODES = ("node-a", "node-b", "node-c")
ECC = "rank 1: AcceleratorError: CUDA error: uncorrectable ECC error encountered"
FAILED = ended(exit_code=ExitCode.DEVICE, message=report(error=ECC))
PEERS_LOST = ended(exit_code=ExitCode.PEER_LOST, message=report(error="member 1 gave up"))


def a_gang(**spec: Any) -> Job:
    return running(
        admitted(a_job(nodes=3, **({"trainer": {"globalBatchSize": 12}} | spec)), nodes=NODES)
    )


def avoided(status: TrainingJobStatus) -> list[str]:
    return [entry.node for entry in status.avoided_nodes or ()]


@pytest.mark.parametrize("peers", [{"ready": True, "ip": "10.0.0.9"}, {"end": PEERS_LOST}])
def test_the_member_is_placed_again_and_its_node_avoided(peers: dict[str, Any]) -> None:
    job = a_gang()
    pods = [a_pod(job, 0, **peers), a_pod(job, 1, end=FAILED), a_pod(job, 2, **peers)]
    status = decided(job, observed(*pods))
    assert status.assignment is not None
    assert (status.assignment.lost, status.reason) == ([1], Reason.DEVICE_FAILED)
    assert [(str(each.fault_class), each.used) for each in status.budgets or ()] == [
        ("Infrastructure", 1)
    ]
    assert status.last_incident is not None
    assert (status.last_incident.node, status.last_incident.index) == ("node-b", 1)
    assert [(entry.node, entry.cause) for entry in status.avoided_nodes or ()] == [("node-b", ECC)]


def test_a_job_of_one_node_queues_again() -> None:
    job = running(admitted(a_job(nodes=1), nodes=("node-a",)))
    status = decided(job, observed(a_pod(job, 0, end=FAILED)))
    assert (status.phase, status.assignment) == (Phase.PENDING, None)
    assert avoided(status) == ["node-a"]


def test_after_an_hour_the_node_may_be_used_again() -> None:
    job = running(admitted(a_job(nodes=1), nodes=("node-a",)))
    waiting = with_status(job, decided(job, observed(a_pod(job, 0, end=FAILED))))
    end = T0 + 1 + AVOID_SECONDS
    assert plan_job(waiting, observed(), now=end - 1, epoch=EPOCH) == JobPlan(requeue_at=end)
    status = decided(waiting, observed(), now=end)
    assert (status.avoided_nodes, status.phase) == (None, Phase.PENDING)


def test_a_member_that_was_to_join_ends_the_growth_and_its_node_is_avoided() -> None:
    job = a_gang(minNodes=1)
    assignment = job.status.assignment
    assert assignment is not None
    growing = assignment.model_copy(update={"joining": [2]})
    job = with_status(job, job.status.model_copy(update={"assignment": growing}))
    status = decided(job, observed(*ready_pods(job)[:2], a_pod(job, 2, end=FAILED)))
    assert status.assignment is not None
    assert (len(status.assignment.node_names()), avoided(status)) == (2, ["node-c"])


def test_the_exit_code_of_a_template_s_program_says_nothing_of_gpus() -> None:
    job = running(admitted(a_job(nodes=3, template={"image": "any:1"}), nodes=NODES))
    pods = ready_pods(job)
    status = decided(job, observed(*pods[:2], a_pod(job, 2, end=ended(exit_code=ExitCode.DEVICE))))
    assert (status.reason, avoided(status)) == (Reason.POD_FAILED, [])


def test_the_oldest_nodes_are_forgotten_first() -> None:
    status, names = TrainingJobStatus(), [f"node-{number}" for number in range(MAX_AVOIDED + 2)]
    for second, name in enumerate((*names, "node-5")):
        job = admitted(a_job(nodes=1), nodes=(name,))
        failure = classify(a_pod(job, 0, end=FAILED))
        assert failure is not None
        status = with_failed_devices(status, [failure], now=T0 + second)
    assert avoided(status) == [*names[2:5], *names[6:], "node-5"]
