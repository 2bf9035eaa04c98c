"""The operator: one event loop, from stand-by to leadership to the end.

Stand by for the Lease -> list and watch (begun only then, so that the last writes of an earlier
leader are seen) -> reconcile and schedule. Whatever ends or fails ends the process: the kubelet
starts a fresh one, and nothing that matters lived only here.
"""

from __future__ import annotations

import asyncio
import time

from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.deliveries import Deliveries
from drumline.controller.agents.watch import AgentWatch
from drumline.controller.app import open_files
from drumline.controller.app.leader import AgentAccess, LeaderComponents, Term
from drumline.controller.app.signing_key_files import find_keys
from drumline.controller.reconciler.work_queue import WorkQueue
from drumline.kube import codec, reads
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.kube.errors import Gone, NotLeader
from drumline.kube.kinds import TRAINING_JOBS, Resource
from drumline.kube.lease import LeaderElector, LeaseTiming
from drumline.lifecycle.model.signing_keys import SigningKeys
from drumline.settings import Settings
from drumline.telemetry import http, logs
from drumline.telemetry.metrics import Metrics

log = logs.get("drumline.controller.app.operator")

LEASE_NAME = "drumline-operator"


class Stopped(Exception):  # noqa: N818 - the ordinary end
    """The process was asked to end."""


class Operator:
    """One operator process.

    Args:
        settings: what the Deployment says.
        credentials: for the API server; used in this operator's loop alone.
    """

    def __init__(self, settings: Settings, *, credentials: Credentials) -> None:
        self._settings = settings
        self._credentials = credentials
        self._metrics = Metrics()
        self._leading = False
        self._leader: LeaderComponents | None = None
        """Set once its caches are filled."""
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Stand by, lead, end when asked to.

        Raises:
            OSError: there is no usable signing key.
            ExceptionGroup: what made the process end.
        """
        settings = self._settings
        fence = _Fence()
        async with (
            KubeClient(
                self._credentials, fence=fence, observe=self._metrics.observe_request
            ) as client,
            http.serve(
                host=settings.http_host,
                port=settings.http_port,
                metrics=self._metrics,
                healthy=self._unhealthy,
                ready=self._unready,
            ) as port,
        ):
            elector = LeaderElector(
                client,
                epoch_floor=lambda: _highest_epoch(client),
                namespace=settings.namespace,
                name=LEASE_NAME,
                identity=settings.identity,
                timing=LeaseTiming(duration_seconds=settings.lease_seconds),
            )
            fence.elector = elector
            keys = await find_keys(
                client,
                file=settings.signing_key_file,
                namespace=settings.namespace,
                secret=settings.signing_key_object,
            )
            files = open_files.raise_limit()
            log.info(
                "operator_started", identity=settings.identity, port=port, open_files_limit=files
            )
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._ended())
                    group.create_task(self._serve(client, elector, keys))
            except* Stopped:
                log.info("operator_stopped")

    def stop(self) -> None:
        """Have `run` end: the lease is released."""
        self._stop.set()

    def capture(self) -> None:
        """Have the next cycle written to a file; only a leader has cycles."""
        if self._leader is None:
            log.warning("capture_refused", why="this process does not lead")
        else:
            self._leader.captures.request()

    async def report_spec(self, resource: Resource, name: str, *, version: str) -> None:
        """Say in the status of a GpuPool or TrainingQueue what becomes of its new spec.

        Args:
            resource: its kind.
            name: its name.
            version: the version in which Kopf saw it; our cache has it first, or soon.
        """
        if self._leader is not None:
            await self._leader.report_spec(resource, name, version=version)

    async def _serve(self, client: KubeClient, elector: LeaderElector, keys: SigningKeys) -> None:
        epoch = await elector.acquire()
        self._metrics.controller.leader.set(1)
        log.info("elected", epoch=epoch)
        self._leading = True
        term = Term(
            client=client,
            epoch=epoch,
            signing_keys=keys,
            settings=self._settings,
            metrics=self._metrics,
        )
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(elector.hold())
                group.create_task(self._lead(term))
        finally:
            await elector.release()

    async def _lead(self, term: Term) -> None:
        queue = WorkQueue(clock=time.monotonic)
        async with (
            AgentClient() as client,
            AgentWatch(agents=client, enqueue=queue.add, clock=time.monotonic) as watch,
            Deliveries(enqueue_after=queue.add_after) as deliveries,
            asyncio.TaskGroup() as group,
        ):
            agents = AgentAccess(client=client, watch=watch, deliveries=deliveries)
            leader = LeaderComponents(term, queue=queue, agents=agents)
            await leader.fill_caches(group)
            self._leader = leader
            leader.start(group)

    async def _ended(self) -> None:
        await self._stop.wait()
        raise Stopped

    def _unhealthy(self) -> str | None:
        if self._leader is None:
            return None
        return self._leader.informers.stale(time.monotonic(), metrics=self._metrics)

    def _unready(self) -> str | None:
        """A follower is ready to take over; a leader is once its caches are filled."""
        filling = self._leading and self._leader is None
        return "the caches are not filled yet" if filling else None


class _Fence:
    """Between the client and the elector, which needs the client to be made first."""

    def __init__(self) -> None:
        self.elector: LeaderElector | None = None

    def __call__(self) -> None:
        if self.elector is None:
            raise NotLeader("no election has begun")
        self.elector.check()


async def _highest_epoch(client: KubeClient) -> int:
    """The highest epoch any job was written under: a deleted Lease must not bring lower epochs.

    Each page is let go before the next comes: all jobs together may be larger than memory. A list
    whose version is compacted meanwhile begins again; what was seen stays true.
    """
    highest = 0
    while True:
        try:
            async for page in reads.list_pages(
                client, TRAINING_JOBS, limit=reads.LARGE_OBJECTS_PAGE
            ):
                highest = max(highest, *map(_epoch_of, page.items), 0)
        except Gone:
            continue
        return highest


def _epoch_of(raw: bytes) -> int:
    """Its epoch, 0 where it cannot be read: no single object may keep this process from leading."""
    try:
        return codec.epoch_of(raw)
    except codec.Undecodable:
        return 0
