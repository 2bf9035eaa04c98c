"""GPUs that are idle: warned of, notified about, saved and given back; and never by mistake."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.conditions import condition, is_true
from drumline.lifecycle.model.idleness import IdleStage, IdleVerdict, idle_verdict
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline.lifecycle.plan.acceptance import is_queued
from drumline.lifecycle.plan.actions import JobPlan, Notify
from drumline.lifecycle.plan.deadlines import SENTENCE_SECONDS
from drumline_api.conditions import Condition, ConditionType, DisruptionKind, Phase, Reason
from drumline_api.jobstatus import TrainingJobStatus
from drumline_api.trainingqueue import IdleRules
from drumline_contract import ExitCode, NoticeAnswer, Pause, Progress, Remark, RemarkKind
from tests.builders import (
    T0,
    a_job,
    a_pod,
    admitted,
    ended,
    observed,
    ready_pods,
    running,
    with_spec,
    with_status,
)
from tests.texts import missing
from tests.unit.lifecycle import planning

WARN, NOTIFY, SUSPEND = (
    IdleRules(action=action, after_seconds=240) for action in ("Warn", "Notify", "Suspend")
)
CLAIM = {"claimName": "shared"}
LONG = Pause(seconds=500.0, usual_seconds=2.0)


def a_running_job(**spec: Any) -> Job:
    return running(admitted(a_job(checkpoint=CLAIM, **spec)))


def seen(
    job: Job, seconds: float | None, *, rules: IdleRules = WARN, usual: float = 2.0, **rest: Any
) -> Observed:
    pause = None if seconds is None else Pause(seconds=seconds, usual_seconds=usual)
    facts = {"waiting_for": "", "pause": pause, "idle_rules": rules} | rest
    return observed(*ready_pods(job), **facts)


planned = partial(planning.planned, now=T0 + 600)


def after(job: Job, what: Observed, *, now: float = T0 + 600) -> Job:
    return with_status(job, planned(job, what, now=now).status)


def idle_condition(job: Job) -> Condition:
    shown = condition(job.status, ConditionType.IDLE)
    assert shown is not None
    return shown


@pytest.mark.parametrize(
    ("seconds", "usual", "rules", "stage", "again_in"),
    [
        (64.0, 2.0, SUSPEND, IdleStage.WORKS, None),
        (64.1, 2.0, WARN, IdleStage.WARNED, None),
        (9e9, 2.0, WARN, IdleStage.WARNED, None),
        (9e9, 0.0, SUSPEND, IdleStage.WORKS, None),  # nothing was learned of its steps
        (100.0, 2.0, NOTIFY, IdleStage.WARNED, 140.0),
        (239.0, 2.0, NOTIFY, IdleStage.WARNED, 2.0),
        (240.0, 2.0, NOTIFY, IdleStage.NOTIFIED, None),
        (660.0, 300.0, SUSPEND, IdleStage.WORKS, None),
        (661.0, 300.0, SUSPEND, IdleStage.NOTIFIED, 239.0),
        (240.0, 2.0, SUSPEND, IdleStage.NOTIFIED, 240.0),
        (479.9, 2.0, SUSPEND, IdleStage.NOTIFIED, 2.0),
        (480.0, 2.0, SUSPEND, IdleStage.SUSPENDED, None),
    ],
)
def test_how_far_a_pause_has_come(
    seconds: float, usual: float, rules: IdleRules, stage: IdleStage, again_in: float | None
) -> None:
    pause = Pause(seconds=seconds, usual_seconds=usual)
    verdict = idle_verdict(pause, rules, may_suspend=True, notified_seconds=1e9)
    assert verdict.stage is stage
    assert verdict.again_in == pytest.approx(again_in)


def test_a_job_may_refuse_to_be_suspended_but_not_the_message() -> None:
    verdict = idle_verdict(LONG, SUSPEND, may_suspend=False, notified_seconds=1e9)
    assert verdict == IdleVerdict(stage=IdleStage.NOTIFIED)


@pytest.mark.parametrize(("notified", "again_in"), [(None, 240.0), (40.0, 200.0)])
def test_who_was_told_late_gets_its_time_to_react(notified: float | None, again_in: float) -> None:
    verdict = idle_verdict(LONG, SUSPEND, may_suspend=True, notified_seconds=notified)
    assert verdict == IdleVerdict(stage=IdleStage.NOTIFIED, again_in=again_in)


def test_an_operator_that_was_away_for_the_message_says_it_and_waits() -> None:
    job = a_running_job()
    job = after(job, seen(job, 70.0, rules=SUSPEND), now=T0 + 1_000)
    late = seen(job, 9_000.0, rules=SUSPEND)
    job = after(job, late, now=T0 + 9_930)
    assert (job.status.reason, job.status.disruption) == (Reason.STAYS_IDLE, None)
    waits = planned(job, late, now=T0 + 9_931)
    assert (waits.status, waits.requeue_at) == (None, T0 + 10_170)
    assert after(job, late, now=T0 + 10_170).status.disruption is not None


def test_what_was_said_of_a_pause_before_does_not_count_for_the_next() -> None:
    """It worked and paused again while the operator was away."""
    job = after(a_running_job(), seen(a_running_job(), 240.0, rules=SUSPEND), now=T0 + 1_000)
    returns = T0 + 1_000 + 1_200
    job = after(job, seen(job, 540.0, rules=SUSPEND), now=returns)
    assert (job.status.reason, job.status.disruption) == (Reason.STAYS_IDLE, None)
    assert f"no work since {timestamp(returns - 540)}" in idle_condition(job).message
    waits = planned(job, seen(job, 541.0, rules=SUSPEND), now=returns + 1)
    assert (waits.status, waits.requeue_at) == (None, returns + 240)
    assert after(job, seen(job, 780.0, rules=SUSPEND), now=returns + 240).status.disruption


def test_it_is_said_once_and_taken_back_once() -> None:
    job = a_running_job()
    job = with_status(job, job.status.model_copy(update={"step": 410}))
    assert planned(job, seen(job, 64.0)).status is None
    idle = after(job, seen(job, 70.0))
    since = timestamp(T0 + 530)
    words = f"no work since {since} (step 410); its longest usual pause is 2.0 s"
    assert (idle.status.phase, idle.status.reason) == (Phase.RUNNING, Reason.NO_STEPS)
    assert (idle_condition(idle).reason, idle_condition(idle).message) == ("NoSteps", words)
    for later in (71.0, 3_000.0):
        assert planned(idle, seen(idle, later), now=T0 + 530 + later) == JobPlan()
    works = after(idle, seen(idle, 0.4), now=T0 + 4_000)
    assert (works.status.reason, works.status.message) == (Reason.TRAINING, "")
    assert idle_condition(works).status == "False"
    assert planned(works, seen(works, 0.4), now=T0 + 4_001) == JobPlan()


def test_a_timer_takes_it_from_warning_to_message_to_suspension() -> None:
    job = a_running_job()
    warned = after(job, seen(job, 70.0, rules=SUSPEND), now=T0 + 1_000)
    waits = planned(warned, seen(warned, 70.0, rules=SUSPEND), now=T0 + 1_000)
    assert (waits.status, waits.requeue_at) == (None, T0 + 1_170)
    notified = after(warned, seen(warned, 240.0, rules=SUSPEND), now=T0 + 1_170)
    assert (notified.status.reason, notified.status.disruption) == (Reason.STAYS_IDLE, None)
    waits = planned(notified, seen(notified, 240.0, rules=SUSPEND), now=T0 + 1_170)
    assert (waits.status, waits.requeue_at) == (None, T0 + 1_410)
    leaves = after(notified, seen(notified, 480.0, rules=SUSPEND), now=T0 + 1_410)
    disruption = leaves.status.disruption
    assert disruption is not None
    assert (disruption.kind, disruption.by) == (DisruptionKind.IDLE, "queue/research")
    assert disruption.deadline == timestamp(T0 + 1_710)


def leaving(job: Job, *, rules: IdleRules = SUSPEND) -> Job:
    for seconds in (70.0, 240.0, 480.0):
        job = after(job, seen(job, seconds, rules=rules), now=T0 + 1_000 + seconds)
    assert job.status.disruption is not None
    return job


def test_it_saves_is_suspended_and_says_why_and_how_to_go_on() -> None:
    job = leaving(a_running_job())
    asked = planned(job, seen(job, 481.0, rules=SUSPEND), now=T0 + 1_481)
    (notify,) = asked.actions
    assert isinstance(notify, Notify)
    assert (notify.notice.leave, asked.requeue_at) == (True, T0 + 1_780)
    answer = NoticeAnswer(id=notify.notice.id, step=410, digest="d")
    answered = seen(job, 482.0, rules=SUSPEND, notice=answer, notified=notify.notice.id)
    job = after(job, answered, now=T0 + 1_482)
    status = job.status
    assert (status.phase, status.reason) == (Phase.SUSPENDED, Reason.IDLE_GPUS)
    assert status.checkpoint is not None
    assert status.checkpoint.step == 410
    assert status.message is not None
    assert not missing(status.message, "GPUs", "2023-11-14T22:30:00Z")
    assert not missing(status.message, "step 410", "llama")
    assert (status.assignment, status.disruption) == (None, None)
    for kind in (ConditionType.IDLE, ConditionType.DISRUPTED, ConditionType.RUNNING):
        assert not is_true(status, kind)


def suspended() -> Job:
    job = leaving(a_running_job(template=None))
    late = seen(job, 800.0, rules=SUSPEND)
    return after(job, late, now=T0 + 1_790)


def test_it_leaves_at_the_deadline_without_an_answer() -> None:
    status = suspended().status
    assert status.message is not None
    assert "nothing is saved" in status.message


def test_it_stays_suspended_until_its_spec_changes() -> None:
    job = suspended()
    assert not job.spec.suspend
    assert planned(job, observed()) == JobPlan()
    assert not is_queued(job)
    stopped = replace(with_spec(job, suspend=True), object_generation=2)
    stopped = after(stopped, observed())  # says only which spec it is about
    assert (stopped.status.phase, stopped.status.reason) == (Phase.SUSPENDED, Reason.IDLE_GPUS)
    for resumed in (
        replace(with_spec(stopped, suspend=False), object_generation=3),
        replace(with_spec(job, priority_class_name="high"), object_generation=2),
    ):
        status = planned(resumed, observed(), now=T0 + 9_000).status
        assert status is not None
        assert (status.phase, status.reason) == (Phase.PENDING, Reason.RESUMED)
        assert status.queued_at == timestamp(T0 + 9_000)


def test_who_works_again_before_it_was_asked_to_save_stays() -> None:
    job = leaving(a_running_job())
    assert job.status.disruption is not None
    works = seen(job, 0.2, rules=SUSPEND, notice=NoticeAnswer(id="of-another"))
    job = after(job, works, now=T0 + 1_490)
    assert (job.status.disruption, job.status.reason) == (None, Reason.TRAINING)
    assert not is_true(job.status, ConditionType.IDLE)


@pytest.mark.parametrize("operator", ["that asked", "that came after"])
def test_a_gang_that_may_have_the_notice_is_not_kept_as_its_save_is_no_work(operator: str) -> None:
    """Its ranks show no pause while they save, and leave once they have, whatever is said then."""
    job = leaving(a_running_job())
    assert job.status.disruption is not None
    name = job.status.disruption.id
    held = seen(job, 0.0, rules=SUSPEND)
    if operator == "that asked":
        held = replace(held, notified=name)
    else:
        held = replace(held, notice=NoticeAnswer(id=name))
    assert planned(job, held, now=T0 + 1_490) == JobPlan(requeue_at=T0 + 1_780)
    answer = NoticeAnswer(id=name, step=410, digest="d")
    saved = seen(job, 0.0, rules=SUSPEND, notice=answer)
    status = after(job, saved, now=T0 + 1_500).status
    assert (status.phase, status.reason) == (Phase.SUSPENDED, Reason.IDLE_GPUS)


def test_who_cannot_tell_its_pause_is_not_taken_for_working() -> None:
    job = leaving(a_running_job())
    unknown = planned(job, seen(job, 0.0, usual=0.0, rules=SUSPEND), now=T0 + 1_490)
    assert unknown.status is None
    (notify,) = unknown.actions
    assert isinstance(notify, Notify)
    assert notify.notice.leave


def seen_as(job: Job, pause: Pause, *, rules: IdleRules) -> Observed:
    return seen(job, pause.seconds, usual=pause.usual_seconds, rules=rules)


@pytest.mark.parametrize("rules", [WARN, NOTIFY, SUSPEND], ids=lambda rules: rules.action)
def test_agents_that_change_their_mind_all_the_time_write_no_more_than_the_budget_has(
    rules: IdleRules,
) -> None:
    """Ten times a second, for 100 seconds."""
    job, writes = a_running_job(), 0
    pauses = [Pause(seconds=seconds, usual_seconds=1.0) for seconds in (0.0, 1e6)]
    for moment in range(1_000):
        what = seen_as(job, pauses[moment % 2], rules=rules)
        status = planned(job, what, now=T0 + 600 + moment / 10).status
        job, writes = (job, writes) if status is None else (with_status(job, status), writes + 1)
    assert 2 <= writes <= 100 / SENTENCE_SECONDS + 1


def test_warning_and_message_in_turns_are_held_to_the_same_pace() -> None:
    job, writes = a_running_job(), 0
    for moment in range(100):
        status = planned(job, seen(job, 70.0 + 200 * (moment % 2), rules=NOTIFY)).status
        job, writes = (job, writes) if status is None else (with_status(job, status), writes + 1)
    assert writes == 1


def test_what_is_held_back_is_said_by_a_timer_also_by_the_next_operator() -> None:
    idle = after(a_running_job(), seen(a_running_job(), 70.0), now=T0 + 600)
    for words, expected in ((0.4, "False"), (90.0, "True")):
        said_at = parse_timestamp(idle_condition(idle).last_transition_time)
        what = seen(idle, words)
        waits = planned(idle, what, now=said_at + 1)
        assert (waits.status, waits.requeue_at) == (None, said_at + SENTENCE_SECONDS)
        idle = after(idle, what, now=said_at + SENTENCE_SECONDS)
        assert idle_condition(idle).status == expected


def test_agents_that_change_their_mind_about_leaving_are_told_so_in_full_again() -> None:
    """One write takes back both, so nothing of what was said is left for the next eviction."""
    job = leaving(a_running_job())
    works, idle = (Pause(seconds=seconds, usual_seconds=2.0) for seconds in (0.2, 1e6))
    job = after(job, seen_as(job, works, rules=SUSPEND), now=T0 + 1_490)
    assert (job.status.disruption, is_true(job.status, ConditionType.IDLE)) == (None, False)
    job = after(job, seen_as(job, idle, rules=SUSPEND), now=T0 + 1_500)
    waits = planned(job, seen_as(job, idle, rules=SUSPEND), now=T0 + 1_501)
    assert (waits.status, waits.requeue_at) == (None, T0 + 1_740)


def test_agents_that_are_not_heard_take_it_no_further_and_back_nothing() -> None:
    job = a_running_job()
    assert planned(job, seen(job, None, rules=SUSPEND)) == JobPlan()
    idle = after(job, seen(job, 240.0, rules=SUSPEND))
    assert planned(idle, seen(idle, None, rules=SUSPEND), now=T0 + 90_000) == JobPlan()
    leaves = leaving(a_running_job())
    waits = planned(leaves, seen(leaves, None, rules=SUSPEND), now=T0 + 1_490)
    assert waits.status is None


NOT_JUDGED: dict[str, dict[str, Any]] = {
    "its agents wait for storage": {"waiting_for": "the claim is full"},
    "it is held": {"remark": Remark(kind=RemarkKind.HELD, sentence="held until then")},
}


@pytest.mark.parametrize("facts", NOT_JUDGED.values(), ids=NOT_JUDGED)
def test_what_its_agents_explain_is_not_idle_and_ends_what_was_said(facts: dict[str, Any]) -> None:
    job = a_running_job()
    status = planned(job, seen(job, 9_000.0, rules=SUSPEND, **facts)).status
    assert status is None or not is_true(status, ConditionType.IDLE)
    idle = after(job, seen(job, 240.0, rules=SUSPEND))
    for _ in range(3):
        what = seen(idle, 9_000.0, rules=SUSPEND, **facts)
        status = planned(idle, what, now=T0 + 610).status
        idle = idle if status is None else with_status(idle, status)
    assert not is_true(idle.status, ConditionType.IDLE)


def test_a_gang_with_a_missing_a_silent_or_a_joining_member_is_not_judged() -> None:
    job = a_running_job()
    silent = frozenset({ready_pods(job)[1].uid})
    status = planned(job, seen(job, 9_000.0, silent=silent)).status
    assert status is not None
    assert not is_true(status, ConditionType.IDLE)
    missing = replace(seen(job, 9_000.0), pods=ready_pods(job)[:1])
    status = planned(job, missing).status
    assert status is None or not is_true(status, ConditionType.IDLE)


def test_a_gang_that_starts_again_is_idle_no_more() -> None:
    job = a_running_job(template={"image": "a:1", "command": ["x"], "launch": "PerGpu"})
    idle = after(job, seen(job, 70.0))
    failed = a_pod(idle, 1, end=ended(exit_code=9))
    broken = replace(seen(idle, 80.0), pods=(ready_pods(idle)[0], failed))
    for _ in range(4):
        status = planned(idle, broken).status
        idle = idle if status is None else with_status(idle, status)
    assert idle.status.phase is not Phase.RUNNING
    assert not is_true(idle.status, ConditionType.IDLE)


def test_a_preemption_comes_before_and_ends_it() -> None:
    idle = after(a_running_job(), seen(a_running_job(), 70.0))
    status = transitions.disrupted(
        idle,
        kind=DisruptionKind.PREEMPTION,
        by="team/urgent",
        message="team/urgent needs 4 GPUs",
        deadline=T0 + 700,
        now=T0 + 650,
    )
    job = with_status(idle, status)
    assert planned(job, seen(job, 9_000.0, rules=SUSPEND), now=T0 + 651).status is None
    gone = after(job, seen(job, 9_000.0, rules=SUSPEND), now=T0 + 701)
    assert (gone.status.phase, gone.status.reason) == (Phase.PENDING, Reason.PREEMPTED)
    assert not is_true(gone.status, ConditionType.IDLE)


def test_other_words_of_its_agents_stay_shown() -> None:
    job = a_running_job(template={"image": "a:1", "command": ["x"], "launch": "PerGpu"})
    remark = Remark(kind=RemarkKind.RANKS_ENDED, sentence="2 of 4 ranks have ended")
    job = after(job, seen(job, 1.0, remark=remark, progress=Progress()))
    idle = after(job, seen(job, 70.0, remark=remark))
    assert idle.status.reason == Reason.RANKS_ENDED
    assert idle_condition(idle).status == "True"
    works = after(idle, seen(idle, 0.0, remark=remark), now=T0 + 610)
    assert works.status.reason == Reason.RANKS_ENDED


@pytest.mark.parametrize("seed", range(30))
def test_in_random_lives_nobody_is_suspended_who_was_not_idle_and_told_for_long(seed: int) -> None:
    """Whatever the operator's clock does, whoever is heard, and however often."""
    dice = random.Random(seed)
    rules = dice.choice((WARN, NOTIFY, SUSPEND, SUSPEND))
    job, now, paused, known_for = a_running_job(), T0 + 100.0, 0.0, 0.0
    is_known = False  # of this pause
    for _ in range(400):
        passed = dice.choice((1.0, 10.0, 60.0, 300.0))
        paused = paused + passed if dice.random() < 0.7 else 0.0
        is_known = is_known and paused > 0
        now += passed
        known_for += passed
        heard = dice.random() < 0.4
        before, what = job.status, seen(job, paused if heard else None, rules=rules)
        status = planned(job, what, now=now).status
        if status is None:
            continue
        job = with_status(job, status)
        _assert_sound(status, paused=paused, heard=heard, rules=rules)
        if status.disruption is not None:
            assert (_reason(before), is_known, known_for >= 240.0) == ("StaysIdle", True, True)
            return
        stays_idle = _reason(status) == "StaysIdle"
        assert _reason(before) != _reason(status) or (stays_idle and not is_known), "said again"
        if stays_idle:
            is_known, known_for = True, 0.0
    assert is_true(job.status, ConditionType.RUNNING)


