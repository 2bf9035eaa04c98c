"""The informers: one cache of the API server's objects for each kind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeVar

from drumline.kube import codec
from drumline.kube.client import KubeClient
from drumline.kube.informer import Informer, Quarantined
from drumline.kube.kinds import (
    GPU_POOLS,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    TRAINING_JOBS,
    TRAINING_QUEUES,
)
from drumline.kube.reads import LARGE_OBJECTS_PAGE
from drumline.kube.views import NodeView, ObjectView, PodView, PriorityClassView, TrainingJobView
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics

log = logs.get("drumline.controller.cache.informers")
V = TypeVar("V")


@dataclass(frozen=True, slots=True, kw_only=True)
class Informers:
    """One cache a kind."""

    jobs: Informer[TrainingJobView]
    queues: Informer[ObjectView]
    pools: Informer[ObjectView]
    pods: Informer[PodView]
    nodes: Informer[NodeView]
    priority_classes: Informer[PriorityClassView]

    @classmethod
    def of(cls, client: KubeClient, *, metrics: Metrics) -> Informers:
        """Caches that have not started yet; undecodable objects are counted and left out."""

        def quarantine(document: Quarantined) -> None:
            metrics.controller.poisoned_objects.labels(resource=document.resource.plural).inc()
            log.warning(
                "object_left_out",
                resource=document.resource.plural,
                key="/".join(document.key) if document.key else None,
                why=document.reason,
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
            jobs=informer(TRAINING_JOBS, codec.training_job, page_limit=LARGE_OBJECTS_PAGE),
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

    async def catch_up(self) -> None:
        """Return when all that was written before this call is part of every cache."""
        await asyncio.gather(*(informer.catch_up() for informer in self.all()))

    def stale(self, now: float, *, metrics: Metrics) -> str | None:
        """The name of a kind not heard of for too long (monotonic `now`), else None."""
        stale: str | None = None
        for informer in self.all():
            metrics.controller.informer_freshness_seconds.labels(
                resource=informer.resource.plural
            ).set(informer.freshness_seconds(now))
            stale = informer.silence(now) or stale
        return stale
