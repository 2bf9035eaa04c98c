"""When the figures of a status are written: in turn, and once where it shows another layout."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.controller.agents.watch import GangReport
from drumline.controller.reconciler.job_memory import JobMemory, figures_due
from drumline.lifecycle.model.job import Job
from drumline_contract import AgentPhase, AgentStatus, Progress
from tests.builders import T0, a_job, admitted, running, with_status

EVERY = 60.0
AUTO: dict[str, Any] = {"trainer": {"parallelism": {"mode": "Auto"}}}


def trains(*, shown: str | None = None, **spec: Any) -> Job:
    job = running(admitted(a_job(**spec)))
    return with_status(job, job.status.model_copy(update={"layout": shown}))


def report(layout: str, *, generation: int = 1) -> GangReport:
    status = AgentStatus(
        job_uid="",
        pod_uid="",
        index=0,
        generation=generation,
        attempt=0,
        phase=AgentPhase.RUNNING,
        progress=Progress(layout=layout),
        version=1,
    )
    return GangReport(status=status)


def due(job: Job, heard: GangReport | None, memory: JobMemory, *, at: float) -> bool:
    return figures_due(job, heard, memory, now=T0 + at, every=EVERY)


def test_the_first_come_after_one_interval_and_then_one_in_each() -> None:
    job, memory = trains(), JobMemory()
    assert [due(job, report("FSDP4"), memory, at=at) for at in (0, 59, 60, 61, 119, 120)] == [
        *(False, False, True, False, False, True)
    ]


def test_they_come_although_the_clock_was_set_back() -> None:
    job, memory = trains(), JobMemory()
    assert not due(job, report("FSDP4"), memory, at=7200)
    assert due(job, report("FSDP4"), memory, at=0)
    assert not due(job, report("FSDP4"), memory, at=59)


def test_a_layout_of_another_size_is_shown_at_once_and_once() -> None:
    """Or for a minute the status would show the layout of a gang that there is no more."""
    job, memory = trains(shown="FSDP6"), JobMemory()
    assert not due(job, report("FSDP6"), memory, at=0)
    assert due(job, report("FSDP4"), memory, at=1)
    assert not due(job, report("FSDP2"), memory, at=2)


def test_what_an_agent_reports_of_another_membership_is_no_new_layout() -> None:
    job = trains(shown="FSDP6")
    assert not due(job, report("FSDP4", generation=0), JobMemory(), at=0)
    assert not due(job, None, JobMemory(), at=0)
    assert not due(job, report(""), JobMemory(), at=0)


@pytest.mark.parametrize(("spec", "at_once"), [(AUTO, True), ({}, False)])
def test_of_a_first_start_only_a_chosen_layout_is_worth_a_write(
    spec: dict[str, Any], at_once: bool
) -> None:
    assert due(trains(**spec), report("FSDP4"), JobMemory(), at=0) is at_once
