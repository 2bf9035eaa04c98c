"""Jobs with one checkpoint folder: one has it, the others wait and are told for whom."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.views import TrainingJobView
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.verdict import Refusal
from drumline.lifecycle.plan import checkpoint_folders
from drumline.lifecycle.plan.checkpoint_folders import FolderTurn
from drumline_api.conditions import Reason
from drumline_scheduler import PredecessorState
from tests.unit.controller.views import assignment, job_view

BEGAN = {"generation": 1, "phase": "Running"}
ENDED = {"generation": 1, "phase": "Succeeded", "finishedAt": "2023-11-14T23:13:20Z"}
CLAIM = {"claimName": "checkpoints", "path": "shared"}


@pytest.fixture
def state() -> ClusterCache:
    return ClusterCache(nodes=NodeCache(clock=lambda: 0.0))


def job(name: str, checkpoint: dict[str, str] = CLAIM, **rest: Any) -> TrainingJobView:
    return job_view(name, uid=name, checkpoint=checkpoint, **rest)


def waits_for(state: ClusterCache, name: str) -> list[str]:
    gang = next(each for each in state.scheduling.pending() if each.uid == name)
    assert all(each.state is PredecessorState.HOLDS_FOLDER for each in gang.after)
    return [each.key for each in gang.after]


def test_the_second_job_waits_until_the_first_one_has_ended(state: ClusterCache) -> None:
    first = job("first", status=BEGAN)
    state.on_job(None, first)
    state.on_job(None, job("second"))
    assert waits_for(state, "second") == ["team/first"]
    state.on_job(first, ended := job("first", version=2, status=ENDED))
    assert waits_for(state, "second") == []
    state.on_job(ended, None)
    assert waits_for(state, "second") == []


def test_a_suspended_job_that_trained_keeps_its_folder(state: ClusterCache) -> None:
    state.on_job(None, job("first", suspend=True, status=BEGAN))
    state.on_job(None, job("second"))
    assert waits_for(state, "second") == ["team/first"]


@pytest.mark.parametrize("has_places", [True, False])
def test_a_deleted_job_that_a_finalizer_holds_keeps_its_folder_while_it_has_places(
    state: ClusterCache, *, has_places: bool
) -> None:
    status = {**assignment("node-0"), "phase": "Running"} if has_places else BEGAN
    first = job("first", status=status)
    state.on_job(None, first)
    state.on_job(None, job("second"))
    deleted = replace(first, resource_version="2", deletion_time="2026-11-30T00:00:00Z")
    state.on_job(first, deleted)
    assert waits_for(state, "second") == (["team/first"] if has_places else [])


def test_of_two_that_never_ran_the_older_one_has_it(state: ClusterCache) -> None:
    state.on_job(None, job("b"))
    state.on_job(None, job("a"))
    assert (waits_for(state, "a"), waits_for(state, "b")) == ([], ["team/a"])
    state.on_job(job("a"), job("a", version=2, suspend=True))
    assert waits_for(state, "b") == [], "a suspended job that never ran holds nothing"


@pytest.mark.parametrize(
    "other",
    [
        {"claimName": "checkpoints", "path": "other"},
        {"claimName": "checkpoints"},
        {"claimName": "else", "path": "shared"},
        {"bucket": "s3://saves", "path": "shared"},
    ],
)
def test_other_folders_are_not_in_the_way(state: ClusterCache, other: dict[str, str]) -> None:
    state.on_job(None, job("first", status=BEGAN))
    state.on_job(None, job("second", other))
    assert waits_for(state, "second") == []


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (CLAIM, {**CLAIM, "path": "shared/"}),
        (CLAIM, {**CLAIM, "path": "./shared"}),
        ({"claimName": "checkpoints"}, {**CLAIM, "path": "first-first"}),
        ({"bucket": "s3://saves/runs", "path": "a"}, {"bucket": "s3://saves", "path": "runs/a"}),
    ],
)
def test_a_folder_has_several_spellings(
    state: ClusterCache, mine: dict[str, str], theirs: dict[str, str]
) -> None:
    state.on_job(None, job("first", mine, status=BEGAN))
    state.on_job(None, job("second", theirs))
    assert waits_for(state, "second") == ["team/first"]


def test_a_job_that_waits_for_another_one_holds_nothing(state: ClusterCache) -> None:
    state.on_job(None, job("a", after=[{"job": "b"}]))
    state.on_job(None, job("b"))
    assert waits_for(state, "b") == []
    gang = next(each for each in state.scheduling.pending() if each.uid == "a")
    assert [each.state for each in gang.after] == [PredecessorState.WAITED_FOR]


def test_a_job_waits_for_no_folder_of_another_namespace(state: ClusterCache) -> None:
    """Whoever may create jobs there could otherwise keep it waiting for ever."""
    bucket = {"bucket": "s3://saves", "path": "llama"}
    state.on_job(None, replace(job("first", bucket, suspend=True, status=BEGAN), namespace="mean"))
    state.on_job(None, job("second", bucket))
    assert waits_for(state, "second") == []


def test_a_job_that_is_refused_later_holds_nothing(state: ClusterCache) -> None:
    state.on_job(None, job("a"))
    state.on_job(None, job("b"))
    assert waits_for(state, "b") == ["team/a"]
    first = state.jobs.get("team/a")
    assert first is not None
    state.jobs.settle(first, Refusal(reason=Reason.CONFIG_REFUSED, message="too large"))
    assert waits_for(state, "b") == []


def test_many_jobs_with_one_folder_cost_a_cycle_little(
    state: ClusterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs are counted, as time would mislead."""
    for number in range(200):
        state.on_job(None, job(f"j-{number:03}"))
    asked, holder = 0, checkpoint_folders.turn_of

    def count(of: Job) -> FolderTurn | None:
        nonlocal asked
        asked += 1
        return holder(of)

    monkeypatch.setattr(checkpoint_folders, "turn_of", count)
    waiting = state.scheduling.pending()
    assert [gang.uid for gang in waiting if not gang.after] == ["j-000"]
    assert asked <= 200
    for number in range(199):
        state.on_job(job(f"j-{number:03}"), job(f"j-{number:03}", version=2, suspend=True))
    assert [gang.uid for gang in state.scheduling.pending() if not gang.after] == ["j-199"]