def _reason(status: TrainingJobStatus) -> str:
    shown = condition(status, ConditionType.IDLE)
    return shown.reason if shown is not None and shown.status == "True" else ""


def _assert_sound(
    after: TrainingJobStatus,
    *,
    paused: float,
    heard: bool,
    rules: IdleRules,
) -> None:
    assert heard, "nothing follows from silence"
    assert not _reason(after) or paused > 64.0
    assert after.reason != Reason.STAYS_IDLE or paused >= 240.0
    assert after.disruption is None or paused >= 480.0
    assert rules.action != "Warn" or _reason(after) != "StaysIdle"
    assert rules.action == "Suspend" or after.disruption is None


@pytest.mark.parametrize("jump", [-86_400.0, 86_400.0])
def test_a_clock_that_jumps_makes_nobody_idle_and_shortens_no_pause(jump: float) -> None:
    job = a_running_job()
    assert planned(job, seen(job, 30.0, rules=SUSPEND), now=T0 + 600 + jump).status is None
    job = after(job, seen(job, 240.0, rules=SUSPEND))
    status = planned(job, seen(job, 241.0, rules=SUSPEND), now=T0 + 601 + jump).status
    # A day later it may be another pause: it is said again, which gives more time, never less.
    assert (status is None) == (jump < 0)
    assert status is None or (status.reason, status.disruption) == (Reason.STAYS_IDLE, None)


