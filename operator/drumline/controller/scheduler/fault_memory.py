"""Remember gangs on which the scheduler raised an exception, and set them aside for some time.

A cycle that meets such a gang decides three times (`scheduler.fault_isolation`). So the gang is set
aside for a minute, then for twice as long after each further exception, up to ten minutes. A change
of the job's spec ends that at once. A gang that may be innocent of a cycle that took too long is
set aside for a second, that is for one cycle. However many other gangs are due, few of them are
tried in one cycle: one at first, and twice as many after each cycle in which none of them raised.
If one raises, the gangs of its namespace with the same exception wait as long. The memory belongs
to the process: a new leader tries each gang again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from drumline.controller.job_events import JobEvents
from drumline.controller.scheduler.unwritten_statuses import StatusNotWrittenError
from drumline.kube.errors import NotLeader
from drumline.lifecycle.model.job import Job
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics
from drumline_scheduler.decisions import GangFault
from drumline_scheduler.faults import fault_about, message_of
from drumline_scheduler.model import job_uid

log = logs.get("drumline.controller.scheduler.fault_memory")

FIRST_SECONDS: Final = 60.0
LONGEST_SECONDS: Final = 600.0
DUE_SECONDS: Final = 1.0
"""Time to the next cycle while gangs are due that the last cycle did not try."""
MOST_AT_ONCE: Final = 1024
MOST_REPORTED: Final = 16
"""New faults of one cycle that are logged and get an event; all of them are counted."""


OnFault = Callable[[str, str, Exception], None]
"""Takes an exception on one job, by key and uid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    fault: GangFault
    object_generation: int | None
    """Generation of the job's spec. None for a gang that is not a TrainingJob."""
    retry_at: float
    pause_seconds: float

    @property
    def namespace(self) -> str:
        """Namespace of the job."""
        return self.fault.key.partition("/")[0]


