"""Nodes: what they offer, what is announced about them, and whom a change concerns."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.api.conditions import DisruptionKind
from drumline.api.gpupool import GpuPoolSpec
from drumline.controller.cache.nodes import NodeCache, NodeChange
from drumline.kube.views import ConditionView, NodeView, TaintView
from drumline.lifecycle.model.observed import NodeDisruption
from drumline.scheduling.model import Node
from tests.unit.controller.views import foreign_pod, node_view, pod_view

SPOT = "aws-node-termination-handler/spot-itn"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
POOLS = {"h100": GpuPoolSpec.model_validate({"nodeSelector": {"gpu": "h100"}})}
JOB = frozenset({"team/llama"})


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> NodeCache:
    """One node with a member of team/llama and somebody else's pod."""
    book = NodeCache(clock=clock)
    book.on_node(None, node_view())
    book.on_pod(None, pod_view())
    book.on_pod(None, foreign_pod("theirs"))
    return book


def update(book: NodeCache, **fields: Any) -> NodeChange:
    return book.on_node(node_view(), node_view(version=2, **fields))


def marked(key: str) -> dict[str, Any]:
    return {"taints": (TaintView(key=key, effect="NoSchedule"),)}


def only(book: NodeCache) -> Node:
    (node,) = book.offers(POOLS, leaves=lambda _: False)
    return node


def test_a_heartbeat_concerns_nobody(book: NodeCache) -> None:
    assert update(book, addresses={"InternalIP": "10.0.0.1"}) == NodeChange()


def test_a_node_that_announces_its_end_concerns_its_jobs_and_closes(
    book: NodeCache, clock: Clock
) -> None:
    assert update(book, **marked(SPOT)) == NodeChange(offer=True, jobs=JOB)
    assert book.threats(["node-0", "elsewhere"]) == (
        NodeDisruption(
            node="node-0",
            kind=DisruptionKind.SPOT_RECLAIM,
            source=SPOT,
            deadline=clock.now + 120,
        ),
    )
    assert only(book).closed == f"SpotReclaim ({SPOT})"


def test_an_end_that_is_likely_closes_and_one_that_is_possible_does_nothing(
    book: NodeCache,
) -> None:
    likely = update(book, **marked("aws-node-termination-handler/rebalance-recommendation"))
    assert (likely, book.threats(["node-0"])) == (NodeChange(offer=True), ())
    assert only(book).closed
    update(book, **marked("DeletionCandidateOfClusterAutoscaler"))
    assert (only(book).closed, len(list(book.disruptions()))) == ("", 1)


def test_a_deadline_stays_what_it_was_when_the_node_is_updated(
    book: NodeCache, clock: Clock
) -> None:
    update(book, **marked(SPOT))
    clock.now += 60
    update(book, **marked(SPOT), labels={"gpu": "h100", "new": "label"})
    (threat,) = book.threats(["node-0"])
    assert threat.deadline == clock.now + 60


def test_an_announcement_that_is_taken_back_is_forgotten(book: NodeCache) -> None:
    update(book, **marked(SPOT))
    assert update(book) == NodeChange(offer=True, jobs=JOB)
    assert (book.threats(["node-0"]), list(book.disruptions())) == ((), [])


def test_a_maintenance_comes_near_without_an_event(book: NodeCache, clock: Clock) -> None:
    at = str(int(clock.now) + 3600)
    update(book, labels={"gpu": "h100", "cloud.google.com/scheduled-maintenance-time": at})
    assert (book.look_again(), book.threats(["node-0"])) == ([], ())
    clock.now += 3000
    assert book.look_again() == [NodeChange(offer=True, jobs=JOB)]
    assert book.threats(["node-0"]) != ()
    assert book.look_again() == []


def test_a_node_is_gone_with_its_object_or_by_somebodys_word(book: NodeCache) -> None:
    assert [book.is_gone(name) for name in ("node-0", "elsewhere")] == [False, True]
    assert update(book, **marked(OUT_OF_SERVICE)).jobs == JOB
    assert book.is_gone("node-0")
    update(book)
    assert not book.is_gone("node-0")
    assert book.on_node(node_view(version=2), None).jobs == JOB
    assert book.is_gone("node-0")


def test_who_hears_a_node_concerns_its_jobs(book: NodeCache) -> None:
    quiet = ConditionView(type="Ready", status="Unknown")
    assert update(book, ready=False, conditions=(quiet,)).jobs == JOB
    assert (book.is_ready("node-0"), book.is_ready("elsewhere")) == (False, False)
    assert not book.is_gone("node-0")


def test_pods_that_are_to_go_are_counted_apart_and_still_hold_their_room(book: NodeCache) -> None:
    (node,) = book.offers(POOLS, leaves=lambda pod: pod.namespace == "team")
    assert (node.used.gpus, node.terminating.gpus) == (3, 2)
    gone = foreign_pod("theirs", terminating=True)
    book.on_pod(foreign_pod("theirs"), gone)
    assert only(book).terminating.gpus == 1


def test_a_node_of_no_pool_is_offered_to_nobody(book: NodeCache) -> None:
    other: NodeView = node_view("other", labels={"gpu": "none"})
    book.on_node(None, other)
    assert [node.name for node in book.offers(POOLS, leaves=lambda _: False)] == ["node-0"]
