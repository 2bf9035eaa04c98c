"""Kopf in the main thread: its life, and the platform's own objects.

Kopf handles the signals, the end (a stop that hangs is killed), and the watches of GpuPools and
TrainingQueues. One handler per object writes the effect of a new spec to its status at once. Kopf
does not watch TrainingJobs: tenants create thousands of them, and the informer of `drumline.kube`
has them already (docs/decisions/0014-kopf.md).

Kopf gives up on errors in a watch that the API server sends when it is overloaded, and cancels
every task of its loop when it ends. So the operator has its own loop in another thread (`process`),
and Kopf is started again beside it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import kopf

from drumline.app.process import OperatorThread
from drumline.kube.credentials import Credentials
from drumline.kube.kinds import GPU_POOLS, TRAINING_QUEUES, Resource
from drumline.telemetry import logs
from drumline_api.base import GROUP, LABEL_INSTALLATION, VERSION

log = logs.get("drumline.app.kopf_process")

# Kopf handles only pools and queues, so few workers suffice.
WORKERS = 16
WORKER_IDLE_SECONDS = 0.1
"""Kopf keeps a worker for an object as long as this after its last event. With the default of 5 s
and a limit of 64 workers, it handled 13 objects a second and kept the events of all others."""
RETRY_SECONDS = 30.0
REQUEST_SECONDS = 30.0
EXIT_SECONDS = 20.0

Report = Callable[[Resource, str, str], Awaitable[None]]
"""Called with kind, name and resourceVersion of an object whose spec is new."""


class SignalledLoop(asyncio.SelectorEventLoop):
    """Kopf's event loop: the operator hears a signal before Kopf does.

    A Kopf that is about to end because of an error takes a signal and forgets it: the operator
    would be killed at the end of its grace period, with its Lease.

    Args:
        on_signal: called with the number of a signal.
    """

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        super().__init__()
        self._on_signal = on_signal

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        """Call both handlers on a signal."""

        # The operator first: Kopf's own handler may be gone at that moment.
        def handle() -> None:
            self._on_signal(sig)
            callback(*args)

        super().add_signal_handler(sig, handle)


def run_beside(
    thread: OperatorThread,
    *,
    registry: Callable[[], kopf.OperatorRegistry],
    identity: str,
    on_signal: Callable[..., None],
) -> None:
    """Run Kopf beside the operator until either ends. Start it again after a failure.

    Args:
        thread: the operator.
        registry: returns the handlers of a new Kopf instance.
        identity: the name of this process.
        on_signal: called with the number of a signal.
    """
    # Jobs are reconciled without Kopf, so its failures only cost a pause.
    while not thread.ended.is_set():
        if _run_kopf(registry(), identity=identity, thread=thread, on_signal=on_signal):
            return
        for number in (signal.SIGTERM, signal.SIGINT):  # Kopf took its own handlers along
            signal.signal(number, on_signal)
        thread.ended.wait(RETRY_SECONDS)


def _run_kopf(
    registry: kopf.OperatorRegistry,
    *,
    identity: str,
    thread: OperatorThread,
    on_signal: Callable[[int], None],
) -> bool:
    """Run Kopf until it was asked to end; False if it failed."""
    try:
        with asyncio.Runner(loop_factory=lambda: SignalledLoop(on_signal)) as runner:
            runner.run(_kopf(registry, identity=identity, thread=thread))
    except Exception:
        # Kopf passes on every exception of its watches. The process must continue.
        log.exception("kopf_ended", retry_in_seconds=RETRY_SECONDS)
        return False
    return True


async def _kopf(registry: kopf.OperatorRegistry, *, identity: str, thread: OperatorThread) -> None:
    """Kopf until it ends; with the operator's thread it ends too."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()

    def on_end() -> None:
        with suppress(RuntimeError):  # Kopf's loop is closed already
            loop.call_soon_threadsafe(stop.set)

    @kopf.on.cleanup(registry=registry)
    async def cleanup(**_: Any) -> None:
        stop.set()  # Kopf waits 5 s for a flag that nobody sets

    thread.when_ended(on_end)
    await kopf.operator(
        registry=registry,
        settings=settings_of(),
        clusterwide=True,
        standalone=True,
        stop_flag=stop,
        # Left to itself it asks for the user's name, which a pod's user has not.
        identity=cast("Any", identity),
    )


def registry_of(
    *, credentials: Credentials, report: Report, installation: str = ""
) -> kopf.OperatorRegistry:
    """Return the handlers of one Kopf instance.

    Args:
        credentials: access to the API server.
        report: called with each new spec.
        installation: label of the watched objects. Empty: objects without the label.
    """
    registry = kopf.OperatorRegistry()
    # Kopf watches only objects of this installation, by their label.
    ours = {LABEL_INSTALLATION: installation or kopf.ABSENT}

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**await credentials.connection_fields())

    def handle(resource: Resource) -> None:
        @kopf.on.event(
            GROUP, VERSION, resource.plural, registry=registry, labels=ours, when=is_new_spec
        )
        async def report_spec(name: str, meta: kopf.Meta, **_: Any) -> None:
            await report(resource, name, str(meta.get("resourceVersion", "")))

    handle(GPU_POOLS)
    handle(TRAINING_QUEUES)
    return registry


def is_new_spec(*, body: kopf.Body, event: kopf.RawEvent, **_: Any) -> bool:
    """Return whether the status is not about this spec yet. Our own status writes do not count."""
    observed = body.status.get("observedGeneration")
    # The generation grows with the spec only, so status writes match and are skipped.
    return event["type"] != "DELETED" and observed != body.metadata.get("generation")


def settings_of() -> kopf.OperatorSettings:
    """Return Kopf's settings: it writes no finalizer, no annotation and no event."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # its peering has no fencing; a Lease of our own has
    settings.posting.enabled = False  # events are written deliberately, not from log lines
    settings.scanning.disabled = True  # no watch of CRDs and namespaces, fewer rights
    settings.queueing.worker_limit = WORKERS  # else one task an object
    settings.queueing.idle_timeout = WORKER_IDLE_SECONDS
    settings.watching.inactivity_timeout = 70  # bookmarks come every minute
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = 5
    settings.networking.enforce_retry_after = True
    settings.process.ultimate_exiting_timeout = EXIT_SECONDS
    return settings
