"""GPU-seconds by state add up to GPUs held times time held (I12)."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.incidents.gpu_seconds import account_at, rate_of, reclassified
from drumline.lifecycle.model.hardware import GpuShare, share_in
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.conditions import Reason
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.incidents import MAX_STAYS, GpuSeconds, Stay
from tests.builders import EPOCH, T0, a_job, admitted, with_status

SPEC = {
    "nodes": 4,
    "gpusPerNode": 2,
    "minNodes": 1,
    "trainer": {"globalBatchSize": 24},
    "checkpoint": {"claimName": "shared"},
}
FOUR = ("node-a", "node-b", "node-c", "node-d")
PLACED: dict[str, Any] = {
    "pool": "mixed",
    "nodes": FOUR,
    "epoch": EPOCH,
    "image": "any:1",
    "priority": 0,
}


def account(job: Job) -> GpuSeconds:
    assert job.status.gpu_seconds is not None
    return job.status.gpu_seconds


def total(job: Job) -> int:
    counted = account(job)
    return counted.starting + counted.productive + counted.repeated + counted.recovering


def lost(job: Job, *, now: float) -> Job:
    message = "gone"
    status = transitions.members_lost(
        job, indices={1}, reason=Reason.POD_LOST, message=message, now=now
    )
    return with_status(job, status)


def test_each_second_is_booked_where_it_belongs() -> None:
    job = admitted(a_job(**SPEC), nodes=FOUR, at=T0)
    job = with_status(job, transitions.running(job, now=T0 + 10))
    job = lost(job, now=T0 + 30)
    nodes = ["node-a", "node-e", "node-c", "node-d"]
    status = transitions.members_replaced(job, nodes=nodes, replaced=[1], epoch=EPOCH, now=T0 + 31)
    job = with_status(job, status)
    job = with_status(job, transitions.running(job, now=T0 + 36))
    job = with_status(job, transitions.succeeded(job, progress=None, now=T0 + 40))
    assert account(job) == GpuSeconds(
        until=timestamp(T0 + 40),
        starting=8 * 10,
        productive=8 * 20 + 8 * 4,
        recovering=6 * 1 + 8 * 5,
        stays=[
            Stay(since=timestamp(T0), until=timestamp(T0 + 30), gpus=8),
            Stay(since=timestamp(T0 + 30), until=timestamp(T0 + 31), gpus=6),
            Stay(since=timestamp(T0 + 31), until=timestamp(T0 + 40), gpus=8),
        ],
    )


def test_joining_members_count_as_starting_while_the_gang_trains() -> None:
    job = admitted(a_job(**SPEC), nodes=FOUR[:2], at=T0)
    job = with_status(job, transitions.running(job, now=T0))
    status = transitions.resized(job, kept=[0, 1], added=["node-c"], epoch=EPOCH, now=T0 + 5)
    job = with_status(job, status)
    job = with_status(job, transitions.running(job, now=T0 + 8))
    counted = account(job)
    assert (counted.productive, counted.starting) == (4 * 5 + 4 * 3, 2 * 3)


def test_a_job_that_waits_holds_nothing() -> None:
    job = admitted(a_job(**SPEC), nodes=FOUR, at=T0)
    status = transitions.requeued(job, reason=Reason.POD_LOST, message="", now=T0 + 5)
    job = with_status(job, status)
    job = admitted(job, nodes=FOUR, at=T0 + 500)
    job = with_status(job, transitions.running(job, now=T0 + 501))
    assert total(job) == 8 * 6
    assert account(job).stays == [
        Stay(since=timestamp(T0), until=timestamp(T0 + 5), gpus=8),
        Stay(since=timestamp(T0 + 500), until=timestamp(T0 + 501), gpus=8),
    ]


def test_a_job_that_has_ended_holds_nothing_more() -> None:
    job = admitted(a_job(**SPEC), nodes=FOUR, at=T0)
    job = with_status(job, transitions.succeeded(job, progress=None, now=T0 + 40))
    assert job.status.assignment is not None
    assert account_at(job.spec, job.status, now=T0 + 9000) == account(job)
    rate = rate_of(job.spec, job.status)
    assert rate is not None
    assert (rate.gpus, rate.at(T0 + 9000)) == (0, (0, 8 * 40))


def test_of_many_stays_the_latest_are_kept() -> None:
    job = a_job(**SPEC)
    for start in range(0, 100 * MAX_STAYS, 100):
        job = admitted(job, nodes=FOUR, at=T0 + start)
        job = with_status(job, transitions.suspended(job, now=T0 + start + 10))
    job = admitted(job, nodes=FOUR, at=T0 + 10_000)
    job = with_status(job, transitions.suspended(job, now=T0 + 10_010))
    stays = account(job).stays or []
    assert (len(stays), stays[0].since) == (MAX_STAYS, timestamp(T0 + 100))
    assert stays[-1].until == timestamp(T0 + 10_010)
    assert total(job) == 8 * 10 * (MAX_STAYS + 1)


@pytest.mark.parametrize("seed", range(5))
def test_the_sum_is_what_was_held_whatever_happened(seed: int) -> None:
    choose = random.Random(seed)
    now, held = T0, 0
    job = admitted(a_job(**SPEC), nodes=FOUR, at=now)
    for _ in range(60):
        elapsed = choose.choice([0, 0.25, 1, 3.5, 17])
        places = job.size - len((job.status.assignment and job.status.assignment.lost) or ())
        held += 2 * places * (int(now + elapsed) - int(now))
        now += elapsed
        if job.status.assignment is not None and job.status.assignment.lost:
            status = transitions.resized(job, kept=[0], added=FOUR[1:], epoch=EPOCH, now=now)
        elif choose.random() < 0.5:
            status = transitions.running(job, now=now)
        else:
            gone = {choose.randrange(1, 4)}
            status = transitions.members_lost(
                job, indices=gone, reason=Reason.POD_LOST, message="", now=now
            )
        job = with_status(job, status)
    assert total(job) == held


def test_what_turned_out_to_be_no_progress_is_moved_and_nothing_else() -> None:
    job = admitted(a_job(**SPEC), nodes=FOUR, at=T0)
    job = with_status(job, transitions.running(job, now=T0))
    job = with_status(job, transitions.succeeded(job, progress=None, now=T0 + 100))
    job = with_status(job, reclassified(job.status, recovering=30.4, repeated=100.0))
    counted = account(job)
    assert (counted.productive, counted.recovering, counted.repeated) == (670, 30, 100)
    job = with_status(job, reclassified(job.status, recovering=10_000.0, repeated=5.0))
    assert (account(job).productive, total(job)) == (0, 800)


def test_a_rate_says_at_any_time_what_the_account_says() -> None:
    waits = a_job(**SPEC)
    places = admitted(waits, nodes=FOUR[:2], at=T0)
    runs = with_status(places, transitions.running(places, now=T0 + 10))
    grows = transitions.resized(runs, kept=[0, 1], added=["node-c"], epoch=EPOCH, now=T0 + 15)
    joined = with_status(runs, grows)
    over = with_status(runs, transitions.succeeded(runs, progress=None, now=T0 + 40))
    assert rate_of(waits.spec, waits.status) is None
    for job in (places, runs, joined, lost(runs, now=T0 + 20), over):
        rate = rate_of(job.spec, job.status)
        assert rate is not None
        for now in (T0 - 5, T0 + 40.9, T0 + 1000):
            counted = account_at(job.spec, job.status, now=now)
            assert counted is not None
            states = (counted.starting, counted.repeated, counted.recovering)
            assert rate.at(now) == (counted.productive, counted.productive + sum(states))


def test_an_account_is_in_the_unit_of_its_first_start_for_the_jobs_life() -> None:
    first = transitions.admitted(
        a_job(**SPEC), share=GpuShare(parts=3, parts_per_gpu=7), **PLACED, now=T0
    )
    job = with_status(a_job(**SPEC), first)
    assert (account(job).parts, account(job).parts_per_gpu) == (3, 7)
    rate = rate_of(job.spec, job.status)
    assert rate is not None
    assert (rate.gpus, rate.share) == (8, Fraction(3, 7))
    other = GpuShare(parts=2, parts_per_gpu=7)
    again = transitions.admitted(job, share=other, **PLACED, now=T0 + 60)
    assert again.gpu_seconds is not None
    assert again.gpu_seconds.share == Fraction(3, 7)
    assert account(admitted(a_job(**SPEC), nodes=FOUR, at=T0)).share == 1


def test_a_share_is_that_of_the_resource_in_its_pool() -> None:
    pool = GpuPoolSpec.model_validate(
        {
            "nodeSelector": {"a": "b"},
            "partitions": {
                "partsPerGpu": 7,
                "resources": [{"resource": "nvidia.com/mig-3g.40gb", "parts": 3}],
            },
        }
    )
    part = share_in(pool, resource="nvidia.com/mig-3g.40gb")
    assert part == GpuShare(parts=3, parts_per_gpu=7)
    assert share_in(pool, resource=None) is None
    assert share_in(pool, resource="nvidia.com/mig-1g.10gb") is None
    assert share_in(None, resource="nvidia.com/mig-3g.40gb") is None
