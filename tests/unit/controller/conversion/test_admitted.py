"""Admitted jobs as the scheduler sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.controller.jobs.conversion import gang_of, job_of
from drumline.controller.nodes.pod_conversion import facts_of
from drumline.controller.workloads.admitted import (
    admitted_of,
    gpu_seconds_at_risk,
    holds_assignment,
    positions_of,
)
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.model.timestamps import timestamp
from drumline_contract import Progress
from drumline_scheduler.model import Admitted
from tests.builders import with_spec
from tests.unit.controller.views import job_view, pod_view

NOW = 1_800_000_000.0


def held(**status: Any) -> Job:
    """A gang of two with two GPUs each, running for 100 seconds."""
    places = {"gpuPool": "h100", "prefix": "node-", "nodes": ["0", "1"], "generation": 1}
    since = timestamp(NOW - 100)
    whole = {"generation": 1, "assignment": places, "admittedAt": since, "startedAt": since}
    return job_of(job_view(status={**whole, **status}))


def seen(job: Job, *pods: PodFacts) -> Admitted:
    gang = gang_of(job, priority=0)
    (admitted,) = admitted_of(
        job, gang=gang, positions=positions_of(job), pods=pods, progress=None, now=NOW
    )
    return admitted


def member(index: int, generation: int = 1) -> PodFacts:
    """A pod on the node with the letter of its index."""
    facts = facts_of(pod_view(index=index, generation=generation, node_name="abcd"[index]))
    assert facts is not None
    return facts


def test_a_survivor_of_an_older_generation_counts_and_a_stray_does_not() -> None:
    renewed = [{"generation": 2, "indices": [1]}]
    places = {"gpuPool": "h100", "nodes": ["a", "b"], "generation": 1, "replaced": renewed}
    job = held(generation=2, assignment=places)
    assert seen(job, member(0), member(1)).reserved == {1}
    assert seen(job, member(0), member(1, 2)).reserved == frozenset()


def test_a_lost_place_is_neither_reserved_nor_held() -> None:
    places = {"gpuPool": "h100", "nodes": ["a", "b", "c"], "generation": 1}
    lost = {**places, "absent": [1], "lost": [2]}  # indices 0, 2 and 3 are members
    job = job_of(
        job_view(
            nodes=4,
            minNodes=1,
            gpusPerNode=1,
            checkpoint={"claimName": "c"},
            trainer={"globalBatchSize": 12},
            status={"generation": 1, "assignment": lost},
        )
    )
    admitted = seen(job, member(0))
    assert (admitted.lost, admitted.reserved, admitted.size) == ({1}, {2}, 3)
    places = positions_of(job)
    there = [replace(member(index), node=node) for index, node in enumerate("abbc")]
    assert [places.has_member(pod) for pod in there] == [True, False, False, True]
    assert not places.has_member(member(0, 2))
    assert not places.has_member(replace(member(0), node="elsewhere"))


def test_only_a_job_that_goes_on_has_places_kept_for_it() -> None:
    kept = {"gpuPool": "spare", "nodes": ["a", "b"]}
    moves = held(
        nominated=kept,
        disruption={
            "id": "1", "kind": "Preemption", "by": "x", "reason": "", "deadline": timestamp(NOW),
            "requestedAt": timestamp(NOW),
        },
    )  # fmt: skip
    admitted = seen(moves)
    assert (admitted.nominated, admitted.nominated_pool) == ({0: "a", 1: "b"}, "spare")
    for over in (replace(moves, deleting=True), with_spec(moves, suspend=True)):
        admitted = seen(over)
        assert (admitted.leaving, admitted.nominated, admitted.nominated_pool) == (True, {}, "")


@pytest.mark.parametrize(
    ("fields", "leaves"),
    [
        ({}, False),
        ({"suspend": True}, True),
        ({"disruption": "Preemption"}, True),
        ({"disruption": "Drain"}, False),
    ],
)
def test_jobs_that_are_leaving(fields: dict[str, Any], leaves: bool) -> None:
    status: dict[str, Any] = {}
    if kind := fields.get("disruption"):
        at = timestamp(NOW)
        status["disruption"] = {
            "id": "n",
            "kind": kind,
            "by": "x",
            "requestedAt": at,
            "deadline": at,
        }
    job = held(**status)
    if fields.get("suspend"):
        job = job_of(job_view(suspend=True, status=job.status.model_dump(by_alias=True)))
    assert seen(job).leaving is leaves


def test_work_at_risk_is_what_was_done_since_the_last_checkpoint() -> None:
    job = held(checkpoint={"step": 10, "digest": "d"})
    tokens_a_step = 16 * 128
    progress = Progress(step=30, checkpoint_step=25, tokens_per_second=tokens_a_step / 2.0)
    assert gpu_seconds_at_risk(job, progress, now=NOW) == pytest.approx(5 * 2.0 * 4)


def test_work_at_risk_is_never_more_than_the_time_it_ran() -> None:
    progress = Progress(step=1000, tokens_per_second=1.0)
    assert gpu_seconds_at_risk(held(), progress, now=NOW) == 400.0


def test_work_of_unknown_pace_is_at_risk_as_a_whole() -> None:
    assert gpu_seconds_at_risk(held(), None, now=NOW) == 400.0
    assert gpu_seconds_at_risk(held(), Progress(step=3), now=NOW) == 400.0


def test_positions_of_a_size_that_the_job_may_no_more_have_do_not_count() -> None:
    job = held()
    assert holds_assignment(job)
    places = {"gpuPool": "h100", "nodes": ["a"], "generation": 1}
    assert not holds_assignment(held(assignment=places))
    assert not holds_assignment(held(finishedAt=timestamp(NOW)))
    assert not holds_assignment(job_of(job_view()))


def elastic(**status: Any) -> Job:
    """Three pods, indices 0, 2 and 3, of an elastic gang."""
    places = {"gpuPool": "h100", "nodes": ["a", "b", "c"], "generation": 1, "absent": [1]}
    return job_of(
        job_view(
            nodes=4,
            minNodes=1,
            gpusPerNode=1,
            checkpoint={"claimName": "c"},
            trainer={"globalBatchSize": 12},
            status={"generation": 1, "assignment": {**places, **status.pop("assignment", {})}}
            | status,
        )
    )


def preemption(**rest: Any) -> dict[str, Any]:
    since = timestamp(NOW)
    return {
        "id": "n",
        "kind": "Preemption",
        "by": "team/b",
        "requestedAt": since,
        "deadline": since,
        **rest,
    }


def test_a_gang_that_gives_some_members_up_stays_and_is_smaller_soon() -> None:
    admitted = seen(elastic(disruption=preemption(indices=[2, 3])))
    assert (admitted.leaving, admitted.giving_up) == (False, {1, 2})
    node = seen(elastic(disruption={**preemption(indices=[2, 3]), "kind": "Drain"}))
    assert (node.leaving, node.giving_up) == (False, frozenset())


def test_a_gang_that_moves_leaves_and_its_new_places_are_kept() -> None:
    new = {"gpuPool": "a100", "prefix": "new-", "nodes": ["1", "2"]}
    admitted = seen(held(nominated=new, disruption=preemption()))
    assert (admitted.leaving, admitted.giving_up) == (True, frozenset())
    assert (admitted.nominated, admitted.nominated_pool) == ({0: "new-1", 1: "new-2"}, "a100")


def test_of_a_broken_gang_only_the_new_places_are_kept() -> None:
    kept = {"gpuPool": "h100", "nodes": ["a", "x", "c"]}
    admitted = seen(elastic(assignment={"lost": [2, 3]}, nominated=kept))
    assert (admitted.lost, admitted.nominated, admitted.nominated_pool) == ({1, 2}, {1: "x"}, "")


@pytest.mark.parametrize(
    ("fields", "displaced"),
    [
        ({"movable": True}, {1}),
        ({"movable": True, "deadline": timestamp(NOW)}, {1}),
        ({}, set()),  # it has not saved yet
        ({"movable": True, "phase": "Recovering"}, set()),
    ],
)
def test_members_that_may_move_are_displaced_while_the_gang_runs(
    fields: dict[str, Any], displaced: set[int]
) -> None:
    phase = fields.get("phase", "Running")
    disruption = {
        "id": "n",
        "kind": "Drain",
        "by": "x",
        "requestedAt": timestamp(NOW),
        "indices": [1],
        **{name: value for name, value in fields.items() if name != "phase"},
    }
    admitted = seen(held(phase=phase, disruption=disruption))
    assert (admitted.displaced, admitted.leaving, admitted.lost) == (displaced, False, frozenset())
    assert admitted.must_move is ("deadline" in fields)  # a cordon has none


def test_work_on_parts_is_at_risk_as_what_they_are_of_a_gpu() -> None:
    account = {"until": timestamp(NOW), "parts": 1, "partsPerGpu": 4}
    assert gpu_seconds_at_risk(held(gpuSeconds=account), None, now=NOW) == 100.0
