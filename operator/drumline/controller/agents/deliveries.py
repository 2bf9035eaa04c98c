"""Records and notices on their way to agents, each in a task of its own.

An agent runs in a tenant's image: it may accept a connection and stay silent until the time limit.
So no worker of the reconciler waits for one. A job has at most one record and one notice on its way
at a time, and there is no pool that jobs share: silent agents delay their own job alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from drumline.telemetry import logs
from drumline_contract import GenerationRecord, Notice

log = logs.get("drumline.controller.agents.deliveries")

CRASHED_RETRY_SECONDS = 8.0

Message = GenerationRecord | Notice


_Slot = tuple[str, type[Message]]
"""Uid of the job, and what is delivered."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Delivery:
    message: Message
    task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Deliveries:
    """An async context manager: what is on its way is cancelled with it.

    Args:
        enqueue_after: called with a job's key and seconds once a delivery has ended: the job is to
            be reconciled then.
    """

    def __init__(self, *, enqueue_after: Callable[[str, float], None]) -> None:
        self._enqueue_after = enqueue_after
        self._under_way: dict[_Slot, _Delivery] = {}
        self._group = asyncio.TaskGroup()

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for delivery in self._under_way.values():
            delivery.cancel()
        await self._group.__aexit__(kind, error, trace)

    def start(
        self, *, uid: str, key: str, message: Message, deliver: Callable[[], Awaitable[float]]
    ) -> None:
        """Begin a delivery, unless this very message is on its way; another one is given up.

        Args:
            uid: of the job.
            key: of the job.
            message: what is delivered.
            deliver: delivers it; returns after how many seconds the job is to be reconciled.
        """
        slot = (uid, type(message))
        before = self._under_way.get(slot)
        if before is not None:
            if before.message == message:
                return
            before.cancel()
        delivery = _Delivery(message=message)
        self._under_way[slot] = delivery
        delivery.task = self._group.create_task(self._run(slot, delivery, key, deliver))

    def __len__(self) -> int:
        return len(self._under_way)

    async def _run(
        self, slot: _Slot, delivery: _Delivery, key: str, deliver: Callable[[], Awaitable[float]]
    ) -> None:
        delay = CRASHED_RETRY_SECONDS
        try:
            delay = await deliver()
        except Exception:  # one tenant's agent must not end the deliveries of all jobs
            log.exception("agent_delivery_crashed", job=key)
        finally:
            # Before the job is reconciled: it may have to send the same message again.
            if self._under_way.get(slot) is delivery:
                del self._under_way[slot]
        self._enqueue_after(key, delay)
