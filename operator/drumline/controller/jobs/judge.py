"""Judges the specs of jobs beside the event loop.

A verdict takes microseconds to milliseconds, within bounds that a tenant cannot move, and ten
thousand jobs are listed at once when the operator starts: on the loop that would keep the Lease
from being renewed. Each spec is judged once, in the order in which they came.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from drumline.lifecycle.model.hardware import PoolHardware
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.verdict import Refusal, Schedulable
from drumline.lifecycle.plan.acceptance import judge

BATCH = 32
"""A thread is handed so many at once: changing threads takes as long as a short verdict."""


class Judge:
    """Jobs that wait for their verdict. For one event loop, and a thread for each batch.

    Args:
        settle: keeps a verdict with the job that was judged.
        hardware: the largest GPUs that a job may get, as far as its pools say it.
    """

    def __init__(
        self,
        *,
        settle: Callable[[Job, Schedulable | Refusal], None],
        hardware: Callable[[Job], PoolHardware | None] = lambda _: None,
    ) -> None:
        self._settle = settle
        self._hardware = hardware
        self._waiting: deque[Job] = deque()
        self._arrived = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, job: Job) -> None:
        """Have this job judged; `settle` is called with it later."""
        self._waiting.append(job)
        self._idle.clear()
        self._arrived.set()

    async def wait_idle(self) -> None:
        """Return once every job that came has its verdict."""
        await self._idle.wait()

    async def run(self) -> None:
        """Judge what comes; never returns."""
        while True:
            await self._arrived.wait()
            jobs = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            batch = [(job, self._hardware(job)) for job in jobs]
            verdicts = await asyncio.to_thread(_judge_all, batch)
            for job, verdict in zip(jobs, verdicts, strict=True):
                self._settle(job, verdict)
            if not self._waiting:
                self._arrived.clear()
                self._idle.set()


def _judge_all(batch: Sequence[tuple[Job, PoolHardware | None]]) -> list[Schedulable | Refusal]:
    return [judge(job.spec, hardware) for job, hardware in batch]
