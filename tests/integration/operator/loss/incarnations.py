"""The operator in this process: one incarnation after another, each with empty caches.

An incarnation is what `drumline.app` starts once it leads, without Kopf, whose only part is to
wake keys that the informers wake too. It sees one corner of the cluster, so that many live side by
side: what it lists and watches is narrowed to that namespace, its nodes, its pool and its queue,
and its Lease is there, too.

A crash is what SIGKILL leaves: from that moment on no request of the incarnation is sent, and its
tasks end. The lease is released in its place, which spares the successor the wait.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Self

import aiohttp

from drumline.app.leader import AgentAccess, LeaderClocks, LeaderComponents, Term
from drumline.app.operator import LEASE_NAME
from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.deliveries import Deliveries
from drumline.controller.agents.watch import AgentWatch
from drumline.controller.reconciler.work_queue import WorkQueue
from drumline.controller.state.warm_caches import WarmCaches
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, from_kubeconfig
from drumline.kube.errors import NotLeader
from drumline.kube.kinds import (
    GPU_POOLS,
    NETWORK_POLICIES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    TRAINING_JOBS,
    TRAINING_QUEUES,
)
from drumline.kube.leader_election import LeaderElector, LeaseTiming
from drumline.kube.request import Request, Verb
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline.settings import Settings
from drumline.telemetry.metrics import Metrics
from tests.integration.operator.loss.api import AsyncKube, Refused
from tests.integration.operator.loss.corner import Corner
from tests.integration.operator.loss.gate import Gate, never
from tests.operator_process import SIGNING_KEY

_identities = itertools.count()
REST_SECONDS = 2.0
LATE_SECONDS = 2.0
"""A late write waits so long for a write of the successor before it."""


class Connections:
    """What all incarnations share: the way to the API server."""

    def __init__(self, kubeconfig: Path) -> None:
        self.credentials: Credentials = from_kubeconfig(kubeconfig)
        self.session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        maker = KubeClient(self.credentials)
        self.session = maker._session(self.credentials.ssl_context(), limit=0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()


class CornerClient(KubeClient):
    """Sees one corner; its writes pass the gate."""

    def __init__(self, connections: Connections, *, gate: Gate, server: str) -> None:
        credentials = connections.credentials
        super().__init__(replace(credentials, server=server or credentials.server))
        self._reads = self._writes = connections.session
        self._gate = gate

    async def __aenter__(self) -> Self:
        return self

    async def _exchange(self, session: aiohttp.ClientSession, request: Request) -> bytes:
        send = partial(super()._exchange, session, request)
        return await (send() if request.reads else self._gate.pass_write(request, send))

    @asynccontextmanager
    async def _open(
        self,
        session: aiohttp.ClientSession,
        request: Request,
        *,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own value
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        if self._gate.ended.is_set():
            await never()
        narrow = narrowed(request, self._gate.corner)
        async with super()._open(session, narrow, timeout=timeout) as response:
            yield response


def narrowed(request: Request, corner: str) -> Request:
    """The request as if there were nothing but the corner."""
    if request.verb not in {Verb.LIST, Verb.WATCH}:
        return request
    resource, query = request.resource, dict(request.query)
    if resource in {TRAINING_JOBS, PODS, POD_DISRUPTION_BUDGETS, NETWORK_POLICIES}:
        return replace(request, path=resource.path(namespace=corner))
    if resource is NODES:
        query["labelSelector"] = f"drumline.test/site={corner}"
    elif resource in {GPU_POOLS, TRAINING_QUEUES}:
        query["fieldSelector"] = f"metadata.name={corner}"
    return replace(request, query=query)


@dataclass(kw_only=True)
class Surroundings:
    """What an operator is started in."""

    server: str = ""
    """Instead of the API server: a proxy before it."""
    lease: LeaseTiming = field(default_factory=LeaseTiming)
    clocks: Callable[[int], LeaderClocks] = lambda _: LeaderClocks()
    """Those of the n-th operator."""


class Incarnation:
    """One life of the operator."""

    def __init__(
        self,
        connections: Connections,
        *,
        gate: Gate,
        surroundings: Surroundings,
        number: int,
        skipped: Callable[[], float],
    ) -> None:
        self._connections = connections
        self._gate = gate
        self._surroundings = surroundings
        self._clocks = clocks = surroundings.clocks(number)
        self._skipping = LeaderClocks(
            wall=lambda: clocks.wall() + skipped(), monotonic=lambda: clocks.monotonic() + skipped()
        )
        self.leads = asyncio.Event()
        self.leader: LeaderComponents | None = None
        self._queue = WorkQueue(clock=self._skipping.monotonic)

    async def run(self) -> None:
        """Lead until cancelled."""
        gate = self._gate
        settings = Settings(namespace=gate.corner, identity=f"operator-{next(_identities)}")
        server = self._surroundings.server
        async with CornerClient(self._connections, gate=gate, server=server) as client:
            elector = LeaderElector(
                client,
                namespace=settings.namespace,
                name=LEASE_NAME,
                identity=settings.identity,
                timing=self._surroundings.lease,
                clock=self._clocks.monotonic,
            )
            client._fence = elector.check
            await elector.acquire()
            metrics = Metrics()
            caches = WarmCaches(
                client, settings=settings, metrics=metrics, wall=self._skipping.wall
            )
            async with asyncio.TaskGroup() as group:
                group.create_task(elector.hold())
                await caches.fill(group)
                term = Term(
                    client=client,
                    epoch=await elector.raise_epoch(above=caches.highest_epoch()),
                    signing_keys=SigningKeys(current=SIGNING_KEY.encode()),
                    settings=settings,
                    metrics=metrics,
                    clocks=self._skipping,
                )
                await self._lead(term, caches)

    async def _lead(self, term: Term, caches: WarmCaches) -> None:
        queue = self._queue
        heard = self._clocks.monotonic  # no agent is silent while time is skipped
        async with (
            AgentClient() as client,
            AgentWatch(agents=client, enqueue=queue.add, clock=heard) as watch,
            Deliveries(enqueue_after=queue.add_after) as deliveries,
            asyncio.TaskGroup() as group,
        ):
            agents = AgentAccess(client=client, watch=watch, deliveries=deliveries)
            leader = LeaderComponents(term, caches=caches, queue=queue, agents=agents)
            leader.start(group)
            self.leader = leader
            self.leads.set()
            await never()

    def look_at_clock(self) -> None:
        """Time was skipped: what waited for it is due."""
        self._queue._wake.set()
        if self.leader is not None:
            self.leader._wake.set()

    @property
    def rests(self) -> bool:
        """Whether it leads, and has nothing to do by itself within `REST_SECONDS`."""
        leader, queue = self.leader, self._queue
        if leader is None:
            return False
        soon = self._skipping.monotonic() + REST_SECONDS
        due = min(queue._due.values(), default=math.inf)
        busy = queue._ready or queue._held or leader._wake.is_set() or due <= soon
        return not busy and self._gate.under_way == 0


class Operators:
    """The operators of one corner, each begun where the last one ended."""

    def __init__(self, connections: Connections, kube: AsyncKube, corner: Corner) -> None:
        self._connections = connections
        self._kube = kube
        self.gate = Gate(corner=corner.name)
        self.surroundings = Surroundings()
        self.begun = 0
        """How many operators there were."""
        self._skipped = 0.0
        self._present: Incarnation | None = None

    async def run(self) -> None:
        """Until cancelled.

        Raises:
            ExceptionGroup: an operator failed.
        """
        while True:
            await self._live()
            await self._release_lease()

    async def _live(self) -> None:
        gate = self.gate
        gate.ended.clear()
        gate.wrote.clear()
        self.begun += 1
        self._present = incarnation = Incarnation(
            self._connections,
            gate=gate,
            surroundings=self.surroundings,
            number=self.begun,
            skipped=lambda: self._skipped,
        )
        try:
            async with asyncio.TaskGroup() as group:
                life = group.create_task(incarnation.run())
                late = group.create_task(self._deliver_late(incarnation))
                await gate.ended.wait()
                life.cancel()
                late.cancel()
        except* NotLeader:  # such a process ends, and the kubelet starts another
            gate.ended.set()

    async def _deliver_late(self, incarnation: Incarnation) -> None:
        """What the predecessor had under way arrives now."""
        request = self.gate.late
        if request is None:
            return
        await incarnation.leads.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(LATE_SECONDS):
                await self.gate.wrote.wait()
        with suppress(Refused):
            await self._kube.request(
                request.method,
                request.path,
                request.body,
                content_type=request.content_type,
                query=request.query,
            )
        self.gate.late = None

    @property
    def rests(self) -> bool:
        """Whether the present operator has nothing to do."""
        return self._present is not None and not self.gate.ended.is_set() and self._present.rests

    def skip(self, seconds: float) -> None:
        """So much time passes at once, for this and all later operators; their Lease stays."""
        self._skipped += seconds
        if self._present is not None:
            self._present.look_at_clock()

    def forget_shared_objects(self) -> None:
        """Each life begins with the writes of what the jobs of a namespace share."""
        if self._present is not None and self._present.leader is not None:
            self._present.leader._shared._confirmed.clear()

    def replace(self) -> None:
        """End the present operator at once."""
        self.gate.ended.set()

    async def _release_lease(self) -> None:
        body = {"spec": {"holderIdentity": ""}}
        await self._kube.patch("leases", LEASE_NAME, body, self.gate.corner)
