"""Run the notifier: read TrainingJobs, send messages, serve probes.

It is a separate process with rights to read jobs and to write one ConfigMap. Slow, unavailable or
compromised channels therefore do not affect the operator.
"""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp

from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, discover
from drumline.kube.errors import KubeError
from drumline.kube.informer import Informer, Selection
from drumline.kube.kinds import TRAINING_QUEUES
from drumline.scope import InstallationScope
from drumline.settings import Settings, SettingsError
from drumline.telemetry import http, logs
from drumline.telemetry.notifier_metrics import NotifierMetrics
from drumline.telemetry.watches import job_informers, silence_of, warn_left_out
from drumline_addons.notifications.budgets import notifiable_queue
from drumline_addons.notifications.channels import (
    MOST_CONFIG_BYTES,
    Channel,
    ConfigurationError,
    NotificationSettings,
    parsed,
)
from drumline_addons.notifications.delivery import ChannelSender, ChannelWorker
from drumline_addons.notifications.jobs import notifiable_job
from drumline_addons.notifications.mail import MailSender
from drumline_addons.notifications.notifier import Notifier
from drumline_addons.notifications.record import UnreadableRecordError
from drumline_addons.notifications.record_store import AnotherNotifierError, RecordConfigMap
from drumline_addons.notifications.secret_files import SecretFiles
from drumline_addons.notifications.webhook import CloudEventSender, SlackSender
from drumline_contract.regular_files import open_regular

log = logs.get("drumline_addons.notifications.process")

# Below the 30 s of a pod's default grace period.
FLUSH_SECONDS = 20.0


def main(settings: Settings) -> str | None:
    """Notify until SIGTERM. Return the error that ended the process earlier, or None.

    Raises:
        SettingsError: the configuration cannot be used.
    """
    try:
        configuration = read_configuration(settings.notifications)
    except ConfigurationError as error:
        raise SettingsError(str(error)) from None
    credentials = discover(os.environ)
    return asyncio.run(run(settings, configuration=configuration, credentials=credentials))


