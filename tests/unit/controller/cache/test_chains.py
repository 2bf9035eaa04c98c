"""Chains in the caches: who waits for whom follows the events of the jobs."""

from __future__ import annotations

import pytest

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.state.event_handlers import EventHandlers
from drumline.kube.store import Change, Event
from drumline.kube.views import TrainingJobView
from drumline_scheduler import Gang, PredecessorState
from tests.unit.controller.views import job_view

SUCCEEDED = {
    "phase": "Succeeded",
    "finishedAt": "2023-11-14T23:13:20Z",
    "conditions": [
        {
            "type": "Succeeded",
            "status": "True",
            "reason": "Completed",
            "lastTransitionTime": "2023-11-14T23:13:20Z",
        }
    ],
}


@pytest.fixture
def state() -> ClusterCache:
    return ClusterCache(nodes=NodeCache(clock=lambda: 0.0))


def job(name: str, *predecessors: str, **rest: object) -> TrainingJobView:
    after = {"after": [{"job": each} for each in predecessors]} if predecessors else {}
    return job_view(name, uid=name, **after, **rest)


def gang(state: ClusterCache, name: str) -> Gang:
    return next(each for each in state.scheduling.pending() if each.uid == name)


def states(state: ClusterCache, name: str) -> list[PredecessorState]:
    return [each.state for each in gang(state, name).after]


def test_a_gang_follows_what_becomes_of_its_predecessor(state: ClusterCache) -> None:
    state.on_job(None, job("b", "a"))
    assert states(state, "b") == [PredecessorState.NOT_FOUND]
    first = job("a")
    state.on_job(None, first)
    waits = gang(state, "b")
    assert states(state, "b") == [PredecessorState.WAITED_FOR]
    assert gang(state, "b") is waits
    ended = job("a", version=2, status=SUCCEEDED)
    state.on_job(first, ended)
    assert states(state, "b") == []
    assert gang(state, "b").queued_at == waits.queued_at + 3600
    state.on_job(ended, None)
    assert states(state, "b") == [PredecessorState.NOT_FOUND]


def test_circles_come_and_go_with_the_specs(state: ClusterCache) -> None:
    first, second = job("a", "b"), job("b", "a")
    state.on_job(None, first)
    state.on_job(None, second)
    assert states(state, "a") == states(state, "b") == [PredecessorState.CIRCULAR]
    assert gang(state, "a").after[0].circle == ("team/a", "team/b", "team/a")
    state.on_job(first, job("a", version=2, generation=2))
    assert states(state, "b") == [PredecessorState.WAITED_FOR]


def test_a_standing_is_kept_until_a_predecessor_changes(state: ClusterCache) -> None:
    for name, after in (("a", "b"), ("b", "a"), ("c", "a"), ("d", "c")):
        state.on_job(None, job(name, after))

    jobs = {each.name: each for each in state.jobs.all()}
    before = {name: state.chains.standing_of(each) for name, each in jobs.items()}

    def changed() -> set[str]:
        """Return the names of the jobs whose standing is a new object."""
        return {
            name
            for name, each in jobs.items()
            if state.chains.standing_of(each) is not before[name]
        }

    assert changed() == set()
    state.on_job(None, job("e", "e"))  # another circle
    assert changed() == set()
    state.on_job(job("c", "a"), job("c", "a", version=2, status={"phase": "Pending"}))
    assert changed() == {"c", "d"}


def test_a_job_is_awaited_until_its_successor_says_that_it_has_ended(state: ClusterCache) -> None:
    waits, ended = job("b", "a"), job("a", status=SUCCEEDED)
    state.on_job(None, ended)
    state.on_job(None, waits)
    first = state.jobs.get("team/a")
    assert first is not None
    assert state.chains.is_awaited(first)
    met = {"after": [{"job": "a", "condition": "Succeeded"}]}
    state.on_job(waits, job("b", "a", version=2, status=met))
    assert not state.chains.is_awaited(first)


@pytest.mark.parametrize("change", [{"managedBy": "x.io/y"}, {"after": [{"job": "c"}]}])
def test_nobody_else_awaits_it(state: ClusterCache, change: dict[str, object]) -> None:
    state.on_job(None, job("a", status=SUCCEEDED))
    state.on_job(None, job_view("b", uid="b", **{"after": [{"job": "a"}], **change}))
    first = state.jobs.get("team/a")
    assert first is not None
    assert not state.chains.is_awaited(first)


def test_the_end_of_a_job_wakes_those_that_wait_for_it(state: ClusterCache) -> None:
    woken: list[str] = []
    handlers = EventHandlers(
        state, enqueue=woken.append, enqueue_soon=woken.append, wake_scheduler=lambda: None
    )

    def see(view: TrainingJobView, change: Change, before: TrainingJobView | None = None) -> None:
        woken.clear()
        handlers._on_job(Event(change=change, view=view, previous=before))

    first = job("a")
    see(first, Change.ADDED)
    see(job("b", "a"), Change.ADDED)
    assert woken == ["team/b"]
    see(job("a", version=2, status=SUCCEEDED), Change.MODIFIED, first)
    assert woken == ["team/a", "team/b"]
    state.on_job(job("b", "a"), None)
    see(first, Change.DELETED)
    assert woken == ["team/a"]
