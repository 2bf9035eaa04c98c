from __future__ import annotations

from typing import Any

import pytest

from drumline_scheduler import Queue
from drumline_scheduler.forecast.accuracy import StartForecast
from drumline_simulator.results import statistics
from drumline_simulator.results.outcome import Allocation, JobRecord, Outcome
from drumline_simulator.results.statistics import QueueShare, Summary


def a_record(name: str, *, at: float = 0, ended: float | None = 10, **more: Any) -> JobRecord:
    fields: dict[str, Any] = {
        "key": f"team/{name}",
        "uid": name,
        "queue": "q",
        "user": "ann",
        "gpus": 4,
        "priority": 0,
        "submitted_at": at,
        "duration_seconds": 10,
        "started_at": at,
        "ended_at": ended,
        "held_seconds": 10,
        "preempted": 0,
        "lost_gpu_seconds": 0.0,
    }
    return JobRecord(**fields | more)


def an_allocation(job: int, begins: float, ends: float, *, gpus: int = 4) -> Allocation:
    return Allocation(job=job, begins_at=begins, ends_at=ends, gpus=gpus, nodes=("n0",))


def an_outcome(*jobs: JobRecord, allocations: tuple[Allocation, ...] = (), **more: Any) -> Outcome:
    fields: dict[str, Any] = {
        "jobs": jobs,
        "allocations": allocations,
        "evictions": (),
        "forecasts": (),
        "moved": 0,
        "resized": 0,
        "cycles": 1,
        "gpus": 8,
        "began_at": 0.0,
        "ended_at": 40.0,
    }
    return Outcome(**fields | more)


def test_a_summary_counts_the_drain_only_in_the_makespan() -> None:
    outcome = an_outcome(
        a_record("a", ended=20, held_seconds=20, preempted=1, lost_gpu_seconds=8.0),
        a_record("b", at=10, ended=40, held_seconds=20, queue="other"),
        a_record("c", at=10, ended=None, started_at=None, held_seconds=0, gpus=1),
        allocations=(an_allocation(0, 0, 20), an_allocation(1, 20, 40, gpus=8)),
    )
    assert statistics.summary(outcome) == Summary(
        jobs=3,
        never_started=1,
        utilisation=0.5,
        makespan_seconds=40,
        mean_wait_seconds=(0 + 10 + 30) / 3,
        median_wait_seconds=10,
        p95_wait_seconds=30,
        largest_p95_wait_seconds=0,
        preempted=1,
        lost_share=8 / (4 * 20 + 8 * 20),
        starts=None,
    )


@pytest.mark.parametrize(
    ("part", "value"), [(0.0, 1), (0.5, 2), (0.74, 3), (0.75, 3), (0.76, 4), (0.95, 4), (1.0, 4)]
)
def test_a_quantile_is_a_value_that_so_many_do_not_exceed(part: float, value: int) -> None:
    assert statistics.quantile([1, 2, 3, 4], part) == value


def test_of_nothing_there_is_nothing() -> None:
    assert statistics.quantile([], 0.5) == 0
    empty = statistics.summary(an_outcome())
    assert (empty.jobs, empty.mean_wait_seconds, empty.utilisation) == (0, 0, 0)


def test_the_largest_tenth_has_the_most_gpus_and_then_the_most_work() -> None:
    jobs = [a_record(f"j{i}", gpus=1 + i % 5, duration_seconds=i) for i in range(11)]
    assert [job.uid for job in statistics.largest_tenth(jobs)] == ["j9", "j4"]


def test_queue_shares_are_requested_held_and_due() -> None:
    outcome = an_outcome(
        a_record("a", gpus=6),
        a_record("b", at=20, gpus=2, queue="other"),
        allocations=(an_allocation(0, 0, 10, gpus=6), an_allocation(1, 10, 99, gpus=2)),
    )
    queues = [
        Queue(name="q", nominal={}, weight=1),
        Queue(name="other", nominal={}, weight=4),
        Queue(name="idle", nominal={}),
    ]
    assert statistics.queue_shares(outcome, queues) == [
        QueueShare(queue="other", requested=0.25, held=0.25, weight_share=0.8),
        QueueShare(queue="q", requested=0.75, held=0.75, weight_share=0.2),
    ]


def test_use_over_time_is_the_mean_of_each_part() -> None:
    allocations = (
        an_allocation(0, 0, 15, gpus=8),
        an_allocation(1, 25, 30, gpus=4),
        an_allocation(2, 30, 40, gpus=2),
    )
    times, use = statistics.use_over_time(an_outcome(allocations=allocations), bins=4)
    assert times == [5, 15, 25, 35]
    assert use == pytest.approx([1.0, 0.5, 0.25, 0.25])


def test_a_summary_says_how_good_expected_starts_were() -> None:
    right = StartForecast(uid="a", made_at=10, expected_at=20, latest_at=30, started_at=20)
    outcome = an_outcome(forecasts=(right,))
    starts = statistics.summary(outcome).starts
    assert starts is not None
    assert (starts.forecasts, starts.median_error, starts.by_p90) == (1, 0.0, 1.0)


def test_waits_are_grouped_by_gpus() -> None:
    outcome = an_outcome(
        a_record("a", gpus=8, ended=30), a_record("b", gpus=8), a_record("c", gpus=1, ended=11)
    )
    assert statistics.waits_by_size(outcome) == [(1, [1]), (8, [0, 20])]
