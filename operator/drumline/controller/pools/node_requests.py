"""Asks autoscalers for the nodes that waiting gangs need, and stops asking.

The decision is `node_needs` and `node_demands` of `scheduler.autoscaling`; what makes it
visible, by the mode of the GpuPool, are `DemandObjects`. They say what is asked for: a new leader
takes over those that it finds, and sweeps those of no demand. What was learned of a pool's
autoscaler is in the status of the GpuPool (`pools.node_supply`).

A job's message says what the autoscaler last said of its demand. When it is expected to start is by
how long the last nodes of the pool took.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from drumline.controller.informers.specs import SpecCache
from drumline.controller.nodes.pods import JobPods
from drumline.controller.pools.autoscaling import demand_name, offers_of, timeouts_of
from drumline.controller.pools.demand_objects import Asking, DemandObjects, bounded_answer
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
"""While something is asked for: what autoscalers say is read so often, and what is there."""
RETRY_SECONDS: Final = 1.0
BINDING_SECONDS: Final = 0.5
"""While the pods of a gang that starts are created, they are counted so often."""


class NodeRequests:
    """Keeps visible what the scheduler asks for.

    Args:
        pools: the spec of each GpuPool by its name.
        pods: the pods of each job.
        modes: what makes demands visible, by the mode of a GpuPool.
        keeping: keeps autoscalers from taking free nodes away that gangs were promised.
        karpenter: what its objects say of nodes that do not come; None: nobody reads them.
        metrics: counts the demands that are over.
        clock: seconds since the epoch.
        wake_scheduler: has the scheduler decide.
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
    ) -> None:
        self._pools = pools
        self._pods = pods
        self._modes = modes
        self._keeping = keeping
        self._karpenter = karpenter
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
        self._refused: set[str] = set()
        """Names of demands of which it says that no nodes come."""
        self._kept: tuple[KeptNode, ...] | None = None
        """None: no cycle has said yet."""
        self._known = NodeSupply()
        """Its backoffs are those of the leader before."""

    def restore(self, statuses: Mapping[str, Mapping[str, Any]]) -> None:
        """Go on from what the statuses of the pools say, by name; before `run`."""
        self._known = supply_of(statuses)

    def status_fields(self, pool: str) -> dict[str, Any]:
        """What the status of a pool says of its autoscaler."""
        known = self._known
        if self._demands is not None:
            known = replace(known, backoffs=self._demands.backoffs)
        return supply_fields(pool, self._pools.get(pool), known)

    def offered(self, snapshot: Snapshot, *, now: float) -> Snapshot:
        """The snapshot with the nodes that can be had by asking, and what was asked for."""
        offers = offers_of(self._pools.by_name)
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
        """Take in what a cycle has decided about the gangs that wait, broken ones among them.

        For a gang that would start and is held back it is asked on, as long as that takes.

        Nothing is asked any more for a gang that starts when this returns, so before its first pod
        is bound: beside the pods an autoscaler would see placeholders that fit nowhere.

        Raises:
            NotLeader: this process may not write any more.
        """
        starting = {placed.uid for placed in decisions.placed}
        await self._keep(decisions, snapshot=snapshot, pending=pending, starting=starting, now=now)
        before = self._demands
        if before is None or not (before.open or before.backoffs or decisions.needs_nodes):
            return
        needed = {need.uid for need in decisions.needs_nodes}
        waiting = (*pending, *(held.gang for held in snapshot.admitted if held.lost))
        self._gangs.update((gang.uid, gang) for gang in waiting if gang.uid in needed)
        after = demands_after(
            before,
            needs=decisions.needs_nodes,
            started=starting,
            held_back=held_back,
            refused={each.uid for each in before.open if demand_name(each) in self._refused},
            said=self._said,
            bound={each.uid for each in before.open if self._is_bound(each)},
            timeouts=timeouts_of(self._pools.by_name),
            now=now,
        )
        for demand, end in after.ended:
            self._note_end(demand, end, now=now)
        if after.demands != before:
            self._demands = after.demands
            self._wake.set()
        for demand in after.demands.open:
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
        """Keep the free nodes that gangs were promised; those that start have them."""
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

    def said(self, uid: str) -> str:
        """What the autoscaler last said of the nodes that this job waits for; '' for nothing."""
        return self._said.get(uid, "")

    def expected(self, uid: str) -> ExpectedStart | None:
        """When the nodes that this job waits for will probably be there, as far as is known."""
        asked = self._demands.open if self._demands is not None else ()
        mine = [demand for demand in asked if demand.uid == uid]
        return node_starts(mine, times=self._known.times, now=self._clock()).get(uid)

    async def run(self) -> None:
        """Keep the objects as they should be; never returns.

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
                log.warning("node_demands_not_kept", error=str(error))
                pause = RETRY_SECONDS

    async def _settle(self) -> None:
        """Make the objects those of the demands."""
        recorded = [demand for objects in self._modes.values() for demand in await objects.read()]
        if self._demands is None:
            self._demands = NodeDemands(open=tuple(recorded), backoffs=self._known.backoffs)
            self._wake_scheduler()
        demands = [each for each in self._demands.open if each.started_at is None]
        for mode, objects in self._modes.items():
            await objects.keep_only([each for each in demands if self._mode(each) in (mode, "")])
        there = {demand_name(each) for each in recorded}
        for demand in demands:
            await self._ask(demand, is_new=demand_name(demand) not in there)
        if self._kept is not None:
            await self._keeping.settle(self._kept, pools=self._pools.by_name)
        await self._listen(demands)
        asked = {each.uid for each in self._demands.open}
        self._gangs = {uid: gang for uid, gang in self._gangs.items() if uid in asked}
        self._said = {uid: text for uid, text in self._said.items() if uid in asked}

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
        await objects.ask(Asking(demand=demand, spec=spec, gang=gang))

    async def _listen(self, demands: Sequence[NodeDemand]) -> None:
        """Read what was said of each demand: why nodes do not come counts most."""
        before, heard = self._refused, False
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
            heard = heard or text != self._said.get(demand.uid, "")
            self._said[demand.uid] = text
        if heard or self._refused - before:
            self._wake_scheduler()

    def _mode(self, demand: NodeDemand) -> str:
        """How its pool asks; '' where nobody knows: what is there stays until a cycle ends it."""
        spec = self._pools.get(demand.pool)
        return "" if spec is None or spec.autoscaling is None else spec.autoscaling.mode

    def _pause(self) -> float | None:
        """How long there is nothing to do; the scheduler is woken when time changes something."""
        demands = self._demands or NodeDemands()
        if any(each.started_at is not None for each in demands.open):
            if any(self._is_bound(each) for each in demands.open if each.started_at is not None):
                self._wake_scheduler()
            return BINDING_SECONDS
        change = demands.next_change(timeouts_of(self._pools.by_name), now=self._clock())
        left = None if change is None else change - self._clock()
        if left is not None and left <= 0:
            self._wake_scheduler()
            return RETRY_SECONDS
        if demands.open:
            return LOOK_SECONDS if left is None else min(left, LOOK_SECONDS)
        return left

    def _is_bound(self, demand: NodeDemand) -> bool:
        """Whether the gang has a pod for each placeholder."""
        namespace = demand.key.partition("/")[0]
        return len(self._pods.of(namespace, demand.uid)) >= len(demand.shares)
