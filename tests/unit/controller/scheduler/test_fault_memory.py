"""Gangs on which the scheduler raised an exception are set aside, and tried again later."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest

from drumline.controller.scheduler.fault_memory import (
    DUE_SECONDS,
    FIRST_SECONDS,
    LONGEST_SECONDS,
    MOST_REPORTED,
    FaultMemory,
    write_each,
)
from drumline.lifecycle.model.job import Job
from drumline.telemetry.metrics import Metrics
from drumline_scheduler.decisions import GangFault
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
        retry_at = memory.retry_at(now)
        assert retry_at is not None
        pauses.append(retry_at - now)
        assert memory.set_aside(jobs, now=retry_at - 1) == (fault,)
        now = retry_at
        assert memory.set_aside(jobs, now=now) == ()
    assert pauses == [60.0, 120.0, 240.0, 480.0, LONGEST_SECONDS, LONGEST_SECONDS]


def test_a_gang_that_may_be_innocent_is_set_aside_for_one_cycle(memory: FaultMemory) -> None:
    guilty, neighbour = replace(a_job(), uid="guilty"), a_job(name="neighbour")
    jobs = {guilty.uid: guilty, neighbour.uid: neighbour}
    certain = a_fault(guilty)
    doubtful = [
        replace(a_fault(neighbour, suffix=suffix), is_certain=False) for suffix in ("", "-b", "-c")
    ]
    memory.take([certain, *doubtful], jobs=jobs, now=NOW)
    assert len(memory.set_aside(jobs, now=NOW)) == 4
    assert memory.retry_at(NOW) == NOW + DUE_SECONDS
    assert memory.set_aside(jobs, now=NOW + DUE_SECONDS) == (certain,)
    memory.take([], jobs=jobs, now=NOW + DUE_SECONDS)
    assert memory.set_aside(jobs, now=NOW + DUE_SECONDS) == (certain,)
    # The guilty one raises again. Only its own pause grows.
    later = NOW + FIRST_SECONDS
    memory.take(doubtful, jobs=jobs, now=later)
    assert memory.set_aside(jobs, now=later) == tuple(doubtful)
    memory.take([certain, *doubtful], jobs=jobs, now=later)
    assert memory.set_aside(jobs, now=later + DUE_SECONDS) == (certain,)


def test_a_gang_that_raises_nothing_when_it_is_tried_again_is_forgotten(
    memory: FaultMemory,
) -> None:
    job = a_job()
    jobs, later = {job.uid: job}, NOW + FIRST_SECONDS
    memory.take([a_fault(job)], jobs=jobs, now=NOW)
    assert memory.set_aside(jobs, now=later) == ()
    memory.take([], jobs=jobs, now=later)
    assert memory.retry_at(later) is None, "no time that has passed asks for cycles"


def test_an_exception_is_counted_and_reported_once_and_not_while_its_gang_is_set_aside(
    memory: FaultMemory, metrics: Metrics, events: Mock
) -> None:
    job = a_job()
    jobs, fault = {job.uid: job}, a_fault(job)
    memory.take([fault], jobs=jobs, now=NOW)
    assert memory.take_fresh() == (fault,)
    memory.set_aside(jobs, now=NOW + 1)
    memory.take([fault], jobs=jobs, now=NOW + 1)  # the cycle repeats what it was given
    memory.set_aside(jobs, now=NOW + FIRST_SECONDS)
    memory.take([fault], jobs=jobs, now=NOW + FIRST_SECONDS)
    assert memory.take_fresh() == ()
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


def many(count: int) -> tuple[dict[str, Job], list[GangFault]]:
    jobs = [replace(a_job(name=f"j{i:04}"), uid=f"u{i:04}") for i in range(count)]
    return {job.uid: job for job in jobs}, [a_fault(job) for job in jobs]


def test_of_many_gangs_that_are_due_one_is_tried_in_a_cycle_and_the_others_wait_with_it(
    memory: FaultMemory, events: Mock
) -> None:
    jobs, faults = many(2000)
    memory.take(faults, jobs=jobs, now=NOW)
    assert events.scheduler_failed.call_count == MOST_REPORTED
    now, tried = NOW, list[float]()
    while now < NOW + 3600:
        retry_at = memory.retry_at(now)
        assert retry_at is not None
        now = retry_at
        aside = {fault.uid for fault in memory.set_aside(jobs, now=now)}
        again = [fault for fault in faults if fault.uid not in aside]
        assert len(again) == 1
        memory.take([*again, *(f for f in faults if f.uid in aside)], jobs=jobs, now=now)
        tried.append(now)
    assert len(tried) < 12


def test_of_many_gangs_that_raise_no_more_twice_as_many_are_tried_in_each_cycle(
    memory: FaultMemory,
) -> None:
    jobs, faults = many(1000)
    memory.take(faults, jobs=jobs, now=NOW)
    now, left = NOW + FIRST_SECONDS, [1000]
    while left[-1]:
        aside = memory.set_aside(jobs, now=now)
        memory.take(aside, jobs=jobs, now=now)
        left.append(len(aside))
        now += DUE_SECONDS
    assert left[:4] == [1000, 999, 997, 993]
    assert len(left) == 11


def test_a_surplus_gang_is_reported_with_its_job(memory: FaultMemory, events: Mock) -> None:
    job = a_job()
    fault = a_fault(job, suffix="/surplus")
    memory.take([fault], jobs={job.uid: job}, now=NOW)
    assert memory.set_aside({job.uid: job}, now=NOW) == (fault,)
    assert events.scheduler_failed.call_args.args == (job,)


def test_a_fault_of_no_gang_sets_nothing_aside(memory: FaultMemory, metrics: Metrics) -> None:
    fault = GangFault(key="", uid="", stage="cache", error="KeyError (b.py:2)")
    for _ in range(2):
        memory.take([fault], jobs={}, now=NOW)
        assert memory.set_aside({}, now=NOW) == ()
    assert memory.take_fresh() == (fault,), "one capture is enough"
    name, labels = "drumline_scheduling_faults_total", {"stage": "cache"}
    assert metrics.registry.get_sample_value(name, labels) == 2


def test_an_exception_outside_of_the_decisions_is_recorded_alike(memory: FaultMemory) -> None:
    job = a_job()
    jobs = {job.uid: job}
    record = memory.recorder("commit", jobs=jobs, now=NOW)
    record(job.key, job.uid, ValueError("no write"))
    [fault] = memory.set_aside(jobs, now=NOW)
    assert (fault.stage, fault.error) == ("commit", "ValueError: no write")


async def test_a_leader_that_ends_before_its_writes_begin_makes_none_of_them() -> None:
    begun: list[str] = []

    async def write(name: str) -> bool:
        begun.append(name)
        return True

    jobs = [a_job(name="a"), a_job(name="b")]
    writes = [(each, partial(write, each.name)) for each in jobs]
    task = asyncio.create_task(write_each(writes, on_fault=None))
    await asyncio.sleep(0)  # the task has made those of the writes; none has run
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()  # a coroutine that nobody awaited would warn here, and fail this test
    assert begun == []


def test_a_gang_is_tried_again_after_the_clock_was_set_back(memory: FaultMemory) -> None:
    job = a_job()
    jobs, now = {job.uid: job}, NOW - 3600
    memory.take([a_fault(job)], jobs=jobs, now=NOW)
    assert memory.set_aside(jobs, now=now) == ()
    memory.take([a_fault(job)], jobs=jobs, now=now)
    assert memory.retry_at(now) == now + 2 * FIRST_SECONDS
