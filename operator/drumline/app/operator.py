"""The operator: one event loop, from standby to leadership to the end.

A free Lease is taken at once, and the caches are filled then. If another process leads, they are
filled first and kept warm. After the Lease was won they catch up with the last writes of the
previous leader. Then the operator reconciles and schedules. An end or failure of any part ends the
process. The kubelet starts a new one, and no important state is only in the process.
"""

from __future__ import annotations

import asyncio
import resource
import threading
import time

from drumline.app.leader import AgentAccess, LeaderComponents, Term
from drumline.app.signing_key_files import find_keys
from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.deliveries import Deliveries
from drumline.controller.agents.watch import AgentWatch
from drumline.controller.reconciler.work_queue import WorkQueue
from drumline.controller.state.warm_caches import WarmCaches
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.kube.errors import NotLeader
from drumline.kube.kinds import Resource
from drumline.kube.leader_election import LeaderElector, LeaseTiming
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline.settings import Settings
from drumline.telemetry import http, logs
from drumline.telemetry.metrics import Metrics

log = logs.get("drumline.app.operator")

# One name for all replicas and versions: an upgrade elects between old and new.
LEASE_NAME = "drumline-operator"


class Stopped(Exception):  # noqa: N818 - the ordinary end
    """The process was asked to end."""


class Operator:
    """One operator process.

    Args:
        settings: what the Deployment says.
        credentials: credentials for the API server; used only in this operator's loop.
    """

    def __init__(self, settings: Settings, *, credentials: Credentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._metrics = Metrics()
        # Two flags: leading, and able to decide. Between them the caches catch up.
        self._leading = False
        self._caches: WarmCaches | None = None
        self._leader: LeaderComponents | None = None
        """Set once its caches have caught up."""
        self._stop = asyncio.Event()
        self.settled = threading.Event()
        """Set once this process has decided for the first time, or stands by with full caches."""

    async def run(self) -> None:
        """Stand by, lead, and end on request.

        Raises:
            OSError: a usable signing key is missing.
            ExceptionGroup: the errors that ended the process.
        """
        settings = self._settings
        fence = _Fence()
        async with (
            KubeClient(
                self._credentials, fence=fence, observe=self._metrics.observe_request
            ) as client,
            # Probes start first: filling the caches may take longer than a liveness probe allows.
            http.serve(
                host=settings.http_host,
                port=settings.http_port,
                metrics=self._metrics.render,
                healthy=self._unhealthy,
                ready=self._unready,
            ) as port,
        ):
            elector = LeaderElector(
                client,
                namespace=settings.namespace,
                name=LEASE_NAME,
                identity=settings.identity,
                timing=LeaseTiming(duration_seconds=settings.lease_seconds),
            )
            fence.elector = elector
            # Keys before the election: a process without a usable key must not lead.
            keys = await find_keys(
                client,
                file=settings.signing_key_file,
                namespace=settings.namespace,
                secret=settings.signing_key_object,
            )
            # Before the first gang: each agent connection takes one file.
            files = raise_file_limit()
            log.info(
                "operator_started", identity=settings.identity, port=port, open_files_limit=files
            )
            try:
                # Any task that fails cancels the others, and the lease is released on the way out.
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._ended())
                    group.create_task(self._serve(client, elector, keys))
            except* Stopped:
                log.info("operator_stopped")

    def stop(self) -> None:
        """Make `run` end. The lease is released."""
        self._stop.set()

    def capture(self) -> None:
        """Write the next cycle to a file. Only a leader has cycles."""
        if self._leader is None:
            log.warning("capture_refused", why="this process does not lead")
        else:
            self._leader.captures.request()

    async def report_spec(self, resource: Resource, name: str, *, version: str) -> None:
        """Write the conditions of a new spec to the status of its GpuPool or TrainingQueue.

        Args:
            resource: its kind.
            name: its name.
            version: the version in which Kopf saw it; our cache has it first, or soon.
        """
        if self._leader is not None:
            await self._leader.report_spec(resource, name, version=version)

    async def _serve(self, client: KubeClient, elector: LeaderElector, keys: SigningKeys) -> None:
        caches = self._caches = WarmCaches(
            client, settings=self._settings, metrics=self._metrics, wall=time.time
        )
        async with asyncio.TaskGroup() as group:
            warm = not await elector.try_acquire()
            if warm:
                await caches.fill(group)
                log.info("standing_by")
                self.settled.set()
                await elector.acquire()
            # The metric is set before the caches catch up: this process holds the lease.
            self._metrics.controller.leader.set(1)
            self._leading = True
            log.info("elected", epoch=elector.epoch, warm=warm)
            try:
                async with asyncio.TaskGroup() as term:
                    # The lease must be renewed while the caches catch up, which may take longer
                    # than its duration.
                    term.create_task(elector.hold())
                    # Writes of the last leader may still be on their way, so the caches catch up
                    # with them.
                    await (caches.catch_up() if warm else caches.fill(group))
                    await self._lead(client, elector, keys)
            finally:
                # Only after the term has ended, with all its writes.
                await elector.release()

    async def _lead(self, client: KubeClient, elector: LeaderElector, keys: SigningKeys) -> None:
        caches = self._caches
        assert caches is not None  # noqa: S101 - made before the election
        term = Term(
            client=client,
            # Pods carry the epoch. A lease that was deleted counts from 1 again.
            epoch=await elector.raise_epoch(above=caches.highest_epoch()),
            signing_keys=keys,
            settings=self._settings,
            metrics=self._metrics,
        )
        queue = WorkQueue(clock=time.monotonic)
        # Agents are closed last: components may send to them while they end.
        async with (
            AgentClient() as agent_client,
            AgentWatch(agents=agent_client, enqueue=queue.add, clock=time.monotonic) as watch,
            Deliveries(enqueue_after=queue.add_after) as deliveries,
            asyncio.TaskGroup() as group,
        ):
            agents = AgentAccess(client=agent_client, watch=watch, deliveries=deliveries)
            leader = LeaderComponents(term, caches=caches, queue=queue, agents=agents)
            self._leader = leader
            first_cycle_over = leader.start(group)
            await first_cycle_over.wait()
            self.settled.set()

    async def _ended(self) -> None:
        await self._stop.wait()
        raise Stopped

    def _unhealthy(self) -> str | None:
        # A process that still fills its caches is not stuck, so it must not be restarted.
        if self._caches is None or not self._caches.filled:
            return None
        return self._caches.informers.stale(time.monotonic())

    def _unready(self) -> str | None:
        """Return why the process is not ready, or None.

        A leader is ready once it decides. Another process is ready once it could take over at once.
        """
        if self._caches is None or not self._caches.filled:
            return "the caches are not filled yet"
        catching_up = self._leading and self._leader is None
        return "the caches have not caught up with the last leader yet" if catching_up else None


class _Fence:
    """Between the client and the elector, which needs the client to be made first."""

    def __init__(self) -> None:
        self.elector: LeaderElector | None = None

    # A write before the election is a bug, and must not pass.
    def __call__(self) -> None:
        if self.elector is None:
            raise NotLeader("no leader election has started")
        self.elector.check()


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit; returns the new limit.

    Each gang that trains takes a socket. Container runtimes start processes with the soft limit of
    their own unit, often 1,024 (containerd 2 no longer raises it). With more gangs every further
    socket would fail, also those to the API server.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
