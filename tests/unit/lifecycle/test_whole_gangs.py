"""Failures of whole gangs: what they cost, and which can never be mended. See `test_failure`."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.lifecycle.plan.acceptance import is_queued
from drumline.lifecycle.plan.actions import (
    DeleteGenerations,
    JobPlan,
)
from drumline_api.conditions import Phase, Reason
from drumline_contract import ExitCode
from tests.builders import (
    T0,
    a_job,
    a_pod,
    admitted,
    ended,
    observed,
    report,
    running,
    with_status,
)
from tests.texts import missing
from tests.unit.lifecycle.planning import planned

TEMPLATE = {"image": "any:1", "command": ["true"]}


def test_an_application_error_restarts_the_gang_on_its_nodes_and_is_charged() -> None:
    job = running(admitted(a_job()))
    words = report(error="rank 1: ValueError: boom")
    pods = [
        a_pod(job, 0, end=ended(exit_code=ExitCode.PEER_LOST)),
        a_pod(job, 1, end=ended(exit_code=1, message=words)),
    ]
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.generation, status.restarts, status.phase) == (2, 1, Phase.RECOVERING)
    assert status.assignment is not None
    assert status.assignment.node_names() == ("node-a", "node-b")
    assert "rank 1: ValueError: boom" in (status.incident or "")
    assert "restart 1 of 3" in (status.message or "")


def test_members_that_lost_a_peer_wait_for_that_peers_own_end() -> None:
    job = running(admitted(a_job()))
    lost = ended(exit_code=ExitCode.PEER_LOST, at=T0)
    pods = [a_pod(job, 0, end=lost), a_pod(job, 1, ready=True, ip="10.0.0.2")]
    assert planned(job, observed(*pods), now=T0 + 9) == JobPlan(requeue_at=T0 + 10)
    assert planned(job, observed(*pods), now=T0 + 10).status is not None


def test_the_job_fails_when_its_restarts_are_used_up() -> None:
    job = running(admitted(a_job(recovery={"maxRestarts": 0})))
    pods = [a_pod(job, i, end=ended(exit_code=1, message="boom")) for i in (0, 1)]
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.RESTARTS_EXHAUSTED)
    assert not missing(status.message or "", "boom", "0 of 0", "recovery.maxRestarts")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (ExitCode.CONFIG, Reason.CONFIG_REFUSED),
        (ExitCode.CORRUPT_CHECKPOINT, Reason.CORRUPT_CHECKPOINT),
    ],
)
def test_what_can_never_work_is_not_tried_again(code: ExitCode, reason: Reason) -> None:
    job = running(admitted(a_job()))
    pods = [a_pod(job, 0, end=ended(exit_code=code)), a_pod(job, 1, ready=True)]
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.phase, status.reason) == (Phase.FAILED, reason)


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        ({"terminating": True}, Reason.POD_LOST),
        ({"end": ended(exit_code=None, reason="Evicted")}, Reason.POD_LOST),
        ({"end": ended(exit_code=137), "terminating": True}, Reason.POD_LOST),
        (
            {"end": ended(exit_code=None, reason="UnexpectedAdmissionError")},
            Reason.KUBELET_REFUSED,
        ),
        ({"end": ended(exit_code=None, reason="OutOfnvidia.com/gpu")}, Reason.KUBELET_REFUSED),
    ],
)
def test_a_lost_or_refused_pod_requeues_a_gang_with_a_template(
    pod: dict[str, Any], reason: Reason
) -> None:
    job = running(admitted(a_job(template=TEMPLATE)))
    pods = [a_pod(job, 0, ready=True, ip="1.1.1.1"), a_pod(job, 1, **pod)]
    status = planned(job, observed(*pods)).status
    assert status is not None
    lost = int(reason is Reason.POD_LOST)
    assert (status.assignment, status.restarts, status.reason) == (None, lost, reason)
    released = with_status(job, status)
    assert is_queued(released)
    assert planned(released, observed(pods[0])).actions == (DeleteGenerations(generations=(1,)),)


def test_a_template_s_process_that_ends_as_by_a_signal_is_its_own_failure() -> None:
    """A launcher ends with 137 when a process that it started was killed, for memory perhaps."""
    job = running(admitted(a_job(template=TEMPLATE, recovery={"maxRestarts": 0})))
    pods = [a_pod(job, 0, end=ended(exit_code=137)), a_pod(job, 1, ready=True, ip="1.1.1.1")]
    status = planned(job, observed(*pods)).status
    assert status is not None
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.RESTARTS_EXHAUSTED)


def test_a_pod_that_vanished_while_running_is_a_lost_pod() -> None:
    job = running(admitted(a_job(template=TEMPLATE)))
    status = planned(job, observed(a_pod(job, 0, ready=True, ip="1.1.1.1"))).status
    assert status is not None
    assert status.reason == Reason.POD_LOST
    assert "llama-1-g1" in (status.message or "")


def test_blame_without_a_time_is_acted_upon_at_once() -> None:
    job = running(admitted(a_job()))
    lost = ended(exit_code=ExitCode.PEER_LOST, at=None)
    pods = [a_pod(job, 0, end=lost), a_pod(job, 1, ready=True, ip="10.0.0.2")]
    assert planned(job, observed(*pods)).status is not None


def test_a_pod_without_an_agent_that_ran_out_of_memory_names_the_limit() -> None:
    job = running(admitted(a_job(template=TEMPLATE, resources={"memory": "256Mi"})))
    end = ended(exit_code=137, reason="OOMKilled")
    status = planned(job, observed(a_pod(job, 0, end=end), a_pod(job, 1, ready=True))).status
    assert status is not None
    assert not missing(
        status.message or "", "out of memory: the limit is 256Mi, raise resources.memory"
    )
