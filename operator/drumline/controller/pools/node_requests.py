"""Ask autoscalers for the nodes that waiting gangs need, and withdraw the demands.

`node_needs` and `node_demands` of `scheduler.autoscaling` decide. `DemandObjects` make the demands
visible, by the mode of the GpuPool. The objects contain the demands: a new leader takes over those
that it finds, and deletes objects without a demand. The GpuPool's status has the experience with
its autoscaler (`pools.node_supply`).

A job's message contains the autoscaler's last message about its demand. The expected start of the
job is computed from the time that the last nodes of the pool took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from drumline.controller.informers.specs import SpecCache
from drumline.controller.nodes.pods import JobPods
from drumline.controller.pools.autoscaling import demand_name, offers_of, timeouts_of
from drumline.controller.pools.demand_objects import DemandInput, DemandObjects, bounded_answer
from drumline.controller.pools.karpenter_reports import KarpenterReports
from drumline.controller.pools.keeping_pods import KeepingPods
from drumline.controller.pools.node_supply import NodeSupply, supply_fields, supply_of
from drumline.kube import codec
from drumline.kube.errors import KubeError, NotLeader
from drumline.telemetry import logs
from drumline.telemetry.metrics import AutoscalingMetrics
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.autoscaling.kept_nodes import KeptNode, kept_nodes
from drumline_scheduler.autoscaling.node_demands import (
    DemandEnd,
    NodeDemand,
    NodeDemands,
    demands_after,
)
from drumline_scheduler.decisions import Decisions
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.forecast.node_times import node_starts
from drumline_scheduler.model import Gang, Snapshot

log = logs.get("drumline.controller.pools.node_requests")

LOOK_SECONDS: Final = 10.0
"""Time between two reads of the autoscalers' messages while there are demands."""
RETRY_SECONDS: Final = 1.0
BINDING_SECONDS: Final = 0.5
"""Time between two counts of the pods of a starting gang."""


