"""The caches of every process of the operator, leading or standby.

Informers fill them and only read, so a standby process has the same caches as the leader. It takes
over with them, instead of listing the whole cluster. They may be older than the last writes of the
previous leader. `catch_up`, called after the Lease was won, returns when the caches contain
everything that was written until then. Nothing may be decided before
(docs/decisions/0027-warm-standby.md).
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
"""Interval on a standby process. A leader tidies in each cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Callbacks by which a leader follows the caches.

    Attributes:
        enqueue: wakes the reconciler for a job's key.
        enqueue_soon: wakes it after a moment.
        wake_scheduler: called when capacity, quota or the waiting jobs may have changed.
        progress: returns the progress that a job's agents reported last, by the job's uid.
    """

    enqueue: Callable[[str], None]
    enqueue_soon: Callable[[str], None]
    wake_scheduler: Callable[[], None]
    progress: Callable[[str], Progress | None]


class WarmCaches:
    """The informers and the values derived from them. For one event loop.

    Args:
        client: client for the API server. It only reads.
        settings: settings of the Deployment.
        metrics: metrics of this process.
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
        """True if every cache has held a whole list."""
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
        """Start the informers in `group`. Return when every cache holds a whole list."""
        # Phase 1: the kinds that are served now. Optional kinds are looked for first.
        self.informers = await self.informers.with_taint_rules(self._client, metrics=self._metrics)
        if self._admits_workloads:
            self.informers = await self.informers.with_workloads(
                self._client, metrics=self._metrics, scope=self.scope, kinds=self._workload_kinds
            )
        # Phase 2: subscribe before the first event.
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
        # Phase 3: wait for all lists and for the verdicts on their jobs.
        await self.informers.wait_synced()
        await self._judge.wait_idle()  # else the first cycle would pass jobs over
        self.filled = True
        sizes: Counter[str] = Counter()
        for each in self.informers.all():
            sizes[each.resource.plural] += len(each.values())
        log.info("synced", **sizes)

    async def catch_up(self) -> None:
        """Wait until the caches contain all that was written before this call."""
        await self.informers.catch_up()
        await self._judge.wait_idle()

    def highest_epoch(self) -> int:
        """Return the highest epoch that any job was written under, or 0."""
        return max((job.status.epoch or 0 for job in self.state.jobs.all()), default=0)

    def lead(self, listener: Listener) -> None:
        """Send every later change to this listener."""
        self._listener = listener
        # Changes before this call had no listener, so decide at once.
        listener.wake_scheduler()

    def _settle(self, job: Job, verdict: Schedulable | Refusal) -> None:
        """Wake reconciler and scheduler for a job that has its verdict."""
        if self.state.jobs.settle(job, verdict):
            self.state.scheduling.prepare(job.key)
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
