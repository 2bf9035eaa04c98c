"""The operator's process: one event loop, from stand-by to leadership to the end.

Stand by for the Lease -> list and watch (begun only then, so that the last writes of an earlier
leader are seen) -> reconcile and schedule. Whatever ends or fails ends the process: the kubelet
starts a fresh one, and nothing that matters lived only here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.deliveries import Deliveries
from drumline.controller.agents.watch import AgentWatch
from drumline.controller.app import open_files
from drumline.controller.app.kopf_thread import watch_jobs
from drumline.controller.app.leader import AgentAccess, LeaderComponents, Term
from drumline.controller.reconciler.work_queue import WorkQueue
from drumline.kube import codec, reads
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, discover
from drumline.kube.errors import Gone, NotLeader
from drumline.kube.kinds import TRAINING_JOBS
from drumline.kube.lease import LeaderElector, LeaseTiming
from drumline.settings import Settings
from drumline.telemetry import http, logs
from drumline.telemetry.metrics import Metrics

log = logs.get("drumline.controller.app.operator")

LEASE_NAME = "drumline-operator"
MIN_SIGNING_KEY_BYTES = 16


class Stopped(Exception):  # noqa: N818 - the ordinary end
    """The process was asked to end."""


class Operator:
    """One operator process.

    Args:
        settings: what the Deployment says.
        discover_credentials: returns credentials for the API server; each caller gets its own.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        discover_credentials: Callable[[], Credentials] = lambda: discover(os.environ),
    ) -> None:
        self._settings = settings
        self._discover = discover_credentials
        self._credentials = discover_credentials()
        self._metrics = Metrics()
        self._leading = False
        self._leader: LeaderComponents | None = None
        """Set once its caches are filled."""
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Stand by, lead, end when asked to.

        Raises:
            OSError: the signing key cannot be read.
            ExceptionGroup: what made the process end.
        """
        settings = self._settings
        signing_key = _signing_key(settings)
        self._handle_signals()
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
            files = open_files.raise_limit()
            log.info(
                "operator_started", identity=settings.identity, port=port, open_files_limit=files
            )
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._ended())
                    group.create_task(self._serve(client, elector, signing_key))
            except* Stopped:
                log.info("operator_stopped")

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGUSR1, self._capture)

    async def _serve(self, client: KubeClient, elector: LeaderElector, key: bytes) -> None:
        epoch = await elector.acquire()
        self._metrics.controller.leader.set(1)
        log.info("elected", epoch=epoch)
        self._leading = True
        term = Term(
            client=client,
            epoch=epoch,
            signing_key=key,
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
            await watch_jobs(
                leader.informers.jobs,
                queue=queue,
                credentials=await asyncio.to_thread(self._discover),
                identity=self._settings.identity,
                ended=self._stop,
            )
            raise Stopped

    def _capture(self) -> None:
        """Have the next cycle written to a file; only a leader has cycles."""
        if self._leader is None:
            log.warning("capture_refused", why="this process does not lead")
        else:
            self._leader.captures.request()

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


def _signing_key(settings: Settings) -> bytes:
    key = settings.signing_key_file.read_bytes().strip()
    if len(key) < MIN_SIGNING_KEY_BYTES:
        raise OSError(f"{settings.signing_key_file}: the signing key must have 16 bytes or more")
    return key
