"""Places promised to a job that waits for others to leave."""

from __future__ import annotations

from typing import Any

from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import Job
from drumline_api.conditions import DisruptionKind, Phase, Reason
from tests.builders import T0, a_job, admitted, running, with_status

WAITS = {"reason": "WaitingForVictims", "message": "team/other gives way"}


def test_nominated_places_are_durable_until_the_job_has_places() -> None:
    job = a_job()
    nodes = ("gpu-1", "gpu-2")
    job = with_status(job, transitions.nominated(job, pool="h100", nodes=nodes, now=T0, **WAITS))
    nominated = job.status.nominated
    assert nominated is not None
    assert (nominated.gpu_pool, nominated.node_names()) == ("h100", nodes)
    assert (job.status.phase, job.status.reason) == (Phase.PENDING, "WaitingForVictims")
    assert transitions.waiting(job, now=T0 + 9, **WAITS) == job.status
    assert admitted(job, nodes=nodes).status.nominated is None
    assert transitions.nomination_cleared(job) == job.status.model_copy(update={"nominated": None})


def test_a_lost_member_that_waits_for_victims_keeps_the_gang() -> None:
    job = running(admitted(a_job()))
    lost = transitions.members_lost(
        job, indices={1}, reason=Reason.POD_LOST, message="gone", now=T0 + 1
    )
    job = with_status(job, lost)
    status = transitions.waiting(job, reason="InsufficientGpus", message="0 of 2 free", now=T0 + 2)
    assert (status.phase, status.reason) == (Phase.RECOVERING, "InsufficientGpus")
    assert (status.assignment, status.ready) == (job.status.assignment, "1/2")


def waits_for_victims() -> Job:
    """A gang that lost a place and is promised another one."""
    job = running(admitted(a_job(), nodes=("gpu-1", "gpu-2")))
    lost = transitions.members_lost(
        job, indices={1}, reason=Reason.POD_LOST, message="gone", now=T0 + 1
    )
    job = with_status(job, lost)
    return with_status(
        job, transitions.nominated(job, pool="h100", nodes=("gpu-1", "gpu-3"), now=T0 + 2, **WAITS)
    )


def test_a_job_that_is_over_is_promised_nothing() -> None:
    job = waits_for_victims()
    assert job.status.nominated is not None
    assert (
        transitions.failed(job, reason=Reason.POD_LOST, message="gone", now=T0 + 9).nominated
        is None
    )
    assert transitions.succeeded(job, progress=None, now=T0 + 9).nominated is None


def test_neither_is_a_job_that_is_preempted_as_a_whole() -> None:
    job = waits_for_victims()
    notice: dict[str, Any] = {"by": "team/x", "message": "goes", "deadline": T0 + 60, "now": T0}
    preempted = transitions.disrupted(job, kind=DisruptionKind.PREEMPTION, **notice)
    assert preempted.nominated is None
    in_part = transitions.disrupted(job, kind=DisruptionKind.PREEMPTION, indices=[0], **notice)
    assert in_part.nominated == job.status.nominated
    drained = transitions.disrupted(job, kind=DisruptionKind.DRAIN, **notice)
    assert drained.nominated == job.status.nominated