def test_a_clock_that_was_ahead_holds_nothing_back() -> None:
    idle = after(a_running_job(), seen(a_running_job(), 70.0), now=T0 + 86_400)
    works = after(idle, seen(idle, 0.4), now=T0 + 600)
    assert idle_condition(works).status == "False"


def a_shell(*, tty: bool = True, nodes: int = 1, **spec: Any) -> Job:
    template = {"image": "any:1", "command": ["sh"], "tty": tty}
    job = a_job(name="mine", nodes=nodes, template=template, **spec)
    return running(admitted(job, nodes=("node-a", "node-b")[:nodes]))


def left(job: Job, *, exit_code: int = ExitCode.IDLE) -> Job:
    """Once the command of its first pod has ended."""
    first = a_pod(job, 0, end=ended(exit_code=exit_code, at=T0 + 590))
    return after(job, observed(first, *ready_pods(job)[1:]))


def test_a_shell_that_nobody_uses_is_suspended_and_says_since_when_and_what_stays() -> None:
    job = left(a_shell())
    status = job.status
    assert (status.phase, status.reason) == (Phase.SUSPENDED, Reason.IDLE_GPUS)
    assert (status.assignment, status.finished_at, status.restarts or 0) == (None, None, 0)
    assert not missing(
        status.message, timestamp(T0 + 590), "exit code 79", "drumline shell mine", "claims"
    )
    assert planned(job, observed(), now=T0 + 1e9) == JobPlan()
    assert not is_queued(job)
    resumed = replace(job, object_generation=3)  # suspended and resumed in between
    status = planned(resumed, observed(), now=T0 + 9_000).status
    assert status is not None
    assert (status.phase, status.reason) == (Phase.PENDING, Reason.RESUMED)


def test_the_time_to_live_does_not_run_while_a_shell_is_suspended() -> None:
    job = left(a_shell(ttlSecondsAfterFinished=0))
    assert planned(job, observed(), now=T0 + 1e9) == JobPlan()


@pytest.mark.parametrize(
    "job",
    [a_shell(tty=False), a_shell(nodes=2), a_shell(whenIdle="Keep")],
    ids=["no terminal", "a terminal more", "kept"],
)
def test_the_same_exit_code_is_a_failure_where_it_is_no_lonely_terminals(job: Job) -> None:
    status = left(job).status
    assert (status.phase, status.reason) == (Phase.RECOVERING, Reason.POD_FAILED)


@pytest.mark.parametrize(("exit_code", "phase"), [(0, Phase.SUCCEEDED), (1, Phase.RECOVERING)])
def test_a_shell_that_ends_otherwise_is_not_suspended(exit_code: int, phase: Phase) -> None:
    assert left(a_shell(), exit_code=exit_code).status.phase == phase
