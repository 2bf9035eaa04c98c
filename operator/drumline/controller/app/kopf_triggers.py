"""Kopf's part: the life of the process and the watch of our jobs as a trigger.

Kopf writes nothing here: no finalizer, no annotation, no event, no peering, no daemons, no timers.
An event only wakes a key; the reconciler reads the informer. Settings and their reasons are in one
place below.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import kopf
from kopf._core.engines.peering import Identity

from drumline.api.base import GROUP, VERSION
from drumline.kube.credentials import Credentials
from drumline.telemetry import logs

log = logs.get("drumline.controller.app.kopf_triggers")

WORKERS = 64
RETRY_SECONDS = 30.0
REQUEST_SECONDS = 30.0


def registry_of(
    *, credentials: Credentials, enqueue: Callable[[str, str], None]
) -> kopf.OperatorRegistry:
    """Handlers of one operator; `enqueue(key, resource_version)` is called for every event."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**await credentials.connection_fields())

    @kopf.on.event(GROUP, VERSION, "trainingjobs", registry=registry)
    async def wake(namespace: str | None, name: str, meta: kopf.Meta, **_: Any) -> None:
        enqueue(f"{namespace}/{name}", str(meta.get("resourceVersion", "")))

    return registry


def settings_of() -> kopf.OperatorSettings:
    """How Kopf is to behave."""
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # its peering has no fencing; a Lease of our own has
    settings.posting.enabled = False  # events are written deliberately, not from log lines
    settings.scanning.disabled = True  # no watch of CRDs and namespaces, fewer rights
    settings.queueing.worker_limit = WORKERS  # else one task an object
    settings.watching.inactivity_timeout = 70  # bookmarks come every minute
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = 5
    settings.networking.enforce_retry_after = True
    settings.process.ultimate_exiting_timeout = 20
    return settings


def run(
    *,
    credentials: Credentials,
    identity: str,
    enqueue: Callable[[str, str], None],
    stop: threading.Event,
) -> None:
    """Watch until `stop` is set; to be run in a thread of its own, with credentials of its own.

    Kopf cancels every task of its loop when it ends, and gives a watch up for an object it cannot
    decode. Neither may affect the operator, whose own informers wake the same keys: Kopf is started
    again.
    """
    while not stop.is_set():
        try:
            asyncio.run(
                kopf.operator(
                    registry=registry_of(credentials=credentials, enqueue=enqueue),
                    settings=settings_of(),
                    clusterwide=True,
                    standalone=True,
                    stop_flag=stop,
                    # Left to itself it asks for the user's name, which a pod's user has not.
                    identity=Identity(identity),
                )
            )
        except Exception:
            log.exception("kopf_ended", retry_in_seconds=RETRY_SECONDS)
        stop.wait(RETRY_SECONDS)