class NodeRequests:
    """Keeps the scheduler's demands visible to autoscalers.

    Args:
        pools: specs of the GpuPools.
        pods: the pods of each job.
        modes: objects that make demands visible, by the mode of a GpuPool.
        keeping: keeps free nodes that gangs were promised from being removed.
        karpenter: Karpenter's objects, which explain why nodes do not come. None if they are not
            read.
        metrics: counts ended demands.
        clock: seconds since the epoch.
        wake_scheduler: wakes the scheduler.
        limited: returns the CSI drivers that can attach a limited number of volumes to some node.
    """

    def __init__(
        self,
        *,
        pools: SpecCache[GpuPoolSpec],
        pods: JobPods,
        modes: Mapping[str, DemandObjects],
        keeping: KeepingPods,
        karpenter: KarpenterReports | None = None,
        metrics: AutoscalingMetrics,
        clock: Callable[[], float],
        wake_scheduler: Callable[[], None],
        limited: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self._pools = pools
        self._pods = pods
        self._modes = modes
        self._keeping = keeping
        self._karpenter = karpenter
        self._metrics = metrics
        self._clock = clock
        self._wake_scheduler = wake_scheduler
        self._limited = limited
        self._wake = asyncio.Event()
        self._demands: NodeDemands | None = None
        """None if the demands of an earlier leader were not read yet."""
        self._gangs: dict[str, Gang] = {}
        """Gangs with a demand, by uid."""
        self._messages: dict[str, str] = {}
        """Autoscaler's last message, by uid of the gang."""
        self._refused: set[str] = set()
        """Names of demands for which the autoscaler adds no nodes."""
        self._kept: tuple[KeptNode, ...] | None = None
        """None until a cycle has decided."""
        self._known = NodeSupply()
        """Experience with the pools. Its backoffs are those of the previous leader."""

    def restore(self, statuses: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from the statuses of the pools, by name. Call it before `run`."""
        self._known = supply_of(statuses)

    def status_fields(self, pool: str) -> dict[str, Any]:
        """Return the fields of a pool's status about its autoscaler."""
        known = self._known
        if self._demands is not None:
            known = replace(known, backoffs=self._demands.backoffs)
        return supply_fields(pool, self._pools.get(pool), known)

    def offered(self, snapshot: Snapshot, *, now: float) -> Snapshot:
        """Return the snapshot with the nodes that autoscalers can add, and with the demands."""
        offers = offers_of(self._pools.by_name, limited=self._limited())
        for offer in offers:  # from 0 on: an increase needs the sample before
            for end in DemandEnd:
                self._metrics.node_requests.labels(offer.pool, str(end))
        if self._demands is None or not offers:
            return snapshot
        return self._demands.shown_to(snapshot, offers=offers, now=now)

    async def take(
        self,
        decisions: Decisions,
        *,
        held_back: Collection[str] = (),
        snapshot: Snapshot,
        pending: Sequence[Gang],
        now: float,
    ) -> None:
        """Process a cycle's decisions about the waiting gangs, including broken and noticed ones.

        The demand of a gang that would start but is held back stays while it is held back.

        All demands of starting gangs are withdrawn when this returns, so before their first pod is
        bound. Beside these pods an autoscaler would see placeholders that fit nowhere.

        Args:
            decisions: result of the cycle.
            held_back: keys of gangs whose start is delayed.
            snapshot: the cluster of the cycle.
            pending: the waiting gangs of the cycle.
            now: Unix time in seconds.

        Raises:
            NotLeader: this process may not write any more.
        """
        # Phase 1: free nodes that gangs were promised.
        starting = {placed.uid for placed in decisions.placed}
        await self._keep(decisions, snapshot=snapshot, pending=pending, starting=starting, now=now)
        # Phase 2: nothing to do without demands, pauses or needs, as in most cycles.
        before = self._demands
        if before is None or not (before.open or before.backoffs or decisions.needs_nodes):
            return
        # Phase 3: the next demands.
        needed = {need.uid for need in decisions.needs_nodes}
        waiting = (*pending, *(held.gang for held in snapshot.admitted if held.vacant))
        self._gangs.update((gang.uid, gang) for gang in waiting if gang.uid in needed)
        after = demands_after(
            before,
            needs=decisions.needs_nodes,
            started=starting,
            held_back=held_back,
            refused={each.uid for each in before.open if demand_name(each) in self._refused},
            running={held.gang.uid for held in snapshot.admitted},
            messages=self._messages,
            bound={each.uid for each in before.open if self._is_bound(each)},
            timeouts=timeouts_of(self._pools.by_name),
            now=now,
        )
        # Phase 4: publish them. `run` creates and deletes the objects.
        for demand, end in after.ended:
            self._note_end(demand, end, now=now)
        if after.demands != before:
            self._demands = after.demands
            self._wake.set()
        # Phase 5: withdraw at once what starts now. The caller binds pods after this.
        for demand in (*after.demands.open, *(demand for demand, _ in after.ended)):
            if demand.started_at == now:
                await self._withdraw(demand)

    def _note_end(self, demand: NodeDemand, end: DemandEnd, *, now: float) -> None:
        if demand.started_at is not None:
            took = demand.started_at - demand.asked_at
            times = self._known.times.with_time(demand.pool, took)
            self._known = replace(self._known, times=times)
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

    async def _keep(
        self,
        decisions: Decisions,
        *,
        snapshot: Snapshot,
        pending: Sequence[Gang],
        starting: Collection[str],
        now: float,
    ) -> None:
        """Keep the free nodes that gangs were promised, except those of starting gangs."""
        kept = kept_nodes(
            snapshot=snapshot,
            pending=pending,
            decisions=decisions,
            timeouts=timeouts_of(self._pools.by_name),
            now=now,
        )
        if kept != self._kept:
            self._kept = kept
            self._wake.set()
        try:
            await self._keeping.release(starting)
        except NotLeader:
            raise
        except KubeError as error:  # as of placeholders
            log.warning("free_nodes_not_kept", error=str(error))

    async def _withdraw(self, demand: NodeDemand) -> None:
        objects = self._modes.get(self._mode(demand))
        try:
            if objects is not None:
                await objects.withdraw(demand)
        except NotLeader:
            raise
        except KubeError as error:  # a start is worth more; they are deleted with the next look
            log.warning("node_demands_not_kept", error=str(error))

    def last_message(self, uid: str) -> str:
        """Return the autoscaler's last message about the nodes that this job waits for, or ''."""
        return self._messages.get(uid, "")

    def expected(self, uid: str) -> ExpectedStart | None:
        """Return the expected start of a job that waits for nodes, or None."""
        asked = self._demands.open if self._demands is not None else ()
        mine = [demand for demand in asked if demand.uid == uid]
        return node_starts(mine, times=self._known.times, now=self._clock()).get(uid)

    async def run(self) -> None:
        """Keep the objects in line with the demands. Never returns.

        Raises:
            NotLeader: this process may not write any more.
        """
        pause: float | None = 0.0
        # Wait for a new decision, or until the passing time may change something.
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
                log.warning("node_demands_not_kept", error=str(error))
                pause = RETRY_SECONDS

    async def _settle(self) -> None:
        """Create, delete and read the objects, until they match the demands."""
        # Phase 1: read. The first read of a leader takes over its predecessor's demands.
        recorded = [demand for objects in self._modes.values() for demand in await objects.read()]
        if self._demands is None:
            self._demands = NodeDemands(open=tuple(recorded), backoffs=self._known.backoffs)
            self._wake_scheduler()
        # Phase 2: delete objects without a demand. A demand that has started is withdrawn already.
        demands = [each for each in self._demands.open if each.started_at is None]
        for mode, objects in self._modes.items():
            await objects.keep_only([each for each in demands if self._mode(each) in (mode, "")])
        # Phase 3: create what is missing.
        there = {demand_name(each) for each in recorded}
        failed: KubeError | None = None
        for demand in demands:
            try:
                await self._ask(demand, is_new=demand_name(demand) not in there)
            except NotLeader:
                raise
            except KubeError as error:  # the others are asked for
                failed = error
        if self._kept is not None:
            await self._keeping.settle(self._kept, pools=self._pools.by_name)
        # Phase 4: read the autoscalers' messages.
        await self._read_messages(demands)
        # Phase 5: forget gangs and messages without a demand.
        asked = {each.uid for each in self._demands.open}
        self._gangs = {uid: gang for uid, gang in self._gangs.items() if uid in asked}
        self._messages = {uid: text for uid, text in self._messages.items() if uid in asked}
        if failed is not None:
            raise failed

    async def _ask(self, demand: NodeDemand, *, is_new: bool) -> None:
        spec, objects = self._pools.get(demand.pool), self._modes.get(self._mode(demand))
        if spec is None or objects is None:
            return
        gang = self._gangs.get(demand.uid)
        if is_new and gang is not None:
            log.info(
                "nodes_asked",
                job=demand.key,
                pool=demand.pool,
                zone=demand.zone,
                nodes=demand.nodes,
                placeholders=len(demand.shares),
            )
        await objects.ask(DemandInput(demand=demand, spec=spec, gang=gang))

    async def _read_messages(self, demands: Sequence[NodeDemand]) -> None:
        """Read the autoscalers' messages about each demand.

        Karpenter's explanation for missing nodes wins over other messages.
        """
        before, is_new = self._refused, False
        self._refused = set()
        if self._karpenter is not None and demands:
            await self._karpenter.look()
        for demand in demands:
            objects, text = self._modes.get(self._mode(demand)), ""
            spec = self._pools.get(demand.pool)
            if self._karpenter is not None and spec is not None:
                text = bounded_answer(self._karpenter.answer(spec))
            if objects is None and spec is not None:
                mode = self._mode(demand)
                text = f"nothing: mode {mode} is not allowed (chart: rbac.autoscalingModes)"
            elif not text and objects is not None:
                text = await objects.answer(demand)
            if objects is not None and objects.is_refused(demand):
                self._refused.add(demand_name(demand))
            # A job's message contains the text, so the scheduler must write it again.
            is_new = is_new or text != self._messages.get(demand.uid, "")
            self._messages[demand.uid] = text
        if is_new or self._refused - before:
            self._wake_scheduler()

    def _mode(self, demand: NodeDemand) -> str:
        """Return the mode of a demand's pool, or '' if unknown.

        The objects of an unknown mode stay until a cycle ends the demand.
        """
        spec = self._pools.get(demand.pool)
        return "" if spec is None or spec.autoscaling is None else spec.autoscaling.mode

    def _pause(self) -> float | None:
        """Return the seconds until the next action, or None without any.

        It wakes the scheduler when the passing time changes a decision.
        """
        # A gang is starting: count its pods until all of them exist.
        demands = self._demands or NodeDemands()
        if any(each.started_at is not None for each in demands.open):
            if any(self._is_bound(each) for each in demands.open if each.started_at is not None):
                self._wake_scheduler()
            return BINDING_SECONDS
        # A demand times out, or a pause ends: the scheduler decides about it.
        change = demands.next_change(timeouts_of(self._pools.by_name), now=self._clock())
        left = None if change is None else change - self._clock()
        if left is not None and left <= 0:
            self._wake_scheduler()
            return RETRY_SECONDS
        if demands.open:
            return LOOK_SECONDS if left is None else min(left, LOOK_SECONDS)
        return left

    def _is_bound(self, demand: NodeDemand) -> bool:
        """Return whether the gang has a pod for each placeholder."""
        namespace = demand.key.partition("/")[0]
        return len(self._pods.of(namespace, demand.uid)) >= len(demand.shares)
