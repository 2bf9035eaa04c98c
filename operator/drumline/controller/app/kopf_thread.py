"""Kopf in a thread of its own: its events wake keys in the operator's loop.

A key is handed on once our own cache shows what Kopf saw, or `CATCH_UP_SECONDS` later.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from drumline.controller.app import kopf_triggers
from drumline.controller.reconciler.work_queue import WorkQueue
from drumline.kube.credentials import Credentials
from drumline.kube.informer import Informer
from drumline.kube.views import ObjectView

CATCH_UP_SECONDS = 5.0


async def watch_jobs(
    jobs: Informer[ObjectView],
    *,
    queue: WorkQueue,
    credentials: Credentials,
    identity: str,
    ended: asyncio.Event,
) -> None:
    """Run Kopf until `ended` is set.

    Args:
        jobs: the cache that the reconciler reads.
        queue: where keys are added.
        credentials: for Kopf's loop alone: the lock of a token belongs to one loop.
        identity: the name of this process.
        ended: set when the process is asked to end.
    """
    loop = asyncio.get_running_loop()
    stop = threading.Event()

    async def catch_up(key: str, version: str) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await jobs.wait_version(version)
        queue.add(key)

    async with asyncio.TaskGroup() as group:

        def trigger(key: str, version: str) -> None:
            if jobs.has_reached(version):
                queue.add(key)
            else:
                group.create_task(catch_up(key, version))

        def enqueue(key: str, version: str) -> None:
            with suppress(RuntimeError):  # our loop is closed: the process ends
                loop.call_soon_threadsafe(trigger, key, version)

        thread = threading.Thread(
            target=kopf_triggers.run,
            name="kopf",
            daemon=True,
            kwargs={
                "credentials": credentials,
                "identity": identity,
                "enqueue": enqueue,
                "stop": stop,
            },
        )
        thread.start()
        try:
            await ended.wait()
        finally:
            stop.set()
