"""Jobs that start after other jobs: what holds them back, and from when on nothing does."""

from __future__ import annotations

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.chains import FREE, Standing, circles, standing_of
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import timestamp
from drumline.lifecycle.plan.actions import DeleteJob, JobPlan
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.after import AfterSpec
from drumline_api.conditions import Reason
from drumline_scheduler import Predecessor, PredecessorState
from tests.builders import EPOCH, T0, a_job, admitted, observed, running, with_spec, with_status

TRAINED = AfterSpec(job="first")
ENDED = AfterSpec(job="first", condition="Finished")


def second(*after: AfterSpec) -> Job:
    named = [each.model_dump() for each in after]
    return a_job(name="second", after=named)


def first(*, succeeds: bool, at: float = T0 + 60) -> Job:
    job = running(admitted(a_job(name="first")))
    status = (
        transitions.succeeded(job, progress=None, now=at)
        if succeeds
        else transitions.failed(job, reason=Reason.RESTARTS_EXHAUSTED, message="no", now=at)
    )
    return with_status(job, status)


def standing(job: Job, *known: Job, circle: tuple[str, ...] = ()) -> Standing:
    jobs = {each.key: each for each in known}
    return standing_of(job, job_at=jobs.get, circle=circle)


def test_a_job_without_predecessors_is_free() -> None:
    assert standing(a_job()) == FREE


@pytest.mark.parametrize(
    ("after", "succeeds", "state"),
    [
        (TRAINED, True, None),
        (ENDED, True, None),
        (ENDED, False, None),
        (TRAINED, False, PredecessorState.FAILED),
    ],
)
def test_how_a_predecessor_ended_decides(
    after: AfterSpec, succeeds: bool, state: PredecessorState | None
) -> None:
    ended = standing(second(after), first(succeeds=succeeds))
    if state is None:
        assert ended == Standing(met=(after,), ended_at=T0 + 60)
    else:
        assert ended == Standing(unmet=(Predecessor(key="team/first", state=state),))


def test_one_that_runs_is_waited_for_and_one_that_is_not_there_is_named() -> None:
    (waited_for,) = standing(second(ENDED), running(admitted(a_job(name="first")))).unmet
    assert waited_for == Predecessor(key="team/first", must_succeed=False)
    (missing,) = standing(second(TRAINED)).unmet
    assert missing.state is PredecessorState.NOT_FOUND


def test_what_was_met_may_be_deleted() -> None:
    job = second(TRAINED)
    plan = plan_job(
        job,
        observed(predecessors=standing(job, first(succeeds=True))),
        now=T0 + 90,
        epoch=EPOCH,
    )
    assert plan.status is not None
    assert plan.status.after == [TRAINED]
    assert standing(with_status(job, plan.status)) == FREE


def test_a_job_is_not_deleted_before_its_successors_know_how_it_ended() -> None:
    job = with_spec(first(succeeds=True), ttl_seconds_after_finished=0)
    waits = plan_job(job, observed(is_awaited=True), now=T0 + 90, epoch=EPOCH)
    assert waits == JobPlan(requeue_at=T0 + 91)
    assert plan_job(job, observed(), now=T0 + 90, epoch=EPOCH).actions == (DeleteJob(),)


def test_what_was_met_under_another_condition_is_asked_again() -> None:
    job = second(ENDED)
    status = job.status.model_copy(update={"after": [TRAINED]})
    job = with_status(job, status)
    asked = standing(job, first(succeeds=False))
    assert asked.met == (ENDED,)
    assert transitions.predecessors_met(job, asked).after == [ENDED]


def test_its_place_in_the_queue_counts_from_the_end_of_the_last_of_them() -> None:
    job = second(TRAINED)
    late = standing(job, first(succeeds=True, at=T0 + 500))
    assert transitions.predecessors_met(job, late).queued_at == timestamp(T0 + 500)
    early = standing(job, first(succeeds=True, at=T0 - 500))
    assert transitions.predecessors_met(job, early).queued_at == timestamp(job.created_at)


def test_a_job_that_was_placed_never_waits_for_them_again() -> None:
    assert standing(admitted(second(TRAINED, AfterSpec(job="other")))) == FREE


def test_jobs_that_wait_for_each_other_are_a_circle() -> None:
    edges = {"a": ["b"], "b": ["c", "x"], "c": ["a"], "behind": ["a"], "alone": ["x"]}
    circle = ("a", "b", "c", "a")
    assert circles(edges) == dict.fromkeys("abc", circle)
    (predecessor,) = standing(
        second(TRAINED), a_job(name="first"), circle=("team/second", "team/first", "team/second")
    ).unmet
    assert predecessor.state is PredecessorState.CIRCULAR
    assert predecessor.circle == ("team/second", "team/first", "team/second")


def test_a_job_after_itself_is_a_circle() -> None:
    assert circles({"a": ["a"]}) == {"a": ("a", "a")}


def test_two_circles_with_a_job_in_common_are_both_found() -> None:
    assert circles({"a": ["b", "c"], "b": ["a"], "c": ["a"]}).keys() == {"a", "b", "c"}


def test_a_chain_of_thousands_is_walked_without_recursion() -> None:
    edges = {str(number): [str(number + 1)] for number in range(5000)}
    assert circles(edges) == {}
    assert len(circles({**edges, "5000": ["0"]})) == 5001
