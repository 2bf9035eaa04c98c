"""Write to the status of each waiting job why it waits. Writes are paced, so no cycle waits.

The newest text of a job replaces one that is not written yet. A new reason is written as soon as
its turn comes. A preempted job keeps that reason for a while, because the API server first has to
create the preemptor's gang. The refresh of a message whose figures changed depends on the job's
position (`waiting_text`). An expected start is refreshed at most as often as a message there, if it
moved by more than a tenth of the remaining time. Far from the head it is refreshed at most once an
hour, if it moved by more than a half. Only jobs near the head of their queue get an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from itertools import islice
from typing import NamedTuple

from drumline.controller.job_events import JobEvents
from drumline.controller.jobs.status_writer import StatusWriter
from drumline.controller.scheduler.waiting_text import HEAD, refresh_seconds
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.errors import Conflict, KubeError, NotFound, NotLeader
from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.plan.acceptance import is_queued
from drumline.telemetry import logs
from drumline_api.conditions import Reason
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.forecast.lines import CANNOT_START

log = logs.get("drumline.controller.scheduler.waiting_messages")

NOT_DATED = CANNOT_START | {"PriorityClassNotFound"}
"""Reasons without an expected start: the job starts only after a change."""
AT_ONCE = 10
PAUSE_SECONDS = 0.1
"""Pause between two batches: a hundred writes per second, whatever the length of the queue."""
RETRY_SECONDS = 1.0
REFUSED_SECONDS = 30.0
"""Pause of one job's text after an error, except a conflict. The texts of others do not wait."""
REFRESH_SECONDS = 60.0
FAR_SECONDS = 3600.0
PREEMPTED_SECONDS = 3.0
"""Time for which a job reports its preemptor before it reports what it waits for."""


class WaitingMessage(NamedTuple):
    """Reason and message for the status of a waiting job."""

    key: str
    uid: str
    reason: str
    message: str
    start: float | None
    """Expected start (seconds since the epoch)."""
    start_by: float | None
    position: int = 0
    """Number of jobs that wait ahead of this job in its queue."""
    not_before: float = 0.0
    """Earliest time of the write (seconds since the epoch)."""


class WaitingMessages:
    """Keeps the messages of waiting jobs until they are written.

    Args:
        state: the caches.
        writer: writes statuses.
        job_events: writes events that users read.
        expected: returns the expected start of a waiting job by its uid, or None.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        state: ClusterCache,
        writer: StatusWriter,
        job_events: JobEvents,
        expected: Callable[[str], ExpectedStart | None],
        clock: Callable[[], float],
    ) -> None:
        self._state = state
        self._writer = writer
        self._job_events = job_events
        self._expected = expected
        self._clock = clock
        self._due: dict[str, WaitingMessage] = {}
        self._written_at: dict[str, float] = {}
        self._paused: dict[str, float] = {}
        """Earliest time of the next write of a job whose text was not written."""
        self._wake = asyncio.Event()

    def set(self, job: Job, *, reason: str, message: str, position: int = 0) -> None:
        """Set the message of a waiting job. It is written unless the status has it already.

        Args:
            job: a waiting job.
            reason: why it waits.
            message: the reason for users. Its refresh depends on what changed.
            position: number of waiting jobs of its queue before it.
        """
        # Phase 1: nothing to do if the status has this text and about this expected start.
        before, now = job.status, self._clock()
        expected = None if reason in NOT_DATED else self._expected(job.uid)
        start = expected.p50_at if expected else None
        same = (before.reason, before.message) == (reason, message[:2048])
        far = position >= HEAD
        if same and not _moved(before.expected_start, start, now=now, part=0.5 if far else 0.1):
            self._due.pop(job.uid, None)
            return
        # Phase 2: a text with other figures waits for its pace, a new reason does not. A message of
        # unknown age counts as written now, so its refresh may wait.
        written_at = self._written_at.setdefault(job.uid, now)
        pause = refresh_seconds(before.message or "", message, position=position)
        if same and far:
            pause = FAR_SECONDS
        # A time after now is from before the clock was set back.
        if before.reason == reason and written_at <= now < written_at + pause:
            return
        # Phase 3: queue it. A job that was just preempted says so first.
        by = expected.p90_at if expected else None
        preempted = before.reason in (Reason.PREEMPTED, Reason.QUEUE_STOPPED)
        self._due[job.uid] = WaitingMessage(
            job.key,
            job.uid,
            reason,
            message,
            start,
            by,
            position,
            not_before=written_at + PREEMPTED_SECONDS if preempted else now,
        )
        self._wake.set()

    @property
    def due(self) -> Collection[str]:
        """Return uids of the jobs whose text is not written yet."""
        return self._due.keys()

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all jobs but these. Other jobs no longer wait."""
        for memory in (self._due, self._written_at, self._paused):
            for uid in memory.keys() - set(uids):
                del memory[uid]

    def take(self) -> list[WaitingMessage]:
        """Remove and return the next texts to write."""
        now = self._clock()
        uids = (
            uid
            for uid, text in self._due.items()
            if max(text.not_before, self._paused.get(uid, 0.0)) <= now
        )
        return [self._due.pop(uid) for uid in list(islice(uids, AT_ONCE))]

    async def run(self) -> None:
        """Write the texts that are due. Never returns.

        Raises:
            NotLeader: this process may not write any more.
        """
        while True:
            await self._wake.wait()
            batch = self.take()
            pauses = await asyncio.gather(*map(self._write, batch))
            # A newer text of the job may have arrived meanwhile. It wins, after the same pause.
            now = self._clock()
            for text, pause in zip(batch, pauses, strict=True):
                self._paused.pop(text.uid, None)
                if pause is not None:
                    self._due.setdefault(text.uid, text)
                    self._paused[text.uid] = now + pause
            if not self._due:
                self._wake.clear()
            await asyncio.sleep(PAUSE_SECONDS)

    async def _write(self, text: WaitingMessage) -> float | None:
        """Write one text. Return the seconds until the next try, or None if none is needed."""
        job = self._state.jobs.get(text.key)
        if job is None or job.uid != text.uid or not _waits(job):
            return None
        now = self._clock()
        status = transitions.waiting(job, reason=text.reason, message=text.message, now=now)
        status = transitions.with_expected_start(status, start=text.start, by=text.start_by)
        try:
            await self._writer.write(job, status)
        except NotLeader:
            raise
        except NotFound:
            return None
        except KubeError as error:
            log.debug("waiting_text_not_written", job=job.key, error=str(error))
            # After a conflict the newer version may wait no more.
            return RETRY_SECONDS if isinstance(error, Conflict) else REFUSED_SECONDS
        self._written_at[text.uid] = now
        if job.status.reason != text.reason:
            log.info("gang_waits", job=job.key, reason=text.reason, message=text.message)
            if text.position < HEAD:  # thousands of jobs may wait behind, for the same reason
                self._job_events.waits(job, reason=text.reason, message=text.message)
        return None


def _waits(job: Job) -> bool:
    """Return whether the job, or a part of it, waits for a place."""
    assignment = job.status.assignment
    return is_queued(job) if assignment is None else bool(assignment.lost)


def _moved(before: str | None, start: float | None, *, now: float, part: float) -> bool:
    """Return whether an expected start moved by more than `part` of the remaining time."""
    if before is None or start is None:
        return (before is None) != (start is None)
    return abs(parse_timestamp(before) - start) > max(REFRESH_SECONDS, abs(start - now) * part)
