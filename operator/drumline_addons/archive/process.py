"""Run the archiver: read TrainingJobs and events, write the archive, serve probes.

It is a separate process with rights to read and none to write objects. A slow or unavailable
storage, and the credentials of a bucket, therefore do not affect the operator.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Sequence

from drumline.kube import errors, reads
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, discover
from drumline.kube.informer import Informer
from drumline.kube.kinds import EVENTS
from drumline.scope import InstallationScope
from drumline.settings import Settings, SettingsError
from drumline.telemetry import http, logs
from drumline.telemetry.archiver_metrics import ArchiverMetrics
from drumline.telemetry.watches import job_informers, silence_of
from drumline_addons.archive.archiver import Archiver
from drumline_addons.archive.documents import ArchivableJob, Json, archivable_job
from drumline_addons.archive.pod_logs import last_lines
from drumline_addons.archive.store import ArchiveError, ArchiveStore

log = logs.get("drumline_addons.archive.process")

EVENTS_OF_A_JOB = 200
# Below the 30 s of a pod's default grace period.
FLUSH_SECONDS = 20.0


def main(settings: Settings) -> str | None:
    """Archive until SIGTERM. Return why the archive cannot be opened, or None.

    Raises:
        SettingsError: no archive is set.
    """
    if not settings.archive:
        raise SettingsError("DRUMLINE_ARCHIVE is not set: it must be the URL of the archive")
    try:
        asyncio.run(run(settings, credentials=discover(os.environ)))
    except ArchiveError as error:
        return str(error)
    return None


async def run(settings: Settings, *, credentials: Credentials) -> None:
    """Archive until SIGTERM.

    Raises:
        ArchiveError: the archive cannot be opened.
    """
    # An event, not an exception: the flush must run after the signal.
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    # Before the client: a wrong URL must end the process before it reads the cluster.
    store = ArchiveStore.at(settings.archive, create=True)
    scope = InstallationScope.of(settings)
    async with KubeClient(credentials, user_agent="drumline-archiver") as client:
        informers = job_informers(client, scope, decode=archivable_job)

        async def read_events(job: ArchivableJob) -> Sequence[Json]:
            return await _events(client, job)

        async def read_logs(job: ArchivableJob) -> bytes:
            return await last_lines(client, job)

        metrics = ArchiverMetrics()
        archiver = Archiver(
            store,
            read_events=read_events,
            read_logs=read_logs if settings.archive_logs else None,
            keep_days=settings.archive_days,
            covers=scope.covers,
            metrics=metrics,
        )
        # Subscribed before `run`, so the first list reaches the archiver.
        for informer in informers:
            informer.subscribe(archiver.on_event)
        # Probes start before the caches are filled. A large cluster takes minutes to list.
        async with http.serve(
            host=settings.http_host,
            port=settings.http_port,
            metrics=metrics.render,
            healthy=lambda: silence_of(informers),
            ready=lambda: archiver.problem,
        ) as port:
            log.info("archiver_started", archive=settings.archive, port=port)
            # A failed task ends the group and the process. The kubelet starts it again.
            async with asyncio.TaskGroup() as group:
                tasks = [
                    *(group.create_task(informer.run()) for informer in informers),
                    group.create_task(_archive(archiver, informers)),
                ]
                await stop.wait()
                for task in tasks:
                    task.cancel()
            await _flush(archiver)
    log.info("archiver_stopped")


async def _archive(archiver: Archiver, informers: Sequence[Informer[ArchivableJob]]) -> None:
    # The archive may only be settled with all jobs known. Otherwise it ends jobs that exist.
    await asyncio.gather(*(informer.wait_synced() for informer in informers))
    await archiver.run(
        lambda: itertools.chain.from_iterable(informer.values() for informer in informers)
    )


async def _flush(archiver: Archiver) -> None:
    try:
        # The kubelet kills the process after its grace period, so the flush is bounded.
        async with asyncio.timeout(FLUSH_SECONDS):
            await archiver.flush()
    except (ArchiveError, TimeoutError) as error:
        log.warning("archive_not_flushed", why=str(error))


async def _events(client: KubeClient, job: ArchivableJob) -> Sequence[Json]:
    """Return the events about a job, or none if they cannot be read."""
    # Events only add to a document, so a failed read must not cost the document itself.
    try:
        page = await reads.first_page(
            client,
            EVENTS,
            namespace=job.namespace,
            # The server filters by field, so only this job's events are transferred.
            field_selector=f"regarding.uid={job.uid}",
            limit=EVENTS_OF_A_JOB,
        )
    except errors.KubeError as error:
        log.warning("events_not_read", job=f"{job.namespace}/{job.name}", why=str(error))
        return ()
    return [json.loads(item) for item in page.items]
