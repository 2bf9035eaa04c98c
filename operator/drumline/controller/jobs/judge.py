"""Judge the specs of jobs in a thread, outside the event loop.

A verdict takes microseconds to milliseconds, within bounds that a tenant cannot change. Ten
thousand jobs are listed at once when the operator starts. On the event loop that would delay the
renewal of the Lease. Jobs are judged in the order of arrival, and equal jobs of one burst once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from drumline.lifecycle.model.hardware import PoolHardware
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.verdict import Refusal, Schedulable
from drumline.lifecycle.plan.acceptance import judge

BATCH = 32
"""Jobs per thread call. A thread switch takes as long as a short verdict."""
MOST_KNOWN = 1024
"""Verdicts that are remembered, if jobs arrive without a pause."""


class _JudgedSpec(NamedTuple):
    """The identity of a spec, which jobs with equal specs share, and the largest GPUs."""

    spec: int
    hardware: PoolHardware | None


class Judge:
    """Queue of jobs that wait for their verdict. For one event loop, with a thread per batch.

    Args:
        settle: stores a verdict with the job that was judged.
        hardware: returns the largest GPUs that a job may get, if its pools declare them.
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
        self._known: dict[_JudgedSpec, tuple[Job, Schedulable | Refusal]] = {}
        """Verdicts of this burst, each with a job that keeps its spec in memory."""

    def add(self, job: Job) -> None:
        """Add a job to the queue. `settle` is called with its verdict later."""
        self._waiting.append(job)
        self._idle.clear()
        self._arrived.set()

    async def wait_idle(self) -> None:
        """Wait until every job has its verdict."""
        await self._idle.wait()

    async def run(self) -> None:
        """Judge jobs as they arrive. Never returns."""
        while True:
            await self._arrived.wait()
            jobs = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            # Read the pools here: the thread must not touch objects that the loop changes.
            batch = [(job, _JudgedSpec(id(job.spec), self._hardware(job))) for job in jobs]
            fresh = {asked: job for job, asked in batch if asked not in self._known}
            verdicts = await asyncio.to_thread(_judge_all, fresh)
            self._known |= verdicts
            for job, asked in batch:
                self._settle(job, self._known[asked][1])
            if not self._waiting or len(self._known) > MOST_KNOWN:
                self._known.clear()
            if not self._waiting:
                self._arrived.clear()
                self._idle.set()


def _judge_all(
    jobs: Mapping[_JudgedSpec, Job],
) -> dict[_JudgedSpec, tuple[Job, Schedulable | Refusal]]:
    return {asked: (job, judge(job.spec, asked.hardware)) for asked, job in jobs.items()}
