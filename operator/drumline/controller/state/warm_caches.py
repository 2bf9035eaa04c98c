"""The caches of every process of the operator, whether it leads or stands by.

They are filled by informers, which only read, so a process that stands by has them as its leader
has: it takes over with what it has seen, and not with lists of the whole cluster. What it has seen
may be older than the last writes of the leader before it: `catch_up`, called after the Lease was
won, returns when everything that was written until then is part of the caches. Nothing may be
decided before (docs/decisions/0027-warm-standby.md).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from drumline.controller.informers.informers import Informers
from drumline.controller.jobs.conversion import platform_tolerations
from drumline.controller.jobs.judge import Judge
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.state.event_handlers import EventHandlers
from drumline.kube.client import KubeClient
from drumline.lifecycle.model.hardware import PoolHardware
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.verdict import Refusal, Schedulable
from drumline.scope import InstallationScope
from drumline.settings import Settings
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics
from drumline_contract import Progress

log = logs.get("drumline.controller.state.warm_caches")

TIDY_SECONDS = 60.0
"""A leader tidies in each cycle; nobody decides meanwhile on a process that stands by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """What a leader hears of the caches.

    Attributes:
        enqueue: wakes the reconciler for a job's key.
        enqueue_soon: the same, after a moment.
        wake_scheduler: capacity, quota or the waiting jobs may have changed.
        progress: the progress that a job's agents reported last, by the job's uid.
    """

    enqueue: Callable[[str], None]
    enqueue_soon: Callable[[str], None]
    wake_scheduler: Callable[[], None]
    progress: Callable[[str], Progress | None]


class WarmCaches:
    """The informers and what is derived from them. For one event loop.

    Args:
        client: reads the API server.
        settings: what the Deployment says.
        metrics: of this process.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        settings: Settings,
        metrics: Metrics,
        wall: Callable[[], float],
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._admits_workloads = settings.admit_workloads
        self._workload_kinds = settings.workload_kinds
        self.scope = InstallationScope.of(settings)
        self.informers = Informers.of(
            client,
            metrics=metrics,
            scope=self.scope,
            devices=settings.dynamic_resources,
        )
        self.filled = False
        """Whether every cache has held a whole list."""
        self._judge = Judge(settle=self._settle, hardware=self._hardware_of)
        self._listener: Listener | None = None
        self.state = ClusterCache(
            nodes=NodeCache(clock=wall, overdue_seconds=settings.scheduling.overdue_seconds),
            progress=self._progress,
            platform_tolerations=platform_tolerations(settings.trainer_pod.get("tolerations", [])),
            scope=self.scope,
            admits_workloads=settings.admit_workloads,
            guarded_pools=frozenset(settings.guarded_pools),
            judge_later=self._judge.add,
        )

    async def fill(self, group: asyncio.TaskGroup) -> None:
        """Start the informers in `group`; returns when every cache holds a whole list."""
        self.informers = await self.informers.with_taint_rules(self._client, metrics=self._metrics)
        if self._admits_workloads:
            self.informers = await self.informers.with_workloads(
                self._client, metrics=self._metrics, scope=self.scope, kinds=self._workload_kinds
            )
        EventHandlers(
            self.state,
            enqueue=self._enqueue,
            enqueue_soon=self._enqueue_soon,
            wake_scheduler=self._wake_scheduler,
            covers=self.scope.covers,
        ).subscribe_to(self.informers)
        for informer in self.informers.all():
            group.create_task(informer.run())
        group.create_task(self._judge.run())
        group.create_task(self._tidy())
        await self.informers.wait_synced()
        await self._judge.wait_idle()  # else the first cycle would pass jobs over
        self.filled = True
        sizes: Counter[str] = Counter()
        for each in self.informers.all():
            sizes[each.resource.plural] += len(each.values())
        log.info("synced", **sizes)

    async def catch_up(self) -> None:
        """Return when all that was written before this call is part of the caches."""
        await self.informers.catch_up()
        await self._judge.wait_idle()

    def highest_epoch(self) -> int:
        """The highest epoch that any job was written under; 0 without such a job."""
        return max((job.status.epoch or 0 for job in self.state.jobs.all()), default=0)

    def lead(self, listener: Listener) -> None:
        """From now on this hears every change."""
        self._listener = listener
        listener.wake_scheduler()

    def _settle(self, job: Job, verdict: Schedulable | Refusal) -> None:
        """The job can be scheduled now, or is to say why it cannot."""
        if self.state.jobs.settle(job, verdict):
            self._enqueue(job.key)
            self._wake_scheduler()

    def _hardware_of(self, job: Job) -> PoolHardware | None:
        return self.state.hardware_of(job)

    def _enqueue(self, key: str) -> None:
        if self._listener is not None:
            self._listener.enqueue(key)
        else:
            self.state.jobs.take_deleted(key)  # nobody else asks for them

    def _enqueue_soon(self, key: str) -> None:
        if self._listener is not None:
            self._listener.enqueue_soon(key)

    def _wake_scheduler(self) -> None:
        if self._listener is not None:
            self._listener.wake_scheduler()

    def _progress(self, uid: str) -> Progress | None:
        return self._listener.progress(uid) if self._listener is not None else None

    async def _tidy(self) -> None:
        while self._listener is None:
            await asyncio.sleep(TIDY_SECONDS)
            self.state.scheduling.tidy()
