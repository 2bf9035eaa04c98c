"""The composition root: one process, one event loop.

Stand by for the Lease -> lists and watches (begun only then, so that what an earlier leader wrote
last is seen) -> Kopf, workers, scheduler, reporter. Whatever ends or fails ends the process: the
kubelet starts a fresh one, and nothing that matters lived only here.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.watch import AgentWatch
from drumline.controller.app import kopf_triggers as triggers
from drumline.controller.cache.cluster import ClusterCache
from drumline.controller.cache.informers import Informers, connect
from drumline.controller.cache.nodes import NodeCache
from drumline.controller.cache.usage_history import UsageHistory
from drumline.controller.conversion.jobs import platform_tolerations, policy_of
from drumline.controller.reconciler.executor import Executor
from drumline.controller.reconciler.reconciler import Reconciler
from drumline.controller.reconciler.work_queue import WorkQueue
from drumline.controller.reconciler.workers import work
from drumline.controller.scheduler.captures import CycleCaptures
from drumline.controller.scheduler.committer import Committer
from drumline.controller.scheduler.forecasts import Forecasts
from drumline.controller.scheduler.loop import SchedulerLoop
from drumline.controller.scheduler.waiting_messages import WaitingMessages
from drumline.controller.status.job_events import JobEvents
from drumline.controller.status.usage_reporter import UsageReporter
from drumline.controller.status.writer import StatusWriter
from drumline.kube import codec, reads
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, discover
from drumline.kube.errors import NotLeader
from drumline.kube.events import EventRecorder
from drumline.kube.lease import LeaderElector, LeaseTiming
from drumline.kube.resources import TRAINING_JOBS
from drumline.lifecycle.manifests.pods import PodSettings
from drumline.settings import Settings
from drumline.telemetry import http, logs
from drumline.telemetry.incidents import IncidentCounters
from drumline.telemetry.metrics import Metrics

log = logs.get("drumline.controller.app.operator")

WORKERS = 32
BURST_SECONDS = 0.1
"""A gang of hundreds is looked at ten times a second, not once for each event of a pod."""
CATCH_UP_SECONDS = 5.0
LOOK_AGAIN_SECONDS = 5.0
LEASE_NAME = "drumline-operator"


class Stopped(Exception):  # noqa: N818 - the ordinary end
    """The process was asked to end."""


class Operator:
    """One operator process.

    Args:
        settings: what the Deployment says.
        discover_credentials: says who we are to the API server; each caller gets its own.
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
        self._informers: Informers | None = None
        self._leading = False
        self._captures: CycleCaptures | None = None
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Stand by, lead, end when asked to.

        Raises:
            OSError: the signing key cannot be read.
            ExceptionGroup: what made the process end.
        """
        settings = self._settings
        signing_key = _signing_key(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGUSR1, self._capture)
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
            log.info("operator_started", identity=settings.identity, port=port)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._ended())
                    group.create_task(self._serve(client, elector, signing_key))
            except* Stopped:
                log.info("operator_stopped")

    async def _serve(self, client: KubeClient, elector: LeaderElector, key: bytes) -> None:
        epoch = await elector.acquire()
        self._metrics.controller.leader.set(1)
        log.info("elected", epoch=epoch)
        self._leading = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(elector.hold())
                group.create_task(self._lead(client, epoch, key))
        finally:
            await elector.release()

    async def _lead(self, client: KubeClient, epoch: int, key: bytes) -> None:
        queue = WorkQueue(clock=time.monotonic)
        async with (
            AgentClient() as agents,
            AgentWatch(agents=agents, enqueue=queue.add, clock=time.monotonic) as watch,
            asyncio.TaskGroup() as group,
        ):
            extra = self._settings.trainer_pod.get("tolerations", [])
            state = ClusterCache(
                nodes=NodeCache(clock=time.time),
                progress=watch.progress,
                platform_tolerations=platform_tolerations(extra),
            )
            wake = asyncio.Event()
            informers = Informers.of(client, metrics=self._metrics)
            writer = StatusWriter(client=client, state=state, wake_scheduler=wake.set)
            pods = self._pod_settings()
            recorder = EventRecorder(client, instance=self._settings.identity)
            job_events = JobEvents(recorder)
            reconciler = Reconciler(
                writer=writer,
                executor=Executor(
                    client=client,
                    agents=agents,
                    pods=pods,
                    signing_key=key,
                    gpu_resource=_gpu_resource(state),
                    pods_of=lambda job: state.facts_of(job.namespace, job.uid),
                    clock=time.time,
                ),
                watch=watch,
                state=state,
                epoch=epoch,
                progress_seconds=self._settings.progress_seconds,
                metrics=self._metrics,
                ledger=IncidentCounters(self._metrics),
                job_events=job_events,
                clock=time.time,
            )
            connect(
                informers,
                state,
                enqueue=queue.add,
                enqueue_soon=lambda key: queue.add_after(key, BURST_SECONDS),
                wake_scheduler=wake.set,
            )
            for informer in informers.all():
                group.create_task(informer.run())
            await informers.wait_synced()
            self._informers = informers
            log.info("synced", **{i.resource.plural: len(i.values()) for i in informers.all()})
            policy = policy_of(self._settings.scheduling)
            past = UsageHistory(half_life=policy.history_seconds)
            past.restore({q.name: q.status for q in informers.queues.values()}, now=time.time())
            self._captures = CycleCaptures(file=self._settings.capture_file, wake=wake.set)
            forecasts = Forecasts(
                state=state, past=past, policy=policy, clock=time.time, wake=wake.set
            )
            texts = WaitingMessages(
                state=state,
                writer=writer,
                job_events=job_events,
                forecasts=forecasts,
                clock=time.time,
            )
            scheduler = SchedulerLoop(
                state=state,
                committer=Committer(
                    writer=writer,
                    pods=pods,
                    epoch=epoch,
                    preemption_seconds=self._settings.preemption_seconds,
                    metrics=self._metrics,
                    job_events=job_events,
                    enqueue=queue.add,
                ),
                texts=texts,
                metrics=self._metrics,
                clock=time.time,
                wake=wake,
                policy=policy,
                past=past,
                captures=self._captures,
            )
            reporter = UsageReporter(
                client=client,
                state=state,
                queues=informers.queues,
                pools=informers.pools,
                metrics=self._metrics,
                past=past,
                clock=time.time,
            )
            for _ in range(WORKERS):
                group.create_task(work(queue=queue, reconciler=reconciler, metrics=self._metrics))
            group.create_task(scheduler.run())
            group.create_task(texts.run())
            group.create_task(forecasts.run())
            group.create_task(_keep_time(state, enqueue=queue.add, wake=wake))
            group.create_task(reporter.run())
            group.create_task(recorder.run())
            group.create_task(self._watch_jobs(informers, queue))
            wake.set()

    async def _watch_jobs(self, informers: Informers, queue: WorkQueue) -> None:
        """Kopf's events wake keys once our own cache has seen what Kopf saw."""
        loop = asyncio.get_running_loop()
        stop = threading.Event()

        async def catch_up(key: str, version: str) -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(CATCH_UP_SECONDS):
                    await informers.jobs.wait_version(version)
            queue.add(key)

        async with asyncio.TaskGroup() as group:

            def trigger(key: str, version: str) -> None:
                if informers.jobs.has_reached(version):
                    queue.add(key)
                else:
                    group.create_task(catch_up(key, version))

            def enqueue(key: str, version: str) -> None:
                with suppress(RuntimeError):  # our loop is closed: the process ends
                    loop.call_soon_threadsafe(trigger, key, version)

            thread = threading.Thread(
                target=triggers.run,
                name="kopf",
                daemon=True,
                kwargs={
                    # A token's lock belongs to one loop.
                    "credentials": await asyncio.to_thread(self._discover),
                    "identity": self._settings.identity,
                    "enqueue": enqueue,
                    "stop": stop,
                },
            )
            thread.start()
            try:
                await self._stop.wait()
            finally:
                stop.set()
        raise Stopped

    def _capture(self) -> None:
        """Have the next cycle written down; who does not lead has none."""
        if self._captures is None:
            log.warning("capture_refused", why="this process does not lead")
        else:
            self._captures.request()

    async def _ended(self) -> None:
        await self._stop.wait()
        raise Stopped

    def _pod_settings(self) -> PodSettings:
        settings = self._settings
        return PodSettings(
            trainer_image=settings.trainer_image,
            join_image=settings.operator_image,
            priority_class=settings.priority_class,
            operator_namespace=settings.namespace,
            trainer_pod=settings.trainer_pod,
            metrics_from=settings.metrics_from,
        )

    def _unhealthy(self) -> str | None:
        if self._informers is None:
            return None
        return self._informers.stale(time.monotonic(), metrics=self._metrics)

    def _unready(self) -> str | None:
        """A follower is ready to take over; a leader is once its caches are full."""
        filling = self._leading and self._informers is None
        return "the caches are not filled yet" if filling else None


