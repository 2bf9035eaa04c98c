"""The pause of a job grows with each refusal, and stays short through an outage."""

from __future__ import annotations

import pytest

from drumline.controller.job_events import JobEvents
from drumline.controller.scheduler.unwritten_statuses import (
    StatusNotWrittenError,
    UnwrittenStatuses,
)
from drumline.controller.state.snapshots import Backoff
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.kube.errors import Invalid, KubeError, Unreachable
from drumline.kube.events import EventRecorder
from tests.builders import T0, a_job

REFUSED = Invalid(code=422, reason="Invalid", message="a policy")


def unwritten(backoffs: dict[str, Backoff]) -> UnwrittenStatuses:
    client = KubeClient(Credentials(server="http://127.0.0.1", token=Token(lambda: None)))
    recorder = EventRecorder(client, instance="test")
    return UnwrittenStatuses(backoffs=backoffs, job_events=JobEvents(recorder))


@pytest.mark.parametrize(
    ("error", "pauses"),
    [(REFUSED, [10, 20, 40, 80, 160]), (Unreachable("no answer"), [0, 10, 20, 40, 40])],
    ids=["refusal", "outage"],
)
def test_a_pause_depends_on_what_the_api_server_said(error: KubeError, pauses: list[int]) -> None:
    backoffs: dict[str, Backoff] = {}
    statuses, job, seen = unwritten(backoffs), a_job(), list[float]()
    for _ in pauses:
        statuses.note(job, error, now=T0)
        seen.append(backoffs[job.uid].until - T0)
    assert seen == pauses


def test_a_pause_from_before_the_clock_was_set_back_is_over() -> None:
    statuses, job = unwritten({}), a_job()
    statuses.note(job, REFUSED, now=T0)
    with pytest.raises(StatusNotWrittenError):
        statuses.ensure_writable(job, now=T0 - 5)
    statuses.ensure_writable(job, now=T0 - 3600)


def test_a_backoff_after_lost_pods_stops_no_write() -> None:
    job = a_job()
    backoffs = {job.uid: Backoff.after(3, cause="lost", count=3, now=T0)}
    statuses = unwritten(backoffs)
    statuses.ensure_writable(job, now=T0)
    statuses.note(job, REFUSED, now=T0)
    with pytest.raises(StatusNotWrittenError):
        statuses.ensure_writable(job, now=T0 + 9)
    statuses.ensure_writable(job, now=T0 + 10)
