"""Jobs that start after other jobs: what holds them back, and from when on nothing does."""

from __future__ import annotations

from random import Random

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.chains import (
    FREE,
    MOST_NAMED,
    Circle,
    Standing,
    circles,
    standing_of,
)
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


def standing(job: Job, *known: Job, circle: Circle | None = None) -> Standing:
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
    assert circles(edges) == [Circle(keys=("a", "b", "c", "a"), members=frozenset("abc"))]
    keys = ("team/second", "team/first", "team/second")
    (predecessor,) = standing(
        second(TRAINED), a_job(name="first"), circle=Circle(keys=keys, members=frozenset(keys))
    ).unmet
    assert predecessor.state is PredecessorState.CIRCULAR
    assert predecessor.circle == keys


def test_a_job_after_itself_is_a_circle() -> None:
    assert circles({"a": ["a"]}) == [Circle(keys=("a", "a"), members=frozenset("a"))]


def test_two_circles_with_a_job_in_common_are_one_set_of_jobs() -> None:
    (circle,) = circles({"a": ["b", "c"], "b": ["a"], "c": ["a"]})
    assert circle.members == frozenset("abc")


def test_a_chain_of_thousands_is_walked_without_recursion() -> None:
    edges = {str(number): [str(number + 1)] for number in range(5000)}
    assert circles(edges) == []
    (circle,) = circles({**edges, "5000": ["0"]})
    assert len(circle.members) == 5001
    assert len(circle.keys) == MOST_NAMED + 2


class _Counted(dict[str, list[str]]):
    """Edges that count how often they are read."""

    reads = 0

    def __getitem__(self, key: str) -> list[str]:
        self.reads += 1
        return super().__getitem__(key)


def test_circles_are_found_in_a_number_of_steps_that_is_linear_in_the_edges() -> None:
    """16 ways back from each job close a circle each; none of them is walked again."""
    number = 2000
    edges = _Counted(
        {
            str(i): [str(i + 1), *(str(max(0, i - 7 * k)) for k in range(1, 16))]
            for i in range(number)
        }
    )
    (circle,) = circles(edges)
    assert len(circle.members) == number
    assert edges.reads <= 4 * number


@pytest.mark.parametrize("seed", range(20))
def test_members_are_the_jobs_that_reach_each_other(seed: int) -> None:
    dice = Random(seed)
    keys = "abcdefgh"
    edges = {key: dice.sample(keys + "xyz", dice.randint(0, 3)) for key in keys}

    def reached(start: str) -> set[str]:
        line = list(edges.get(start, ()))
        for key in line:
            line += [each for each in edges.get(key, ()) if each not in line]
        return set(line)

    expected = {key: {b for b in keys if b in reached(key) and key in reached(b)} for key in keys}
    searched = circles(edges)
    assert {key: set(each.members) for each in searched for key in each.members} == {
        key: members for key, members in expected.items() if members
    }
    for circle in searched:
        pairs = zip(circle.keys, circle.keys[1:], strict=False)
        assert all(after in edges[key] for key, after in pairs)
        assert circle.keys[0] == circle.keys[-1] == min(circle.members)
