"""Asks autoscalers for the nodes that waiting gangs need, and stops asking.

What is asked for is decided by `scheduling.node_needs` and `scheduling.node_demands`; here it is
made of placeholder pods. All of a demand are created at once, and deleted with one request: an
autoscaler then sees the whole gang or nothing of it. They are the only memory: a new leader takes
over those that it finds, and sweeps those of no demand.

A job's message says what the autoscaler last said of one of its placeholders. When it is expected
to start is by how long the last nodes of the pool took, since this process leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from drumline.api.base import LABEL_NODE_DEMAND
from drumline.controller.cache.cluster import ClusterCache
from drumline.controller.conversion.autoscaling import (
    demand_name,
    demands_in,
    offers_of,
    placeholders_of,
    unschedulable,
)
from drumline.kube import codec, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.errors import AlreadyExists, KubeError, NotFound, NotLeader
from drumline.kube.events import events_about
from drumline.kube.kinds import GPU_POOLS, PODS
from drumline.kube.views import EventView, PodView
from drumline.scheduling.decisions import Decisions
from drumline.scheduling.forecast import ExpectedStart
from drumline.scheduling.model import Gang, Snapshot
from drumline.scheduling.node_demands import DemandEnd, NodeDemand, NodeDemands, demands_after
from drumline.scheduling.node_times import NodeTimes
from drumline.telemetry import logs
from drumline.telemetry.metrics import AutoscalingMetrics

log = logs.get("drumline.controller.scheduler.node_requests")

LOOK_SECONDS: Final = 10.0
"""While something is asked for: what autoscalers say is read so often, and the pods compared."""
RETRY_SECONDS: Final = 1.0
BINDING_SECONDS: Final = 0.5
"""While the pods of a gang that starts are created, they are counted so often."""
MAX_SAID_CHARS: Final = 200
_ASKED: Final = LABEL_NODE_DEMAND


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceholderSettings:
    """Where placeholders are, and the image that they name and nobody pulls."""

    namespace: str
    image: str


class NodeRequests:
    """Keeps the placeholders of the demands that the scheduler has.

    Args:
        client: fenced writes to the API server.
        state: the caches.
        settings: of the placeholders.
        metrics: counts the demands that are over.
        clock: seconds since the epoch.
        wake_scheduler: has the scheduler decide.
    """

    def __init__(
        self,
        *,
        client: KubeClient,
        state: ClusterCache,
        settings: PlaceholderSettings,
        metrics: AutoscalingMetrics,
        clock: Callable[[], float],
        wake_scheduler: Callable[[], None],
    ) -> None:
        self._client = client
        self._state = state
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._wake_scheduler = wake_scheduler
        self._wake = asyncio.Event()
        self._demands: NodeDemands | None = None
        """None: what an earlier leader asked for was not read yet."""
        self._gangs: dict[str, Gang] = {}
        """By uid: for whom is asked."""
        self._said: dict[str, str] = {}
        """By uid of the gang: what the autoscaler last said."""
        self._marked: set[str] = set()
        """Names of the placeholders that this leader has marked as unschedulable."""
        self._times = NodeTimes()

    def offered(self, snapshot: Snapshot, *, now: float) -> Snapshot:
        """The snapshot with the nodes that can be had by asking, and what was asked for."""
        offers = offers_of(self._state.pools.by_name)
        for offer in offers:  # from 0 on: an increase needs the sample before
            for end in DemandEnd:
                self._metrics.node_requests.labels(offer.pool, str(end))
        if self._demands is None or not offers:
            return snapshot
        return replace(
            snapshot, offers=self._demands.within(offers, now=now), asked=self._demands.asked
        )

    def take(self, decisions: Decisions, *, waiting: Iterable[Gang], now: float) -> None:
        """Take in what a cycle has decided about the gangs that wait, broken ones among them."""
        before = self._demands
        if before is None or not (before.open or before.backoffs or decisions.needs_nodes):
            return
        needed = {need.uid for need in decisions.needs_nodes}
        self._gangs.update((gang.uid, gang) for gang in waiting if gang.uid in needed)
        after = demands_after(
            before,
            needs=decisions.needs_nodes,
            started={placed.uid for placed in decisions.placed},
            bound={each.uid for each in before.open if self._is_bound(each)},
            timeouts=self._timeouts(),
            now=now,
        )
        for demand, end in after.ended:
            if demand.started_at is not None:
                took = demand.started_at - demand.asked_at
                self._times = self._times.with_time(demand.pool, took)
            self._metrics.node_requests.labels(demand.pool, str(end)).inc()
            log.info(
                "nodes_no_longer_asked",
                job=demand.key,
                pool=demand.pool,
                zone=demand.zone,
                nodes=demand.nodes,
                why=str(end),
                after_seconds=round(now - demand.asked_at, 1),
            )
            if end is not DemandEnd.STARTED:
                self._wake_scheduler()  # it may be asked for elsewhere
        if after.demands != before:
            self._demands = after.demands
            self._wake.set()

    def said(self, uid: str) -> str:
        """What the autoscaler last said of the nodes that this job waits for; '' for nothing."""
        return self._said.get(uid, "")

    def expected(self, uid: str) -> ExpectedStart | None:
        """When the nodes that this job waits for will probably be there, as far as is known."""
        asked = self._demands.open if self._demands is not None else ()
        for demand in asked:
            if demand.uid == uid and demand.started_at is None:
                start = self._times.start(demand.pool, asked_at=demand.asked_at, now=self._clock())
                if start is not None:
                    p50_at, p90_at = start
                    return ExpectedStart(key=demand.key, uid=uid, p50_at=p50_at, p90_at=p90_at)
        return None

    async def run(self) -> None:
        """Keep the placeholders as they should be; never returns.

        Raises:
            NotLeader: this process may not write any more.
        """
        pause: float | None = 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._settle()
                pause = self._pause()
            except NotLeader:
                raise
            except (KubeError, codec.Undecodable) as error:
                log.warning("placeholders_not_kept", error=str(error))
                pause = RETRY_SECONDS

    async def _settle(self) -> None:
        """Make the placeholders those of the demands."""
        there = await self._read()
        if self._demands is None:
            self._demands = NodeDemands(open=demands_in(there))
            self._wake_scheduler()
        wanted = {demand_name(each): each for each in self._demands.open}
        present = {pod.name for pod in there}
        stale = {pod.labels[_ASKED] for pod in there if pod.name.rpartition("-")[0] not in wanted}
        for uid in sorted(stale):
            await self._delete(uid, [pod for pod in there if pod.labels[_ASKED] == uid], wanted)
        for name, demand in wanted.items():
            names = [f"{name}-{index}" for index in range(len(demand.shares))]
            missing = [index for index, each in enumerate(names) if each not in present]
            if demand.started_at is None:
                if missing:
                    await self._create(demand, missing)
                await self._mark(demand, names)
        self._marked &= {
            f"{name}-{i}" for name, each in wanted.items() for i in range(len(each.shares))
        }
        await self._listen(there)

    async def _read(self) -> list[PodView]:
        raw = await reads.list_all(
            self._client, PODS, namespace=self._settings.namespace, label_selector=_ASKED
        )
        return [codec.pod(each) for each in raw]

    async def _create(self, demand: NodeDemand, missing: Collection[int]) -> None:
        gang, spec = self._gangs.get(demand.uid), self._state.pools.get(demand.pool)
        if gang is None or spec is None:
            return  # of an earlier leader: what is there stays, and its end is decided as any other
        owner = codec.identity(await reads.get(self._client, GPU_POOLS, name=demand.pool))
        pods = placeholders_of(
            demand,
            gang=gang,
            spec=spec,
            pool_uid=owner.uid,
            namespace=self._settings.namespace,
            image=self._settings.image,
        )
        log.info(
            "nodes_asked",
            job=demand.key,
            pool=demand.pool,
            zone=demand.zone,
            nodes=demand.nodes,
            placeholders=len(pods),
        )
        chosen = [pods[index] for index in missing]
        outcomes = await writes.create_many(
            self._client, PODS, bodies=chosen, namespace=self._settings.namespace
        )
        for outcome in outcomes:
            if isinstance(outcome, KubeError) and not isinstance(outcome, AlreadyExists):
                raise outcome

    async def _mark(self, demand: NodeDemand, names: Iterable[str]) -> None:
        """Have autoscalers see these placeholders; a crashed leader may have failed to."""
        body = unschedulable(demand, now=self._clock())

        async def mark(name: str) -> None:
            with suppress(NotFound):
                await writes.merge_patch(
                    self._client,
                    PODS,
                    name=name,
                    body=body,
                    namespace=self._settings.namespace,
                    subresource="status",
                )
                self._marked.add(name)

        await asyncio.gather(*(mark(name) for name in names if name not in self._marked))

    async def _delete(self, uid: str, pods: Iterable[PodView], wanted: Collection[str]) -> None:
        """With one request, unless others of the same gang are wanted."""
        stale = [pod for pod in pods if pod.name.rpartition("-")[0] not in wanted]
        self._said.pop(uid, None)
        if not any(each.uid == uid for each in (self._demands or NodeDemands()).open):
            await writes.delete_collection(
                self._client,
                PODS,
                namespace=self._settings.namespace,
                label_selector=f"{_ASKED}={uid}",
                grace_seconds=0,
            )
            self._gangs.pop(uid, None)
            return
        for pod in stale:
            with suppress(NotFound):
                await writes.delete(
                    self._client,
                    PODS,
                    name=pod.name,
                    uid=pod.uid,
                    namespace=pod.namespace,
                    grace_seconds=0,
                )

    async def _listen(self, there: Iterable[PodView]) -> None:
        """Read what was said of a placeholder of each demand; the newest counts."""
        heard = False
        examples = {pod.labels[_ASKED]: pod for pod in there}
        for demand in self._demands.open if self._demands else ():
            pod = examples.get(demand.uid)
            if pod is None:
                continue
            events = await events_about(self._client, namespace=pod.namespace, uid=pod.uid)
            text = _newest(events)
            heard = heard or text != self._said.get(demand.uid, "")
            self._said[demand.uid] = text
        if heard:
            self._wake_scheduler()

    def _pause(self) -> float | None:
        """How long there is nothing to do; the scheduler is woken when time changes something."""
        demands = self._demands or NodeDemands()
        if any(each.started_at is not None for each in demands.open):
            if any(self._is_bound(each) for each in demands.open if each.started_at is not None):
                self._wake_scheduler()
            return BINDING_SECONDS
        change = demands.next_change(self._timeouts(), now=self._clock())
        left = None if change is None else change - self._clock()
        if left is not None and left <= 0:
            self._wake_scheduler()
            return RETRY_SECONDS
        if demands.open:
            return LOOK_SECONDS if left is None else min(left, LOOK_SECONDS)
        return left

    def _timeouts(self) -> dict[str, float]:
        return {
            name: float(spec.autoscaling.timeout_seconds)
            for name, spec in self._state.pools.by_name.items()
            if spec.autoscaling is not None
        }

    def _is_bound(self, demand: NodeDemand) -> bool:
        """Whether the gang has a pod for each placeholder."""
        namespace = demand.key.partition("/")[0]
        return len(self._state.pods.of(namespace, demand.uid)) >= len(demand.shares)


def _newest(events: Iterable[EventView]) -> str:
    newest = max(events, key=lambda event: event.time, default=None)
    if newest is None:
        return ""
    text = f"{newest.reason}: {newest.message}" if newest.message else newest.reason
    return text if len(text) <= MAX_SAID_CHARS else text[: MAX_SAID_CHARS - 1] + "…"