def read_configuration(path: Path | None) -> NotificationSettings:
    """Return the configuration in a file.

    Raises:
        ConfigurationError: the file is invalid. The message names the place and the reason.
    """
    if path is None:
        raise ConfigurationError(
            "DRUMLINE_NOTIFICATIONS is not set: it must be the path of the file with channels"
        )
    try:
        with open_regular(path) as file:
            # One byte above the maximum is enough to reject a larger file.
            raw = file.read(MOST_CONFIG_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return parsed(raw)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from None


async def run(
    settings: Settings, *, configuration: NotificationSettings, credentials: Credentials
) -> str | None:
    """Notify until SIGTERM. Return the error that ended the process earlier, or None.

    Args:
        settings: settings of the process.
        configuration: channels and their filters.
        credentials: access to the API server.
    """
    problems: list[str] = []
    try:
        await _run(settings, configuration=configuration, credentials=credentials)
    except* (AnotherNotifierError, UnreadableRecordError, KubeError) as group:
        # Errors of the task group come as a group. Any other exception is a bug, and propagates.
        problems = [str(error) for error in group.exceptions]
    return "; ".join(problems) or None


async def _run(
    settings: Settings, *, configuration: NotificationSettings, credentials: Credentials
) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with (
        KubeClient(credentials, user_agent="drumline-notifier") as client,
        # No cookies: a response of one channel must not mark the requests of another.
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        keeper = RecordConfigMap(
            client,
            namespace=settings.namespace,
            name=settings.notifications_record,
            writer=uuid.uuid4().hex,
        )
        # Filled below: workers need the notifier, and the notifier needs the workers.
        workers: dict[str, ChannelWorker] = {}
        metrics = NotifierMetrics()
        notifier = Notifier(
            configuration,
            keeper=keeper,
            # The record is read before the informers start, so no event meets an empty one.
            record=await keeper.read(),
            workers=workers,
            metrics=metrics,
        )
        secrets = SecretFiles(folder=settings.notifications_secrets)
        workers |= _workers(
            configuration, notifier, session=session, secrets=secrets, metrics=metrics
        )
        scope = InstallationScope.of(settings)
        jobs = job_informers(client, scope, decode=notifiable_job)
        for informer in jobs:
            informer.subscribe(notifier.on_event)
        queues = Informer(
            client,
            TRAINING_QUEUES,
            decode=notifiable_queue,
            selection=Selection(label_selector=scope.selector),
            on_quarantine=warn_left_out,
        )
        queues.subscribe(notifier.on_queue_event)
        informers = (*jobs, queues)
        # Probes first: a full list of a large cluster takes longer than a liveness probe allows.
        async with http.serve(
            host=settings.http_host,
            port=settings.http_port,
            metrics=metrics.render,
            healthy=lambda: silence_of(informers),
            ready=lambda: _problem(notifier, workers),
        ) as port:
            log.info("notifier_started", channels=len(workers), port=port)
            await _serve(notifier, informers, workers=workers, stop=stop)
            await _flush(notifier)
    log.info("notifier_stopped")


def _workers(
    configuration: NotificationSettings,
    notifier: Notifier,
    *,
    session: aiohttp.ClientSession,
    secrets: SecretFiles,
    metrics: NotifierMetrics,
) -> dict[str, ChannelWorker]:
    def worker(name: str, channel: Channel) -> ChannelWorker:
        sender = _sender(channel, configuration, session=session, secrets=secrets)
        return ChannelWorker(
            name,
            sender=sender,
            settled=notifier.settled,
            metrics=metrics.channel(name, kind=channel.kind),
        )

    return {name: worker(name, channel) for name, channel in configuration.channels.items()}


async def _serve(
    notifier: Notifier,
    informers: Sequence[Informer[Any]],
    *,
    workers: dict[str, ChannelWorker],
    stop: asyncio.Event,
) -> None:
    async with asyncio.TaskGroup() as group:
        watching = [
            *(group.create_task(informer.run()) for informer in informers),
            group.create_task(_notify(notifier, informers)),
        ]
        sending = [group.create_task(worker.run()) for worker in workers.values()]
        await stop.wait()
        # `finish` first: an attempt that is under way may have been accepted already.
        for worker in workers.values():
            worker.finish()
        if sending:
            # The bound is needed, because an unreachable channel only ends at its timeout.
            await asyncio.wait(sending, timeout=FLUSH_SECONDS)
        for task in (*watching, *sending):
            task.cancel()


async def _notify(notifier: Notifier, informers: Sequence[Informer[Any]]) -> None:
    # All informers: without the queues, a settled record would forget their budgets.
    await asyncio.gather(*(informer.wait_synced() for informer in informers))
    await notifier.run()


async def _flush(notifier: Notifier) -> None:
    """Write accepted messages to the record, so that the next start does not send them again."""
    try:
        async with asyncio.timeout(FLUSH_SECONDS):
            await notifier.save()
    except (KubeError, TimeoutError) as error:
        log.warning("record_not_flushed", why=str(error))


def _sender(
    channel: Channel,
    configuration: NotificationSettings,
    *,
    session: aiohttp.ClientSession,
    secrets: SecretFiles,
) -> ChannelSender:
    cluster = configuration.cluster
    if channel.slack is not None:
        return SlackSender(session=session, channel=channel.slack, secrets=secrets, cluster=cluster)
    if channel.webhook is not None:
        source = configuration.source
        return CloudEventSender(
            session=session, channel=channel.webhook, secrets=secrets, source=source
        )
    assert channel.mail is not None  # noqa: S101 - a channel is of exactly one kind
    return MailSender(channel=channel.mail, secrets=secrets, cluster=cluster)


def _problem(notifier: Notifier, workers: dict[str, ChannelWorker]) -> str | None:
    problems = (notifier.problem, *(worker.problem for worker in workers.values()))
    return next((problem for problem in problems if problem is not None), None)
