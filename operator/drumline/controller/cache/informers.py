"""The six caches, and where their events go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from drumline.api.base import LABEL_JOB
from drumline.controller.cache.cluster import ClusterCache
from drumline.kube import codec
from drumline.kube.client import KubeClient
from drumline.kube.informer import Informer, Quarantined
from drumline.kube.resources import (
    GPU_POOLS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    TRAINING_JOBS,
    TRAINING_QUEUES,
)
from drumline.kube.store import Change, Event
from drumline.kube.views import NodeView, ObjectView, PodView, PriorityClassView
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics

log = logs.get("drumline.controller.cache.informers")
V = TypeVar("V")
STALE_SECONDS = 180.0
"""Bookmarks come every minute and a silent stream is opened anew after 70 s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Informers:
    """One cache a kind."""

    jobs: Informer[ObjectView]
    queues: Informer[ObjectView]
    pools: Informer[ObjectView]
    pods: Informer[PodView]
    nodes: Informer[NodeView]
    priority_classes: Informer[PriorityClassView]

    @classmethod
    def of(cls, client: KubeClient, *, metrics: Metrics) -> Informers:
        """Caches that have not started yet; undecodable objects are counted and left out."""

        def quarantine(found: Quarantined) -> None:
            metrics.controller.poisoned_objects.labels(resource=found.resource.plural).inc()
            log.warning(
                "object_left_out",
                resource=found.resource.plural,
                key="/".join(found.key) if found.key else None,
                why=found.reason,
            )

        def informer(resource: Any, decode: Any, *, page_limit: int = 500) -> Informer[Any]:
            return Informer(
                client,
                resource,
                decode=decode,
                on_quarantine=quarantine,
                page_limit=page_limit,
            )

        return cls(
            # a tenant may make a job as large as etcd allows
            jobs=informer(TRAINING_JOBS, codec.custom_object, page_limit=50),
            queues=informer(TRAINING_QUEUES, codec.custom_object),
            pools=informer(GPU_POOLS, codec.custom_object),
            pods=informer(PODS, codec.pod),
            nodes=informer(NODES, codec.node),
            priority_classes=informer(PRIORITY_CLASSES, codec.priority_class),
        )

    def all(self) -> tuple[Informer[Any], ...]:
        """All six."""
        return (
            self.jobs,
            self.queues,
            self.pools,
            self.pods,
            self.nodes,
            self.priority_classes,
        )

    async def wait_synced(self) -> None:
        """Return once every cache has taken in a whole list."""
        await asyncio.gather(*(informer.wait_synced() for informer in self.all()))

    def stale(self, now: float, *, metrics: Metrics) -> str | None:
        """The name of a kind not heard of for too long (monotonic `now`), else None."""
        stale: str | None = None
        for informer in self.all():
            age = informer.freshness_seconds(now)
            metrics.controller.informer_freshness_seconds.labels(
                resource=informer.resource.plural
            ).set(age)
            if age > STALE_SECONDS:
                stale = f"the watch of {informer.resource.plural} is silent for {age:.0f} s"
        return stale


def connect(
    informers: Informers,
    state: ClusterCache,
    *,
    enqueue: Callable[[str], None],
    enqueue_soon: Callable[[str], None],
    wake_scheduler: Callable[[], None],
) -> None:
    """Have every event update the state, wake the job it is about, and the scheduler.

    Args:
        informers: whose events.
        state: what they update.
        enqueue: wakes the reconciler for a job's key.
        enqueue_soon: the same, after a moment: the pods of a gang change in bursts.
        wake_scheduler: called when capacity, quota or the waiting jobs may have changed.
    """

    def unreadable(event: Event[ObjectView], problem: str | None) -> bool:
        if problem is not None:
            log.warning("object_unreadable", key="/".join(event.key).lstrip("/"), why=problem)
        return problem is not None

    def on_job(event: Event[ObjectView]) -> None:
        old, new = _sides(event)
        if unreadable(event, state.on_job(old, new)):
            return
        if _scheduling_changed(event):
            wake_scheduler()
        enqueue("/".join(event.key))

    def on_pod(event: Event[PodView]) -> None:
        old, new = _sides(event)
        state.on_pod(old, new)
        job = event.view.labels.get(LABEL_JOB)
        if job is not None:
            enqueue_soon(f"{event.view.namespace}/{job}")
        if _room_changed(old, new, foreign=job is None):
            wake_scheduler()

    def on_node(event: Event[NodeView]) -> None:
        change = state.nodes.on_node(*_sides(event))
        if change.offer:
            wake_scheduler()
        for key in change.jobs:
            enqueue_soon(key)

    def on_pool(event: Event[ObjectView]) -> None:
        if event.previous is None or event.change is Change.DELETED or _spec_changed(event):
            unreadable(event, state.on_pool(*_sides(event)))
            wake_scheduler()

    def on_queue(event: Event[ObjectView]) -> None:
        if event.previous is None or event.change is Change.DELETED or _spec_changed(event):
            unreadable(event, state.on_queue(*_sides(event)))
            wake_scheduler()

    def on_priority_class(event: Event[PriorityClassView]) -> None:
        state.on_priority_class(*_sides(event))
        wake_scheduler()

    informers.jobs.subscribe(on_job)
    informers.pods.subscribe(on_pod)
    informers.nodes.subscribe(on_node)
    informers.pools.subscribe(on_pool)
    informers.queues.subscribe(on_queue)
    informers.priority_classes.subscribe(on_priority_class)


def _sides(event: Event[Any]) -> tuple[Any, Any]:
    """(before, after); None after a deletion."""
    if event.change is Change.DELETED:
        return event.view, None
    return event.previous, event.view


def _room_changed(old: PodView | None, new: PodView | None, *, foreign: bool) -> bool:
    """Whether a pod gave room back, or somebody else's took some."""
    if new is None or old is None:
        return new is None or foreign
    if new.finished != old.finished:
        return True
    return foreign and (new.node_name, new.requests) != (old.node_name, old.requests)


def _spec_changed(event: Event[ObjectView]) -> bool:
    return event.previous is None or event.previous.generation != event.view.generation


def _scheduling_changed(event: Event[ObjectView]) -> bool:
    """Our own status writes wake the scheduler themselves; here only users' changes count."""
    return event.change is not Change.MODIFIED or _spec_changed(event)
