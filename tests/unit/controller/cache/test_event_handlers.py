"""What wakes the scheduler: capacity that it decides about, and no more than that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.state.event_handlers import EventHandlers
from drumline.kube.store import Change, Event
from drumline.kube.views import PodPhase, PodView, TrainingJobView
from drumline_api.base import LABEL_JOB
from tests.unit.controller.views import foreign_pod, job_view, node_view, pool_view

NOW = 1_800_000_000.0


class Desk:
    """Handlers, and how often they woke the scheduler."""

    def __init__(self) -> None:
        self.wakes = 0
        self.enqueued: list[str] = []
        self.state = ClusterCache(nodes=NodeCache(clock=lambda: NOW))
        self.state.on_pool(None, pool_view())
        self.state.nodes.on_node(None, node_view("pooled"))
        self.state.nodes.on_node(None, node_view("plain", labels={"role": "web"}))
        self.state.scheduling.snapshot(now=NOW)
        self.handlers = EventHandlers(
            self.state,
            enqueue=print,
            enqueue_soon=self.enqueued.append,
            wake_scheduler=self.wake,
            covers=lambda namespace: namespace != "elsewhere",
        )

    def wake(self) -> None:
        self.wakes += 1

    def see(self, new: PodView, old: PodView | None = None) -> int:
        """Wakes by this event."""
        before = self.wakes
        change = Change.ADDED if old is None else Change.MODIFIED
        self.handlers._on_pod(Event(change=change, view=new, previous=old))
        return self.wakes - before

    def lose(self, pod: PodView) -> int:
        before = self.wakes
        self.handlers._on_pod(Event(change=Change.DELETED, view=pod, previous=pod))
        return self.wakes - before

    def see_job(self, new: TrainingJobView, old: TrainingJobView | None = None) -> int:
        """Wakes by this event."""
        before = self.wakes
        change = Change.ADDED if old is None else Change.MODIFIED
        self.handlers._on_job(Event(change=change, view=new, previous=old))
        return self.wakes - before


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize(("node", "wakes"), [("pooled", 1), ("plain", 0), ("", 0)])
def test_a_foreign_pod_counts_on_nodes_of_a_pool_alone(desk: Desk, node: str, wakes: int) -> None:
    pod = foreign_pod("theirs", node=node)
    ended = foreign_pod("theirs", node=node, phase=PodPhase.SUCCEEDED)
    assert (desk.see(pod), desk.see(ended, pod), desk.lose(ended)) == (wakes, wakes, wakes)


def test_a_pod_that_is_bound_to_a_node_of_a_pool_counts_then(desk: Desk) -> None:
    waits = foreign_pod("theirs", node="")
    assert desk.see(waits) == 0
    assert desk.see(foreign_pod("theirs", node="pooled"), waits) == 1


def test_a_job_s_pod_of_another_installation_is_a_foreign_pod(desk: Desk) -> None:
    labels = {LABEL_JOB: "theirs"}
    ours = msgspec.structs.replace(foreign_pod("a", node=""), labels=labels)
    theirs = msgspec.structs.replace(ours, namespace="elsewhere")
    wakes: list[int] = []
    for waits in (ours, theirs):
        desk.see(waits)
        wakes.append(desk.see(msgspec.structs.replace(waits, node_name="pooled"), waits))
    assert wakes == [0, 1]
    assert desk.enqueued == [f"{ours.namespace}/theirs"] * 2


@pytest.mark.parametrize("change", ["labels", "pool"])
def test_a_node_that_joins_a_pool_counts_from_then_on(desk: Desk, change: str) -> None:
    pod = foreign_pod("theirs", node="plain")
    if change == "labels":
        old: Any = node_view("plain", labels={"role": "web"})
        desk.state.nodes.on_node(old, node_view("plain", version=2))
    else:
        desk.state.on_pool(None, pool_view("web", role="web"))
    assert desk.see(pod) == 1


def status(*lost: int) -> dict[str, Any]:
    """Of a job with two places, of which it has lost some."""
    places = {"generation": 1, "gpuPool": "h100", "nodes": ["a", "b"], "prefix": "", "lost": lost}
    return {"phase": "Recovering", "assignment": places}


def test_a_status_that_comes_by_the_watch_alone_wakes_the_scheduler(desk: Desk) -> None:
    """A write that was carried out and answered by a conflict, or another leader's."""
    before, after = job_view(status=status()), job_view(version=2, status=status(0))
    assert desk.see_job(before) == 1
    assert desk.see_job(after, before) == 1
    assert desk.see_job(job_view(version=3, status=status(0)), after) == 0


def test_a_status_that_its_writer_has_made_known_wakes_nobody_again(desk: Desk) -> None:
    before, after = job_view(status=status()), job_view(version=2, status=status(0))
    desk.see_job(before)
    job = desk.state.jobs.get("team/llama")
    assert job is not None
    assert job.status.assignment is not None
    lost = job.status.assignment.model_copy(update={"lost": [0]})
    known = job.status.model_copy(update={"assignment": lost})
    desk.state.jobs.assume(replace(job, resource_version="2", status=known))
    assert desk.see_job(after, before) == 0
