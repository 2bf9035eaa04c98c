"""Nominated gangs that could start larger, and what gangs that wait are entitled to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline.scheduling import Gang, Queue, Snapshot
from tests.unit.scheduling.builders import (
    admitted,
    after,
    cluster,
    gang,
    node,
    queue,
    run,
    still_waiting,
    without,
)

COHORT = (queue("org", 1), queue("a", 2, parent="org"), queue("b", 1, parent="org"))
WIDE = (queue("org", 2), *COHORT[1:])
LARGE = gang("large", nodes=4, queue="a", sizes=(2, 4), priority=1)
RECLAIMS = gang("r", nodes=4, queue="b", sizes=(1, 4))
NOMINATED = replace(RECLAIMS, nominated=("n0",), nominated_pool="h100")


def world(*queues: Queue, gpus: int = 4) -> Snapshot:
    """A node that nobody uses, and one of another pool."""
    nodes = (node("n0", "rack-0", gpus=gpus), node("s0", "rack-0", gpus=4, pool="spot"))
    return cluster(*nodes, queues=queues or COHORT, pools=("h100", "spot"))


def sizes(snapshot: Snapshot, *pending: Gang) -> dict[str, int]:
    """Pods of the gangs that start."""
    placed = run(snapshot, *pending).placed
    return {item.key.removeprefix("training/"): len(item.assignment) for item in placed}


def test_who_reclaims_leaves_its_victim_what_that_is_entitled_to() -> None:
    full = cluster(*world().nodes, queues=COHORT, running=[admitted(LARGE, "n0", "n0", "n0", "n0")])
    first = run(full, RECLAIMS)
    assert [victim.key for victim in first.preemptions[0].victims] == [LARGE.key]
    left = [*still_waiting([RECLAIMS], first), LARGE]
    free = without(after(full, [RECLAIMS], first), "large")
    assert sizes(free, *left) == {"r": 1, "large": 2}


@pytest.mark.parametrize(("residual", "size"), [(False, 1), (True, 4)])
def test_a_victim_that_has_not_left_yet_is_entitled_too_but_not_its_last_pods(
    residual: bool, size: int
) -> None:
    leaving = admitted(gang("v", queue="a"), "n0", leaving=True, is_residual=residual)
    nodes = (node("n0", "rack-0", gpus=1), node("n1", "rack-0", gpus=4))
    assert sizes(cluster(*nodes, queues=WIDE), NOMINATED) == {"r": 4}
    assert sizes(cluster(*nodes, queues=WIDE, running=[leaving]), NOMINATED) == {"r": size}


OTHER_TREE = (*COHORT, queue("c", 2))
IN_SPOT = replace(COHORT[1], nominal={"h100": 2, "spot": 2})


@pytest.mark.parametrize(
    ("waits", "queues"),
    [
        (replace(LARGE, sizes=()), COHORT),
        (replace(LARGE, queue="b"), COHORT),
        (replace(LARGE, queue="c"), OTHER_TREE),
        (replace(LARGE, pool="spot"), (COHORT[0], IN_SPOT, COHORT[2])),
        (gang("cpu", gpus=0, queue="a"), COHORT),
        (LARGE, (COHORT[0], replace(COHORT[1], held=True), COHORT[2])),
    ],
    ids=["has to borrow", "same queue", "other tree", "other pool", "no GPUs", "held queue"],
)
def test_who_could_reclaim_nothing_of_it_does_not_count(
    waits: Gang, queues: tuple[Queue, ...]
) -> None:
    assert sizes(world(*queues), NOMINATED, waits)["r"] == 4


def test_within_its_own_quota_it_starts_as_large_as_it_can() -> None:
    queues = (*COHORT[:2], queue("b", 4, parent="org"))
    assert sizes(world(*queues), NOMINATED, LARGE)["r"] == 4


def test_a_nominated_gang_that_starts_is_not_waited_for() -> None:
    """Both are nominated: what the first one starts with is its own, and not due to it again."""
    first = gang("f", queue="a", priority=9, nominated=("n0",), nominated_pool="h100")
    assert sizes(world(*WIDE, gpus=5), first, NOMINATED) == {"f": 1, "r": 4}
