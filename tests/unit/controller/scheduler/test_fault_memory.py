"""Gangs on which the scheduler raised an exception are set aside, and tried again later."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest

from drumline.controller.scheduler.fault_memory import (
    FIRST_SECONDS,
    FORGOTTEN_SECONDS,
    LONGEST_SECONDS,
    FaultMemory,
)
from drumline.lifecycle.model.job import Job
from drumline.scheduling.decisions import GangFault
from drumline.telemetry.metrics import Metrics
from tests.builders import a_job

NOW = 1000.0


def a_fault(job: Job, *, suffix: str = "") -> GangFault:
    return GangFault(key=job.key, uid=job.uid + suffix, stage="admit", error="IndexError (a.py:1)")


@pytest.fixture
def events() -> Mock:
    return Mock()


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def memory(metrics: Metrics, events: Mock) -> FaultMemory:
    return FaultMemory(metrics=metrics, job_events=events)


def test_a_gang_is_set_aside_for_twice_as_long_after_each_exception(memory: FaultMemory) -> None:
    job = a_job()
    jobs, fault, now, pauses = {job.uid: job}, a_fault(job), NOW, list[float]()
    for _ in range(6):
        memory.take([fault], jobs=jobs, now=now)
        assert memory.set_aside(jobs, now=now) == (fault,)
        assert memory.retry_at is not None
        pauses.append(memory.retry_at - now)
        now = memory.retry_at
        assert memory.set_aside(jobs, now=now) == ()
    assert pauses == [60.0, 120.0, 240.0, 480.0, LONGEST_SECONDS, LONGEST_SECONDS]


def test_an_exception_is_counted_and_reported_once_and_not_while_its_gang_is_set_aside(
    memory: FaultMemory, metrics: Metrics, events: Mock
) -> None:
    job = a_job()
    jobs, fault = {job.uid: job}, a_fault(job)
    assert memory.take([fault], jobs=jobs, now=NOW) == (fault,)
    assert memory.take([fault], jobs=jobs, now=NOW + 1) == (), "the cycle repeats what it was given"
    assert memory.take([fault], jobs=jobs, now=NOW + FIRST_SECONDS) == ()
    name, labels = "drumline_scheduling_faults_total", {"stage": "admit"}
    assert metrics.registry.get_sample_value(name, labels) == 2
    assert events.scheduler_failed.call_count == 1
    assert "IndexError (a.py:1)" in events.scheduler_failed.call_args.kwargs["message"]
    assert fault.seed in events.scheduler_failed.call_args.kwargs["message"]


def test_a_change_of_the_spec_or_the_end_of_the_job_ends_it(memory: FaultMemory) -> None:
    job = a_job()
    memory.take([a_fault(job)], jobs={job.uid: job}, now=NOW)
    changed = replace(job, object_generation=job.object_generation + 1)
    assert memory.set_aside({job.uid: changed}, now=NOW) == ()
    memory.take([a_fault(job)], jobs={job.uid: job}, now=NOW)
    assert memory.set_aside({}, now=NOW) == ()


def test_a_gang_that_was_decided_for_a_while_begins_anew(memory: FaultMemory) -> None:
    job = a_job()
    jobs = {job.uid: job}
    memory.take([a_fault(job)], jobs=jobs, now=NOW)
    later = NOW + FIRST_SECONDS + FORGOTTEN_SECONDS + 1
    assert memory.set_aside(jobs, now=later) == ()
    assert memory.retry_at is None


def test_a_surplus_gang_is_reported_with_its_job(memory: FaultMemory, events: Mock) -> None:
    job = a_job()
    fault = a_fault(job, suffix="/surplus")
    memory.take([fault], jobs={job.uid: job}, now=NOW)
    assert memory.set_aside({job.uid: job}, now=NOW) == (fault,)
    assert events.scheduler_failed.call_args.args == (job,)


def test_a_fault_of_no_gang_sets_nothing_aside(memory: FaultMemory, metrics: Metrics) -> None:
    fault = GangFault(key="", uid="", stage="cycle", error="KeyError (b.py:2)")
    memory.take([fault], jobs={}, now=NOW)
    assert memory.set_aside({}, now=NOW) == ()
    name, labels = "drumline_scheduling_faults_total", {"stage": "cycle"}
    assert metrics.registry.get_sample_value(name, labels) == 1


def test_an_exception_outside_of_the_decisions_is_recorded_alike(memory: FaultMemory) -> None:
    job = a_job()
    jobs = {job.uid: job}
    record = memory.recorder("commit", jobs=jobs, now=NOW)
    record(job.key, job.uid, ValueError("no write"))
    [fault] = memory.set_aside(jobs, now=NOW)
    assert (fault.stage, fault.error) == ("commit", "ValueError: no write")