class FaultMemory:
    """The gangs that are set aside.

    Args:
        metrics: counts exceptions.
        job_events: the events that users read.
    """

    def __init__(self, *, metrics: Metrics, job_events: JobEvents) -> None:
        self._metrics = metrics
        self._job_events = job_events
        self._entries: dict[str, _Entry] = {}
        """Entries by uid of the gang."""
        self._tried: set[str] = set()
        """Uids of the gangs with an entry that the present cycle tries again."""
        self._at_once = 1
        """Number of such gangs in one cycle."""
        self._without_gang: set[str] = set()
        """Reported exceptions for which no gang was at fault."""
        self._fresh: list[GangFault] = []
        """New faults, for a capture."""

    def set_aside(self, jobs: Mapping[str, Job], *, now: float) -> tuple[GangFault, ...]:
        """Return the faults of the gangs that the next cycle must not try, by uid.

        Args:
            jobs: all jobs by uid.
            now: seconds since the epoch.
        """
        # A new spec gets a new try. Its exception may be gone.
        for uid, entry in list(self._entries.items()):
            if entry.object_generation != _object_generation(uid, jobs):
                del self._entries[uid]
        for uid, entry in self._entries.items():
            if entry.retry_at > now + LONGEST_SECONDS:  # from before the clock was set back
                self._entries[uid] = replace(entry, retry_at=now)
        due = [entry for entry in self._entries.values() if entry.retry_at <= now]
        due.sort(key=lambda entry: (entry.retry_at, entry.fault.uid))
        certain = [entry.fault.uid for entry in due if entry.fault.is_certain]
        innocent = {entry.fault.uid for entry in due if not entry.fault.is_certain}
        self._tried = innocent.union(certain[: self._at_once])
        return tuple(
            self._entries[uid].fault for uid in sorted(self._entries) if uid not in self._tried
        )

    def retry_at(self, now: float) -> float | None:
        """Return when the next gang that is set aside is tried again; None if there is none.

        Args:
            now: seconds since the epoch.
        """
        times = (max(entry.retry_at, now + DUE_SECONDS) for entry in self._entries.values())
        return min(times, default=None)

    def take(self, faults: Iterable[GangFault], *, jobs: Mapping[str, Job], now: float) -> None:
        """Remember, count and report the faults of a cycle. Forget gangs that raised none.

        Args:
            faults: faults of the cycle, including those of gangs that were set aside.
            jobs: all jobs by uid.
            now: seconds since the epoch.
        """
        raised = [
            fault for fault in faults if fault.uid not in self._entries or fault.uid in self._tried
        ]
        for fault in raised:
            self._metrics.faults.raised.labels(stage=fault.stage).inc()
        # 1. The gangs that were tried again.
        again = [fault for fault in raised if fault.uid in self._tried]
        for uid in self._tried - {fault.uid for fault in again}:
            del self._entries[uid]
        if again:
            self._at_once = 1
        elif self._tried:
            self._at_once = min(2 * self._at_once, MOST_AT_ONCE)
        self._tried = set()
        for fault in again:
            self._extend_pause(fault, now=now)
        # 2. The new ones.
        new = [fault for fault in raised if fault.uid not in self._entries]
        self._report(new, jobs=jobs, now=now)

    def take_fresh(self) -> tuple[GangFault, ...]:
        """Return the new faults since the last call. Each deserves a capture."""
        fresh, self._fresh = tuple(self._fresh), []
        return fresh

    def _extend_pause(self, fault: GangFault, *, now: float) -> None:
        """Double the pause of a gang, and of its namespace's due gangs with the same exception."""
        before = self._entries[fault.uid]
        pause = min(2 * before.pause_seconds, LONGEST_SECONDS)
        log.error("scheduler_fault", **_described(fault), retry_in_seconds=pause)
        for uid, entry in self._entries.items():
            same_fault = (
                entry.fault.is_certain
                and entry.fault.error == before.fault.error
                and entry.namespace == before.namespace
            )
            if same_fault and entry.retry_at <= now:
                self._entries[uid] = replace(entry, retry_at=now + pause, pause_seconds=pause)
        self._entries[fault.uid] = replace(self._entries[fault.uid], fault=fault)

    def _report(self, faults: Sequence[GangFault], *, jobs: Mapping[str, Job], now: float) -> None:
        """Log new faults, report them to users, and remember them."""
        # The numbers of log lines and events are bounded: one fault may hit ten thousand gangs.
        for number, fault in enumerate(faults):
            if not fault.uid and fault.error in self._without_gang:
                continue
            pause = FIRST_SECONDS if fault.is_certain else DUE_SECONDS
            if number < MOST_REPORTED:
                log.error("scheduler_fault", **_described(fault), retry_in_seconds=pause)
                self._fresh.append(fault)
                job = jobs.get(job_uid(fault.uid))
                if job is not None:
                    self._job_events.scheduler_failed(job, message=message_of(fault))
            if not fault.uid:
                self._without_gang = {*list(self._without_gang)[:MOST_REPORTED], fault.error}
                continue
            self._entries[fault.uid] = _Entry(
                fault=fault,
                object_generation=_object_generation(fault.uid, jobs),
                retry_at=now + pause,
                pause_seconds=pause,
            )
        if len(faults) > MOST_REPORTED:
            log.error("scheduler_faults_not_listed", gangs=len(faults) - MOST_REPORTED)

    def recorder(self, stage: str, *, jobs: Mapping[str, Job], now: float) -> OnFault:
        """Return a function that takes an exception on one gang outside of the decisions.

        Args:
            stage: the part of the cycle, a label of the metric.
            jobs: all jobs by uid.
            now: seconds since the epoch.
        """

        def record(key: str, uid: str, error: Exception) -> None:
            self.take([fault_about(key, uid=uid, stage=stage, error=error)], jobs=jobs, now=now)

        return record


async def write_each(
    writes: Iterable[tuple[Job, Callable[[], Awaitable[bool]]]], *, on_fault: OnFault | None
) -> bool:
    """Write for several jobs at once. Return whether all of it is settled.

    Each write is made when its task runs: a leader that ends before leaves nothing half begun.

    Args:
        writes: jobs, and the write that returns whether it is settled.
        on_fault: takes an exception on one job; None: it is raised.

    Raises:
        NotLeader: this process may not write any more.
    """
    done = await asyncio.gather(
        *(_write_alone(job, write, on_fault=on_fault) for job, write in writes)
    )
    return all(done)


async def _write_alone(
    job: Job, write: Callable[[], Awaitable[bool]], *, on_fault: OnFault | None
) -> bool:
    try:
        return await write()
    except NotLeader:
        raise
    except StatusNotWrittenError:
        return True  # the job is paused: deciding again at once would not help
    except Exception as error:
        if on_fault is None:
            raise
        on_fault(job.key, job.uid, error)
        return True  # the job is set aside: deciding again at once would not help


def _described(fault: GangFault) -> dict[str, str]:
    """Return the fields of a log line about a fault."""
    return {
        "job": fault.key,
        "stage": fault.stage,
        "error": fault.error,
        "trace": fault.trace,
        "seed": fault.seed,
    }


def _object_generation(uid: str, jobs: Mapping[str, Job]) -> int | None:
    job = jobs.get(job_uid(uid))
    return None if job is None else job.object_generation