async def _keep_time(
    state: ClusterCache, *, enqueue: Callable[[str], None], wake: asyncio.Event
) -> None:
    """What is announced for a stated time comes near without an event of its node."""
    while True:
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
        for change in state.nodes.look_again():
            if change.offer:
                wake.set()
            for key in change.jobs:
                enqueue(key)


class _Fence:
    """Between the client and the elector, which needs the client to be made first."""

    def __init__(self) -> None:
        self.elector: LeaderElector | None = None

    def __call__(self) -> None:
        if self.elector is None:
            raise NotLeader("no election has begun")
        self.elector.check()


async def _highest_epoch(client: KubeClient) -> int:
    """The highest epoch any job was written under: a deleted Lease must not bring lower ones."""
    highest = 0
    for raw in await reads.list_all(client, TRAINING_JOBS):
        with suppress(codec.Undecodable):  # one odd object must not keep us from leading
            epoch = codec.custom_object(raw).status.get("epoch")
            highest = max(highest, epoch if isinstance(epoch, int) else 0)
    return highest


def _signing_key(settings: Settings) -> bytes:
    key = settings.signing_key_file.read_bytes().strip()
    if len(key) < 16:
        raise OSError(f"{settings.signing_key_file}: the signing key must have 16 bytes or more")
    return key


def _gpu_resource(state: ClusterCache) -> Callable[[str], str | None]:
    def look_up(pool: str) -> str | None:
        spec = state.pool_spec(pool)
        return spec.gpu_resource if spec is not None else None

    return look_up
