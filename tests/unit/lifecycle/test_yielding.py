"""Places promised to a job that waits for others to leave."""

from __future__ import annotations

from drumline.api.conditions import Phase, Reason
from drumline.lifecycle import status as to
from tests.builders import T0, a_job, admitted, running, with_status

WAITS = {"reason": "WaitingForVictims", "message": "team/other gives way"}


def test_nominated_places_are_durable_until_the_job_has_places() -> None:
    job = a_job()
    nodes = ("gpu-1", "gpu-2")
    job = with_status(job, to.nominated(job, pool="h100", nodes=nodes, now=T0, **WAITS))
    nominated = job.status.nominated
    assert nominated is not None
    assert (nominated.gpu_pool, nominated.node_names()) == ("h100", nodes)
    assert (job.status.phase, job.status.reason) == (Phase.PENDING, "WaitingForVictims")
    assert to.waiting(job, now=T0 + 9, **WAITS) == job.status
    assert admitted(job, nodes=nodes).status.nominated is None
    assert to.not_nominated(job) == job.status.model_copy(update={"nominated": None})


def test_a_lost_place_that_waits_for_others_keeps_the_gang() -> None:
    job = running(admitted(a_job()))
    lost = to.lost(job, indices={1}, reason=Reason.POD_LOST, message="gone", now=T0 + 1)
    job = with_status(job, lost)
    status = to.waiting(job, reason="InsufficientGpus", message="0 of 2 free", now=T0 + 2)
    assert (status.phase, status.reason) == (Phase.RECOVERING, "InsufficientGpus")
    assert (status.assignment, status.ready) == (job.status.assignment, "1/2")
