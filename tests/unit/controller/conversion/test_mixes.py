"""A job with its surplus on spot nodes, as two gangs of the scheduler."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.controller.jobs.conversion import gang_of, job_of
from drumline.controller.workloads.admitted import admitted_of, positions_of
from drumline.controller.workloads.held import account_of, held_by_lost_writes
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import indices_by_pool, nodes_by_pool
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.conditions import DisruptionKind
from drumline_scheduler.model import Admitted, SpotRule
from tests.unit.controller.views import job_view

NOW = 1_800_000_000.0
ELASTIC = {
    "nodes": 4,
    "minNodes": 1,
    "trainer": {"globalBatchSize": 24},
    "checkpoint": {"claimName": "saves"},
}
PLACES = {
    "gpuPool": "h100",
    "prefix": "node-",
    "nodes": ["0", "1", "2"],
    "absent": [1],
    "surplus": {"gpuPool": "spot", "indices": [2, 3]},
}


def job(*, places: dict[str, Any] | None = None, status: Any = None, **spec: Any) -> Job:
    """Of any size from 1 to 4."""
    known = {**(status or {})}
    if places is not None:
        since = timestamp(NOW - 100)
        known |= {"generation": 1, "assignment": places, "admittedAt": since, "startedAt": since}
    return job_of(job_view(status=known, **{**ELASTIC, **spec}))


def parts(one_job: Job, *, queue_spot: str | None = None) -> tuple[Admitted, ...]:
    gang = gang_of(one_job, priority=0, queue_spot=queue_spot)
    return admitted_of(
        one_job,
        gang=gang,
        positions=positions_of(one_job),
        pods=(),
        progress=None,
        now=NOW,
    )


@pytest.mark.parametrize(("of_job", "of_queue"), [("Surplus", None), (None, "Surplus")])
def test_a_waiting_job_is_a_gang_of_its_smallest_size_with_a_surplus_gang(
    of_job: str | None, of_queue: str | None
) -> None:
    gang = gang_of(job(spot=of_job), priority=0, queue_spot=of_queue)
    assert (gang.nodes, gang.sizes) == (1, ())
    assert gang.price_rule.spot == (SpotRule.SURPLUS if of_job else None)
    assert gang.surplus is not None
    assert (gang.surplus.uid, gang.surplus.surplus_of) == ("job-1/surplus", "job-1")
    assert (gang.surplus.nodes, gang.surplus.sizes) == (3, (1, 2, 3))


@pytest.mark.parametrize(
    "spec",
    [
        {"minNodes": None},
        {"gpuPool": "h100"},
        {"topology": {"required": "rack"}},
    ],
    ids=["one size", "one pool", "one domain"],
)
def test_a_job_that_cannot_span_two_pools_has_no_surplus_though_its_queue_says_so(
    spec: dict[str, Any],
) -> None:
    gang = gang_of(job(**spec), priority=0, queue_spot="Surplus")
    assert (gang.nodes, gang.surplus) == (4, None)


def test_what_runs_goes_on_as_it_started() -> None:
    one_pool = {"gpuPool": "h100", "nodes": ["a", "b"]}
    larger = gang_of(job(places=one_pool), priority=0, queue_spot="Surplus")
    assert (larger.sizes, larger.surplus) == ((1, 2, 3, 4), None)
    smallest = {"gpuPool": "h100", "nodes": ["a"]}
    assert gang_of(job(places=smallest), priority=0, queue_spot="Surplus").surplus is not None
    mixed = gang_of(job(places=PLACES), priority=0, queue_spot=None)
    assert mixed.surplus is not None, "its surplus is still held, whatever its queue says"


def test_places_are_those_of_two_gangs_each_in_its_pool() -> None:
    places = {**PLACES, "lost": [3], "nodes": ["0", "1", "2"]}
    base, surplus = parts(job(places=places, spot="Surplus"))
    assert (base.pool, base.assignment, base.reserved, base.lost) == (
        "h100",
        ("node-0",),
        {0},
        frozenset(),
    )
    assert (surplus.pool, surplus.assignment, surplus.reserved, surplus.lost) == (
        "spot",
        ("node-1", "node-2"),
        {0},
        {1},
    )
    assert (base.gpu_seconds_at_risk, surplus.gpu_seconds_at_risk) == (100.0 * 6, 0.0)
    assert base.admitted_at == surplus.admitted_at


def disrupted(indices: list[int] | None) -> dict[str, Any]:
    asked = {
        "id": "1",
        "kind": DisruptionKind.PREEMPTION,
        "by": "team/urgent",
        "byUid": "u",
        "requestedAt": timestamp(NOW),
        "reason": "",
    }
    return {"disruption": asked if indices is None else {**asked, "indices": indices}}


@pytest.mark.parametrize(
    ("indices", "leaves", "giving_up"),
    [
        (None, (True, True), frozenset[int]()),
        ([2, 3], (False, True), frozenset[int]()),
        ([3], (False, False), frozenset({1})),
    ],
    ids=["the job leaves", "its surplus leaves", "a part of it does"],
)
def test_surplus_that_is_asked_to_go_leaves_its_gang_where_it_is(
    indices: list[int] | None, leaves: tuple[bool, bool], giving_up: frozenset[int]
) -> None:
    base, surplus = parts(job(places=PLACES, status=disrupted(indices), spot="Surplus"))
    assert (base.leaving, surplus.leaving) == leaves
    assert (base.giving_up, surplus.giving_up) == (frozenset(), giving_up)


def test_members_go_by_the_pools_of_their_nodes() -> None:
    status = job(places=PLACES, spot="Surplus").status
    assert nodes_by_pool(status) == {"h100": ["node-0"], "spot": ["node-1", "node-2"]}
    assert indices_by_pool(status, [0, 2, 3]) == {"h100": [0], "spot": [2, 3]}


def test_a_write_without_an_answer_may_hold_places_in_both_pools() -> None:
    one_job = job(places=PLACES, spot="Surplus")
    waiting = gang_of(job(spot="Surplus"), priority=0)
    held = held_by_lost_writes(
        account_of(one_job), per_pod=waiting.per_pod, places=(), statuses=[one_job.status]
    )
    assert [(each.pool, each.assignment) for each in held] == [
        ("h100", ("node-0",)),
        ("spot", ("node-1", "node-2")),
    ]
