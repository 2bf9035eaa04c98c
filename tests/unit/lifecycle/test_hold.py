"""A gang that has failed for good and is held for its user: what is said, counted and let be."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.conditions import condition
from drumline.lifecycle.model.gang import observed_gang
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import NodeDisruption, Observed
from drumline.lifecycle.plan.generation_record import generation_record
from drumline_api.conditions import ConditionType, DisruptionKind, Phase, Reason
from drumline_api.incidents import GpuSeconds
from drumline_contract import ExitCode, FaultClass, FinalReport, Progress, Remark, RemarkKind
from tests.builders import (
    EPOCH,
    T0,
    a_job,
    a_pod,
    admitted,
    ended,
    observed,
    ready_pods,
    running,
    with_spec,
    with_status,
)
from tests.texts import missing
from tests.unit.lifecycle.planning import decided, planned

SENTENCE = "held until 2023-11-14T22:23:20Z: `drumline shell llama --rank 3` looks into the pod"
TEMPLATE = {"image": "mine:1", "command": ["train"], "launch": "PerGpu"}


def a_held_job(**spec: Any) -> Job:
    recovery = {"holdSeconds": 600, "maxRestarts": 0}
    return running(admitted(a_job(template=TEMPLATE, recovery=recovery, **spec)))


def held(job: Job, **rest: Any) -> Observed:
    remark = Remark(kind=RemarkKind.HELD, sentence=SENTENCE)
    return replace(observed(*ready_pods(job), **rest), remark=remark, waiting_for="")


def shown(job: Job, *, now: float) -> Job:
    status = planned(job, held(job), now=now).status
    assert status is not None
    assert (status.phase, status.reason, status.message) == (Phase.RUNNING, Reason.HELD, SENTENCE)
    return with_status(job, status)


def counted(job: Job) -> tuple[int, int]:
    account = job.status.gpu_seconds
    assert isinstance(account, GpuSeconds)
    return account.productive, account.recovering


def test_gpu_seconds_of_a_hold_are_no_training() -> None:
    job = shown(a_held_job(), now=T0 + 100)
    gpus = job.gpus
    assert counted(job) == (100 * gpus, 0)
    assert planned(job, held(job), now=T0 + 200).status is None
    suspended = with_spec(job, suspend=True)
    status = planned(suspended, held(job), now=T0 + 300).status
    assert status is not None
    assert status.phase == Phase.SUSPENDED
    assert counted(with_status(job, status)) == (100 * gpus, 200 * gpus)


def test_a_hold_that_a_newer_report_takes_back_is_training_again() -> None:
    job = shown(a_held_job(), now=T0 + 100)
    trains = replace(held(job), remark=None)
    status = planned(job, trains, now=T0 + 150).status
    assert status is not None
    assert status.reason == Reason.TRAINING
    assert counted(with_status(job, status)) == (100 * job.gpus, 50 * job.gpus)


def test_the_failure_is_handled_when_the_pods_have_ended_and_says_that_they_were_held() -> None:
    job = shown(a_held_job(), now=T0 + 100)
    text = FinalReport(
        progress=Progress(step=7),
        error="rank 3: ValueError: shapes",
        failed_rank=3,
        fault_class=FaultClass.APPLICATION,
        held_seconds=600.0,
    ).encode()
    first, *healthy = ready_pods(job)
    end = ended(exit_code=ExitCode.APPLICATION, message=text.decode())
    seen = replace(held(job), pods=(replace(first, ready=False, end=end), *healthy))
    status = planned(job, seen, now=T0 + 700).status
    assert status is not None
    assert (status.phase, status.reason) == (Phase.FAILED, Reason.RESTARTS_EXHAUSTED)
    assert not missing(status.message or "", "1", "600 s", "rank 3", "ValueError")
    assert counted(with_status(job, status)) == (100 * job.gpus, 600 * job.gpus)


@pytest.mark.parametrize("acknowledges_saves", [True, False])
def test_a_preemption_does_not_wait_for_a_gang_that_is_held(acknowledges_saves: bool) -> None:
    job = shown(a_held_job(), now=T0 + 100)
    status = transitions.disrupted(
        job,
        kind=DisruptionKind.PREEMPTION,
        by="team/urgent",
        by_uid="uid-urgent",
        message="team/urgent needs 4 GPUs of this job",
        deadline=T0 + 400,
        now=T0 + 200,
    )
    job = with_status(job, status)
    seen = held(job, acknowledges_saves=acknowledges_saves)
    preempted = planned(job, seen, now=T0 + 201).status
    assert preempted is not None
    assert preempted.assignment is None


def test_a_hold_is_shown_and_counted_while_a_node_of_the_gang_is_cordoned() -> None:
    cordon = NodeDisruption(
        node="node-a", kind=DisruptionKind.MAINTENANCE, source="cordon", certain=False
    )
    job = a_held_job()
    before = replace(held(job, node_disruptions=(cordon,)), remark=None)
    disrupted = with_status(job, decided(job, before, now=T0 + 50))
    assert disrupted.status.reason == Reason.NODE_DISRUPTED
    seen = held(disrupted, node_disruptions=(cordon,), evictable=1)
    status = planned(disrupted, seen, now=T0 + 100).status
    assert status is not None
    assert (status.reason, status.message) == (Reason.HELD, SENTENCE)
    job = with_status(job, status)
    assert planned(job, seen, now=T0 + 200).status is None
    back = planned(job, replace(seen, remark=None), now=T0 + 200).status
    assert back is not None
    assert (back.reason, back.message) == (Reason.NODE_DISRUPTED, disrupted.status.message)
    assert counted(with_status(job, back)) == (100 * job.gpus, 100 * job.gpus)


def test_a_hold_is_shown_after_a_disruption_was_withdrawn() -> None:
    job = a_held_job()
    status = transitions.disrupted(
        job,
        kind=DisruptionKind.PREEMPTION,
        by="team/urgent",
        message="team/urgent needs 4 GPUs of this job",
        deadline=T0 + 400,
        now=T0 + 50,
    )
    text = "team/urgent no longer needs these GPUs"
    job = with_status(job, status)
    job = with_status(job, transitions.disruption_withdrawn(job, message=text, now=T0 + 60))
    assert (job.status.reason, job.status.message) == (Reason.TRAINING, "")
    withdrawn = condition(job.status, ConditionType.DISRUPTED)
    assert withdrawn is not None
    assert (withdrawn.status, withdrawn.reason) == ("False", Reason.WITHDRAWN)
    assert withdrawn.message == text
    assert shown(job, now=T0 + 100).status.reason == Reason.HELD


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [
        ({"template": TEMPLATE, "recovery": {"holdSeconds": 600}}, 600.0),
        ({"template": TEMPLATE}, None),
        ({"template": {"image": "mine:1"}, "recovery": {"holdSeconds": 600}}, None),
        ({"recovery": {"holdSeconds": 600}}, None),
    ],
    ids=["held", "not-asked-for", "without-agents", "the-bundled-trainer"],
)
def test_agents_of_a_template_are_told_how_long(
    spec: dict[str, Any], seconds: float | None
) -> None:
    job = admitted(a_job(**spec), at=T0)
    pods = [a_pod(job, index, ready=True, ip=f"10.0.0.{index}") for index in range(job.size)]
    gang = observed_gang(job, observed(*pods))
    assert generation_record(job, gang).hold_seconds == seconds


def test_a_gang_that_is_held_does_not_grow() -> None:
    job = a_held_job(nodes=4, minNodes=1)
    status = transitions.resized(
        job, kept=[0, 1], added=["node-c", "node-d"], epoch=EPOCH, now=T0 + 50
    )
    job = with_status(job, status)
    assert planned(job, replace(held(job), remark=None), now=T0 + 60).actions
    job = shown(job, now=T0 + 60)
    assert planned(job, held(job), now=T0 + 61).actions == ()
