"""Which pods represent members, and which of their agents can be asked, in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline.lifecycle import transitions
from drumline.lifecycle.model.gang import observed_gang, reachable_agents
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from tests.builders import (
    EPOCH,
    T0,
    a_job,
    a_pod,
    admitted,
    ended,
    ready_pods,
    running,
    with_status,
)

SPEC = {"nodes": 3, "minNodes": 1, "trainer": {"globalBatchSize": 12}}


def a_gang() -> Job:
    return running(admitted(a_job(**SPEC), nodes=("a", "b", "c")))


def asked(job: Job, *, known: int) -> list[int]:
    return [pod.index for pod in reachable_agents(job, ready_pods(job), known=known)]


@pytest.mark.parametrize(("known", "order"), [(0, [0, 1, 2]), (1, [1, 2, 0]), (2, [0, 1, 2])])
def test_a_new_pod_is_asked_last_until_its_peers_know_it(known: int, order: list[int]) -> None:
    nodes = ["d", "b", "c"]
    status = transitions.members_replaced(
        a_gang(), nodes=nodes, replaced=[0], epoch=EPOCH, now=T0 + 1
    )
    job = with_status(a_gang(), status)
    assert asked(job, known=known) == order


@pytest.mark.parametrize(("known", "order"), [(0, [1, 2]), (2, [1, 2]), (3, [0, 1, 2])])
def test_a_joining_member_is_asked_only_when_it_has_joined(known: int, order: list[int]) -> None:
    job = with_status(
        a_gang(), transitions.resized(a_gang(), kept=[1, 2], added=(), epoch=EPOCH, now=T0)
    )
    job = running(job)
    job = with_status(
        job, transitions.resized(job, kept=[0, 1], added=["a"], epoch=EPOCH, now=T0 + 1)
    )
    assert asked(job, known=known) == order


def test_pods_that_cannot_answer_and_orphans_are_not_asked() -> None:
    job = a_gang()
    first, second, third = ready_pods(job)
    pods = [
        replace(first, end=ended(exit_code=1)),
        replace(second, ip=""),
        replace(a_pod(job, 2, generation=4), ip="10.0.0.9"),
        third,
    ]
    assert reachable_agents(job, pods, known=1) == [third]


def test_a_pod_with_a_members_name_on_another_node_is_an_orphan() -> None:
    """Whoever may create pods may take the name and the labels; Drumline chooses the node."""
    job = admitted(a_job())
    forged = a_pod(job, 0, node="node-z")
    gang = observed_gang(job, Observed(pods=(forged, a_pod(job, 1))))
    assert gang.pods.keys() == {1}
    assert gang.orphans == (forged,)
    agents = (replace(forged, ip="10.9.9.9"), a_pod(job, 1, ip="10.0.0.2"))
    assert [pod.ip for pod in reachable_agents(job, agents, known=1)] == ["10.0.0.2"]
