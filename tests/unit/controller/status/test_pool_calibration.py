"""What a pool's running jobs say about the planner's predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.controller.pools.calibration import (
    calibration_fields,
    part_fields,
    part_percent,
    part_votes,
    step_percents,
)
from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import Job
from drumline_api.assignment import SurplusMembers
from drumline_contract import Progress, StepPart, StepPartSeconds
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


def over_two_pools(held: Job) -> Job:
    assert held.status.assignment is not None
    surplus = SurplusMembers(gpu_pool="spot", indices=[1])
    places = held.status.assignment.model_copy(update={"surplus": surplus})
    return with_status(held, held.status.model_copy(update={"assignment": places}))


def test_a_job_over_two_pools_says_nothing_of_either() -> None:
    alone = job(100, 110)
    assert step_percents([alone, over_two_pools(job(100, 400))]) == {pool_of(alone): 110}
    held, progress = speaks("a", compute=(2.0, 1.0))
    assert part_votes([held], {"a": progress}.get)
    assert not part_votes([over_two_pools(held)], {"a": progress}.get)


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


def speaks(
    uid: str, *, namespace: str = "team", **parts: tuple[float, float]
) -> tuple[Job, Progress]:
    """A running job and the parts that its agents report: measured and predicted seconds."""
    held = replace(job(100, 100), uid=uid, namespace=namespace)
    said = tuple(
        StepPartSeconds(part=StepPart(part), measured=measured, predicted=predicted)
        for part, (measured, predicted) in parts.items()
    )
    return held, Progress(step_parts=said)


def votes(*said: tuple[Job, Progress]) -> dict[StepPart, list[float]]:
    reports = {held.uid: progress for held, progress in said}
    return part_votes([held for held, _ in said], reports.get).get(pool_of(job(1, 1)), {})


def test_each_part_is_compared_with_its_prediction() -> None:
    result = votes(speaks("a", compute=(1.2, 1.0), tensor=(0.1, 0.2), rest=(0.5, 0.001)))
    assert result == {StepPart.COMPUTE: [pytest.approx(120)], StepPart.TENSOR: [pytest.approx(50)]}


def test_a_job_that_is_off_as_a_whole_says_nothing_of_the_pool() -> None:
    assert votes(speaks("a", compute=(9.0, 1.0))) == {}
    assert votes(speaks("a", compute=(0.1, 1.0))) == {}
    assert votes(speaks("a", compute=(1e15, 0.0))) == {}
    waiting = a_job()
    assert part_votes([waiting], lambda _: speaks("a", compute=(1.0, 1.0))[1]) == {}


def test_a_namespace_with_many_jobs_has_one_vote() -> None:
    many = [speaks(f"m{number}", namespace="loud", compute=(3.0, 1.0)) for number in range(9)]
    quiet = [speaks(space, namespace=space, compute=(1.1, 1.0)) for space in ("x", "y")]
    result = votes(*many, *quiet)[StepPart.COMPUTE]
    assert sorted(map(round, result)) == [110, 110, 300]
    assert part_percent(result, known=None) == 110
    assert len(votes(*many)[StepPart.COMPUTE]) == 9  # nobody else to protect


@pytest.mark.parametrize(
    ("percents", "known", "after"),
    [
        ([150.0], None, 150),
        ([150.0], 110, 110),  # one job alone does not move it away from the data sheet
        ([105.0], 110, 105),
        ([150.0, 120.0], 110, 120),
        ([390.0, 120.0], 110, 120),
        ([150.0, 150.0, 10.0], 110, 150),
        ([9000.0], None, 400),
        ([0.0], None, 25),
    ],
)
def test_few_votes_do_not_outvote_what_is_known(
    percents: list[float], known: int | None, after: int
) -> None:
    assert part_percent(percents, known=known) == after


def test_parts_are_kept_and_written_when_they_move() -> None:
    before = {"stepParts": [{"part": "data", "percent": 140}, {"part": "of-a-later-version"}]}
    assert part_fields(before, {}) == {"stepParts": [{"part": "data", "percent": 140}]}
    said = {StepPart.COMPUTE: [120.0], StepPart.DATA: [142.0, 143.0, 144.0]}
    after = [{"part": "compute", "percent": 120}, {"part": "data", "percent": 140}]
    assert part_fields(before, said) == {"stepParts": after}
    assert part_fields({}, {}) == {}
