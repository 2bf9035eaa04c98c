"""Transitions of a status: conditions with their times, the phase, figures within bounds."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.conditions import condition, is_true
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline.lifecycle.model.verdict import Refusal
from drumline_api.conditions import ConditionType, Phase, Reason
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import Progress, rank_compute
from drumline_contract.step_series import MAX_POINTS, decode
from tests.builders import EPOCH, T0, a_job, admitted, running, with_status

LATER = T0 + 100
REFUSAL = Refusal(reason=Reason.CONFIG_REFUSED, message="m")
Next = Callable[[Job], TrainingJobStatus]


def truths(status: TrainingJobStatus) -> dict[str, str]:
    return {each.type: each.status for each in status.conditions or []}


def since(status: TrainingJobStatus, kind: ConditionType) -> str:
    current = condition(status, kind)
    assert current is not None
    return current.last_transition_time


def released(job: Job) -> TrainingJobStatus:
    return transitions.requeued(job, reason=Reason.POD_LOST, message="gone", now=LATER)


def restarting(job: Job) -> TrainingJobStatus:
    return transitions.restarted(
        job, indices=(0, 1), reason=Reason.POD_FAILED, message="boom", epoch=9, now=LATER
    )


def failed(job: Job) -> TrainingJobStatus:
    return transitions.failed(job, reason=Reason.RESTARTS_EXHAUSTED, message="boom", now=LATER)


ADMITTED = {"Admitted": "True", "Placed": "True"}
TRAINING = {**ADMITTED, "Running": "True", "Checkpointed": "False"}


@pytest.mark.parametrize(
    ("begin", "change", "phase", "conditions"),
    [
        (a_job(), lambda job: admitted(job).status, Phase.STARTING, ADMITTED),
        (
            a_job(),
            lambda job: transitions.waiting(
                job, reason="InsufficientQuota", message="m", now=LATER
            ),
            Phase.PENDING,
            {"Placed": "False"},
        ),
        (
            admitted(a_job()),
            lambda job: transitions.running(job, now=LATER),
            Phase.RUNNING,
            TRAINING,
        ),
        (
            running(admitted(a_job())),
            released,
            Phase.PENDING,
            {**TRAINING, "Admitted": "False", "Placed": "False", "Running": "False"},
        ),
        (
            running(admitted(a_job())),
            restarting,
            Phase.RECOVERING,
            {**TRAINING, "Running": "False", "Recovering": "True"},
        ),
        (
            running(admitted(a_job())),
            lambda job: transitions.suspended(job, now=LATER),
            Phase.SUSPENDED,
            {
                **TRAINING,
                "Admitted": "False",
                "Placed": "False",
                "Running": "False",
                "Suspended": "True",
            },
        ),
        (
            running(admitted(a_job())),
            lambda job: transitions.succeeded(job, progress=None, now=LATER),
            Phase.SUCCEEDED,
            {**TRAINING, "Running": "False", "Succeeded": "True"},
        ),
        (
            running(admitted(a_job())),
            failed,
            Phase.FAILED,
            {**TRAINING, "Running": "False", "Failed": "True"},
        ),
        (
            a_job(),
            lambda job: transitions.invalid_config(job, REFUSAL, now=LATER),
            Phase.PENDING,
            {"InvalidConfig": "True"},
        ),
    ],
)
def test_each_transition_sets_its_conditions_and_phase(
    begin: Job, change: Next, phase: Phase, conditions: dict[str, str]
) -> None:
    status = change(begin)
    assert status.phase is phase
    assert truths(status) == conditions


def test_a_condition_keeps_its_time_while_its_truth_stays() -> None:
    first = running(admitted(a_job()))
    again = transitions.running(first, now=LATER)
    assert since(again, ConditionType.RUNNING) == timestamp(T0)
    lost = released(first)
    assert since(lost, ConditionType.RUNNING) == timestamp(LATER)
    assert since(lost, ConditionType.CHECKPOINTED) == timestamp(T0)


def test_conditions_are_sorted_and_carry_the_observed_generation() -> None:
    status = failed(running(admitted(a_job())))
    kinds = [each.type for each in status.conditions or []]
    assert kinds == sorted(kinds)
    assert {each.observed_generation for each in status.conditions or []} == {1}


def test_admission_raises_the_generation_and_keeps_the_place_in_the_queue() -> None:
    first = admitted(a_job(), at=T0 + 5)
    again = admitted(with_status(first, released(first)), at=LATER)
    assert (first.status.generation, again.status.generation) == (1, 2)
    assert first.status.queued_at == again.status.queued_at == timestamp(T0)
    assert again.status.admitted_at == again.status.generation_at == timestamp(LATER)
    assert again.status.epoch == EPOCH


def test_the_deadline_counts_from_the_last_start_on_its_places() -> None:
    job = running(admitted(a_job()))
    assert released(job).started_at is None
    again = transitions.running(admitted(with_status(job, released(job))), now=LATER)
    assert again.started_at == timestamp(LATER)


def test_waiting_for_the_same_reason_is_the_same_status() -> None:
    job = a_job()
    wait = {"reason": "InsufficientGpus", "message": "8 of 16"}
    first = transitions.waiting(job, now=T0, **wait)
    assert transitions.waiting(with_status(job, first), now=LATER, **wait) == first


def test_success_tells_step_and_loss() -> None:
    progress = Progress(step=100, total_steps=100, loss=2.5, tokens_per_second=1234.9)
    status = transitions.succeeded(running(admitted(a_job())), progress=progress, now=LATER)
    assert status.message == "finished at step 100, loss 2.5000"
    assert (status.step, status.total_steps, status.tokens_per_second) == (100, 100, 1234)
    assert status.finished_at == timestamp(LATER)


@pytest.mark.parametrize(
    ("loss", "speed", "shown"),
    [
        (2.34567, 10.9, ("2.3457", 10)),
        (1e300, 1e300, ("1.0000e+300", 2**53)),
        (-1e300, -5.0, ("-1.0000e+300", 0)),
        (None, None, (None, None)),
    ],
)
def test_no_figure_makes_a_status_that_the_api_refuses(
    loss: float | None, speed: float | None, shown: tuple[str | None, int | None]
) -> None:
    job = running(admitted(a_job()))
    progress = Progress(step=1, total_steps=2, loss=loss, tokens_per_second=speed)
    status = transitions.with_progress(job, job.status, progress, now=LATER)
    assert (status.loss, status.tokens_per_second) == shown
    TrainingJobStatus.model_validate(json.loads(status.model_dump_json(by_alias=True)))


def test_unknown_figures_leave_known_figures() -> None:
    job = running(admitted(a_job()))
    known = Progress(step=1, total_steps=2, loss=2.0, tokens_per_second=5.0)
    job = with_status(job, transitions.with_progress(job, job.status, known, now=LATER))
    status = transitions.with_progress(job, job.status, Progress(step=2, total_steps=2), now=LATER)
    assert (status.step, status.loss, status.tokens_per_second) == (2, "2.0000", 5)


def test_the_series_grows_with_the_figures_and_outlives_pods_but_not_by_much() -> None:
    job = running(admitted(a_job()))
    for minute in range(100):
        recent = "step,loss\n" + "\n".join(f"{minute * 8 + log},1.5" for log in range(8))
        figures = Progress(step=minute * 8 + 7, total_steps=800, series=recent)
        job = with_status(job, transitions.with_progress(job, job.status, figures, now=LATER))
    series = decode(job.status.series or "")
    assert (len(series), series[0].step, series[-1].step) == (MAX_POINTS, 0, 799)
    preempted = transitions.requeued(job, reason=Reason.PREEMPTED, message="", now=LATER)
    assert preempted.series == job.status.series
    hostile = Progress(step=800, total_steps=800, series="<b>\n" * 900)
    status = transitions.with_progress(job, job.status, hostile, now=LATER)
    assert (status.step, status.series) == (800, job.status.series)
    TrainingJobStatus.model_validate(json.loads(status.model_dump_json(by_alias=True)))


def test_the_newest_continued_prompts_stay() -> None:
    job = running(admitted(a_job()))
    for text in ('[3,["a","b"]]', ""):
        news = Progress(step=4, total_steps=8, answers=text)
        job = with_status(job, transitions.with_progress(job, job.status, news, now=LATER))
        assert job.status.prompt_answers == '[3,["a","b"]]'


def test_compute_times_of_ranks_come_with_the_figures_and_are_written_anew() -> None:
    job = running(admitted(a_job()))
    for minute in range(100):
        recent = f"step,ranks,compute\n{minute * 8},4,5556\n{minute * 8 + 4},4,555c"
        figures = Progress(step=minute * 8 + 4, total_steps=800, compute_by_rank=recent)
        job = with_status(job, transitions.with_progress(job, job.status, figures, now=LATER))
    points = rank_compute.decode(job.status.compute_by_rank or "")
    assert (len(points), points[0].step, points[-1].step) == (24, 0, 796)
    assert points[-1].ratios == (1.0, 1.0, 1.0, 1.35)
    for text in ("<b>\n" * 500, "", "step,ranks,compute\n797,4,<b>5"):
        news = Progress(step=800, total_steps=800, compute_by_rank=text)
        status = transitions.with_progress(job, job.status, news, now=LATER)
        assert (status.step, status.compute_by_rank) == (800, job.status.compute_by_rank)
        TrainingJobStatus.model_validate(json.loads(status.model_dump_json(by_alias=True)))


@pytest.mark.parametrize(
    ("before", "left", "after"),
    [
        (None, 600.0, 600),
        (600.0, 630.0, 600),  # by less than a minute
        (600.0, 700.0, 700),
        (86_400.0, 89_000.0, 86_400),  # by less than 5 %
        (600.0, None, 600),
        (600.0, -1.0, 600),
        (None, 1e15, None),
    ],
)
def test_an_expected_end_moves_when_it_differs_by_much(
    before: float | None, left: float | None, after: float | None
) -> None:
    job = running(admitted(a_job()))
    for seconds in (before, left):
        figures = Progress(step=1, total_steps=2, seconds_left=seconds)
        job = with_status(job, transitions.with_progress(job, job.status, figures, now=LATER))
    assert job.status.expected_end == (None if after is None else timestamp(LATER + after))


def test_the_status_says_which_code_the_pods_unpacked() -> None:
    digest = f"sha256:{'a' * 64}"
    code = {"digest": digest, "configMaps": ["code-0"]}
    template = {"image": "a:1", "launch": "PerGpu", "command": ["train"]}
    job = admitted(a_job(template=template | {"code": code}))
    assert job.status.code_digest == digest
    assert admitted(a_job(template=template)).status.code_digest is None


def test_a_job_without_gpus_has_no_expected_end() -> None:
    job = running(admitted(a_job()))
    figures = Progress(step=1, total_steps=2, seconds_left=600.0)
    job = with_status(job, transitions.with_progress(job, job.status, figures, now=LATER))
    assert job.status.expected_end
    assert transitions.suspended(job, now=LATER).expected_end is None
    preempted = transitions.requeued(job, reason=Reason.PREEMPTED, message="", now=LATER)
    assert preempted.expected_end is None
    assert transitions.succeeded(job, progress=figures, now=LATER).expected_end is None
    failed = transitions.failed(job, reason=Reason.PREEMPTED, message="", now=LATER)
    assert failed.expected_end is None


def test_a_checkpoint_is_recorded_only_if_it_is_newer() -> None:
    job = running(admitted(a_job(checkpoint={"claimName": "c"})))
    saved = Progress(step=50, total_steps=99, checkpoint_step=50, checkpoint_digest="d" * 500)
    status = transitions.with_progress(job, job.status, saved, now=LATER)
    assert status.checkpoint is not None
    assert (status.checkpoint.step, status.checkpoint.digest) == (50, "d" * 128)
    assert is_true(status, ConditionType.CHECKPOINTED)
    older = Progress(step=60, total_steps=99, checkpoint_step=40, checkpoint_digest="o")
    again = transitions.with_progress(with_status(job, status), status, older, now=LATER)
    assert again.checkpoint == status.checkpoint


def test_a_new_leader_changes_the_epoch_and_nothing_else() -> None:
    job = running(admitted(a_job()))
    assert transitions.with_epoch(job, epoch=9) == job.status.model_copy(update={"epoch": 9})


def test_long_texts_are_cut_to_what_the_api_allows() -> None:
    job = running(admitted(a_job()))
    status = transitions.requeued(job, reason=Reason.API_REFUSED, message="x" * 9000, now=LATER)
    TrainingJobStatus.model_validate(json.loads(status.model_dump_json(by_alias=True)))
    assert (len(status.message or ""), len(status.incident or "")) == (2048, 8192)


def test_times_are_written_as_kubernetes_writes_them() -> None:
    assert timestamp(T0 + 0.9) == "2023-11-14T22:13:20Z"
    assert parse_timestamp("2023-11-14T22:13:20Z") == T0
    assert parse_timestamp("2023-11-14T22:13:20.5Z") == T0 + 0.5


def test_a_start_is_expected_until_the_job_has_places_or_is_suspended() -> None:
    waits = with_status(
        a_job(), transitions.with_expected_start(a_job().status, start=T0 + 60, by=T0 + 90.7)
    )
    expected = ("2023-11-14T22:14:20Z", "2023-11-14T22:14:50Z")
    assert (waits.status.expected_start, waits.status.expected_start_by) == expected
    placed = transitions.admitted(
        waits, pool="h100", nodes=("a", "b"), epoch=EPOCH, image="trainer:1", priority=0, now=T0
    )
    for status in (placed, transitions.suspended(waits, now=T0)):
        assert (status.expected_start, status.expected_start_by) == (None, None)


def test_the_layout_stays_where_an_agent_does_not_say_it() -> None:
    job = admitted(a_job())
    status = transitions.with_progress(job, job.status, Progress(layout="FSDP4"), now=LATER)
    again = with_status(job, status)
    status = transitions.with_progress(again, again.status, Progress(step=1), now=LATER)
    assert status.layout == "FSDP4"
