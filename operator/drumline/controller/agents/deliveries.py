"""Deliver records and notices to agents, each in its own task.

An agent runs in a tenant's image. It may accept a connection and stay silent until the time limit.
Therefore no worker of the reconciler waits for an agent. A job has at most one record and one
notice in delivery. Jobs share no pool, so silent agents delay only their own job.
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
"""Uid of the job, and the type of the message."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Delivery:
    message: Message
    task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Deliveries:
    """Tasks that deliver messages. An async context manager that cancels them when it exits.

    Args:
        enqueue_after: called with a job's key and seconds when a delivery has ended. The job is
            reconciled after that time.
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
        """Start a delivery, unless the same message is already in delivery.

        A delivery of another message of the same type is cancelled.

        Args:
            uid: uid of the job.
            key: key of the job.
            message: the record or notice.
            deliver: sends the message. It returns the seconds after which to reconcile the job.
        """
        # One slot for each job and message type. An older record or notice is obsolete.
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
