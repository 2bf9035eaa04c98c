"""What a pool's running jobs say about the planner's predictions."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.controller.status.pool_calibration import calibration_fields, step_percents
from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import Job
from drumline_trainer.contract import Progress
from tests.builders import T0, a_job, admitted, with_status


def job(measured: float | None, predicted: float | None, *, runs: bool = True) -> Job:
    held = admitted(a_job())
    if runs:
        held = with_status(held, transitions.running(held, now=T0))
    progress = Progress(tokens_per_second=measured, predicted_tokens_per_second=predicted)
    return with_status(held, transitions.with_progress(held, held.status, progress, now=T0))


def pool_of(held: Job) -> str:
    assert held.status.assignment is not None
    return held.status.assignment.gpu_pool


def test_the_median_of_running_jobs_counts() -> None:
    jobs = [job(100, 110), job(100, 120), job(1, 1e9)]  # the last is a tenant's fancy
    assert step_percents(jobs) == {pool_of(jobs[0]): 120}


@pytest.mark.parametrize(
    "silent", [job(None, 5), job(5, None), job(0, 5), job(5, 10, runs=False), a_job()]
)
def test_a_job_without_both_figures_says_nothing(silent: Job) -> None:
    assert step_percents([silent]) == {}


def test_a_figure_is_bounded() -> None:
    held = [job(1, 1e15)]
    assert step_percents(held) == {pool_of(held[0]): 10_000}


@pytest.mark.parametrize(
    ("before", "percent", "after"),
    [
        ({}, None, {}),
        ({}, 108, {"stepTimePercent": 108}),
        ({"stepTimePercent": 108}, 109, {"stepTimePercent": 108}),
        ({"stepTimePercent": 108}, 111, {"stepTimePercent": 111}),
        ({"stepTimePercent": 108}, None, {"stepTimePercent": 108}),
    ],
)
def test_it_is_written_when_it_moves_and_kept_when_no_job_says_more(
    before: dict[str, Any], percent: int | None, after: dict[str, int]
) -> None:
    assert calibration_fields(before, percent) == after
