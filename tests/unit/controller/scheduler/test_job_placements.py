"""Decisions about a job's gang and about its surplus become one status of the job."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.controller.scheduler.evictions import given_up_indices
from drumline.controller.scheduler.job_placements import replacement, with_changes
from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import base_size, members_of
from drumline_api.conditions import Phase, Reason
from drumline_scheduler.decisions import Decisions, Placed, Resized, Victim, VictimReason
from drumline_scheduler.decisions_by_job import placements, resize
from tests.builders import EPOCH, T0, a_job, running, with_status

ELASTIC: dict[str, Any] = {
    "nodes": 4,
    "minNodes": 1,
    "spot": "Surplus",
    "trainer": {"globalBatchSize": 8},
    "checkpoint": {"claimName": "saves"},
}
WAITING = a_job(**ELASTIC)
SURPLUS = f"{WAITING.uid}/surplus"


def mixed(*surplus: str) -> Job:
    status = transitions.admitted(
        WAITING,
        pool="h100",
        nodes=("node-a", "node-b"),
        surplus_pool="spot" if surplus else None,
        surplus=surplus,
        epoch=EPOCH,
        image="trainer:1",
        priority=0,
        now=T0,
    )
    return running(with_status(WAITING, status))


def placed(uid: str, *nodes: str, pool: str, replaced: tuple[int, ...] = ()) -> Placed:
    return Placed(key=WAITING.key, uid=uid, pool=pool, assignment=nodes, replaced=replaced)


def after(job: Job, *given: Placed | Resized) -> Job:
    """The job once what was decided is written."""
    (answer,) = placements(
        Decisions(
            placed=tuple(each for each in given if isinstance(each, Placed)),
            resized=tuple(each for each in given if isinstance(each, Resized)),
        )
    )
    return with_changes(
        job,
        moved=replacement(answer, job),
        size=resize(answer, smallest=base_size(job.status)),
        epoch=EPOCH,
        now=T0 + 60,
    )


def places(job: Job) -> list[tuple[int, str, int, str | None]]:
    return [
        (each.index, each.node, each.pod_generation, each.surplus_pool)
        for each in members_of(job.status)
    ]


def test_surplus_that_starts_joins_the_members_that_train() -> None:
    job = after(mixed(), placed(SURPLUS, "s0", "s1", pool="spot"))
    assert places(job)[2:] == [(2, "s0", 2, "spot"), (3, "s1", 2, "spot")]
    assert job.status.assignment is not None
    assert job.status.assignment.joining == [2, 3]
    assert job.status.phase is Phase.RUNNING


def test_surplus_grows_and_shrinks_and_its_gang_stays() -> None:
    shrunk = after(
        mixed("s0", "s1"),
        Resized(key=WAITING.key, uid=SURPLUS, pool="spot", kept=(1,), added=()),
    )
    assert places(shrunk) == [
        (0, "node-a", 1, None),
        (1, "node-b", 1, None),
        (3, "s1", 1, "spot"),
    ]
    grown = after(
        shrunk, Resized(key=WAITING.key, uid=SURPLUS, pool="spot", kept=(0,), added=("s2",))
    )
    assert places(grown)[2:] == [(2, "s2", 3, "spot"), (3, "s1", 1, "spot")]
    gone = after(grown, Resized(key=WAITING.key, uid=SURPLUS, pool="spot", kept=(), added=()))
    assert places(gone) == [(0, "node-a", 1, None), (1, "node-b", 1, None)]
    assert gone.status.assignment is not None
    assert gone.status.assignment.surplus is None


def broken(*lost: int) -> Job:
    job = mixed("s0", "s1")
    status = transitions.members_lost(
        job, indices=lost, reason=Reason.POD_LOST, message="gone", now=T0 + 1
    )
    return with_status(job, status)


def test_lost_members_of_both_are_replaced_in_one_generation() -> None:
    job = after(
        broken(0, 3),
        placed(WAITING.uid, "node-c", "node-b", pool="h100", replaced=(0,)),
        placed(SURPLUS, "s0", "s2", pool="spot", replaced=(1,)),
    )
    assert places(job) == [
        (0, "node-c", 2, None),
        (1, "node-b", 1, None),
        (2, "s0", 1, "spot"),
        (3, "s2", 2, "spot"),
    ]
    assert job.status.assignment is not None
    assert job.status.assignment.lost is None


def test_what_its_surplus_lost_is_given_up_as_its_gang_is_repaired() -> None:
    job = after(
        broken(0, 3),
        placed(WAITING.uid, "node-c", "node-b", pool="h100", replaced=(0,)),
        Resized(key=WAITING.key, uid=SURPLUS, pool="spot", kept=(0,), added=()),
    )
    assert [(index, node) for index, node, *_ in places(job)] == [
        (0, "node-c"),
        (1, "node-b"),
        (2, "s0"),
    ]


def test_a_repair_of_one_leaves_what_the_other_lost_lost() -> None:
    repaired = placed(WAITING.uid, "node-c", "node-b", pool="h100", replaced=(0,))
    job = after(broken(0, 3), repaired)
    assert job.status.assignment is not None
    assert job.status.assignment.lost == [3]


def test_surplus_without_a_gang_that_has_places_is_not_taken() -> None:
    assert after(WAITING, placed(SURPLUS, "s0", pool="spot")) is WAITING


@pytest.mark.parametrize(
    ("uid", "kept", "indices"),
    [
        (WAITING.uid, (), None),
        (SURPLUS, (), [2, 3]),
        (SURPLUS, (1,), [2]),
    ],
)
def test_a_victim_gives_up_what_it_is(
    uid: str, kept: tuple[int, ...], indices: list[int] | None
) -> None:
    victim = Victim(
        key=WAITING.key,
        uid=uid,
        gpus=4,
        gpu_seconds_lost=0.0,
        why=VictimReason.LOWER_PRIORITY,
        kept=kept,
    )
    assert given_up_indices(victim, mixed("s0", "s1")) == indices
