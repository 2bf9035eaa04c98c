"""Remember the gangs on which the scheduler raised an exception, and set them aside for some time.

A cycle that meets such a gang decides twice (`scheduling.faults`). So the gang is set aside for a
minute, then for twice as long after each further exception, up to ten minutes. A change of the
job's spec ends that at once. The memory is the process's: a new leader tries each gang again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from drumline.controller.status.job_events import JobEvents
from drumline.kube.errors import NotLeader
from drumline.lifecycle.model.job import Job
from drumline.scheduling.decisions import GangFault
from drumline.scheduling.faults import fault_about, message_of
from drumline.scheduling.model import job_uid
from drumline.telemetry import logs
from drumline.telemetry.metrics import Metrics

log = logs.get("drumline.controller.scheduler.fault_memory")

FIRST_SECONDS: Final = 60.0
LONGEST_SECONDS: Final = 600.0
FORGOTTEN_SECONDS: Final = 3600.0
"""A gang that raised nothing for so long after its last try begins at `FIRST_SECONDS` again."""


OnFault = Callable[[str, str, Exception], None]
"""Takes an exception on one job, by key and uid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    fault: GangFault
    object_generation: int | None
    """Of the job's spec; None if it is no TrainingJob."""
    retry_at: float
    pause_seconds: float


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
        """By uid of the gang."""

    def set_aside(self, jobs: Mapping[str, Job], *, now: float) -> tuple[GangFault, ...]:
        """Return the faults of the gangs that the next cycle must not try, by uid.

        Args:
            jobs: all jobs by uid.
            now: seconds since the epoch.
        """
        for uid, entry in list(self._entries.items()):
            changed = entry.object_generation != _object_generation(uid, jobs)
            if changed or now > entry.retry_at + FORGOTTEN_SECONDS:
                del self._entries[uid]
        return tuple(
            self._entries[uid].fault
            for uid in sorted(self._entries)
            if now < self._entries[uid].retry_at
        )

    @property
    def retry_at(self) -> float | None:
        """When the first gang is tried again (seconds since the epoch)."""
        return min((entry.retry_at for entry in self._entries.values()), default=None)

    def take(
        self, faults: Iterable[GangFault], *, jobs: Mapping[str, Job], now: float
    ) -> tuple[GangFault, ...]:
        """Remember the faults of a cycle, count and report them. Return the new ones.

        Args:
            faults: of the cycle, those of gangs that were set aside among them.
            jobs: all jobs by uid.
            now: seconds since the epoch.
        """
        fresh: list[GangFault] = []
        for fault in faults:
            before = self._entries.get(fault.uid)
            if before is not None and now < before.retry_at:
                continue
            pause = FIRST_SECONDS if before is None else before.pause_seconds * 2
            pause = min(pause, LONGEST_SECONDS)
            self._metrics.faults.raised.labels(stage=fault.stage).inc()
            log.error(
                "scheduler_fault",
                job=fault.key,
                stage=fault.stage,
                error=fault.error,
                trace=fault.trace,
                capture=fault.seed,
                retry_in_seconds=pause,
            )
            if before is None:
                fresh.append(fault)
                job = jobs.get(job_uid(fault.uid))
                if job is not None:
                    self._job_events.scheduler_failed(job, message=message_of(fault))
            if fault.uid:
                self._entries[fault.uid] = _Entry(
                    fault=fault,
                    object_generation=_object_generation(fault.uid, jobs),
                    retry_at=now + pause,
                    pause_seconds=pause,
                )
        return tuple(fresh)

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


async def alone(job: Job, writing: Awaitable[bool], *, on_fault: OnFault | None) -> bool:
    """Await what is written for one job. Return whether it is settled.

    Args:
        job: whose status is written.
        writing: returns whether it is settled.
        on_fault: takes an exception; None: it is raised.

    Raises:
        NotLeader: this process may not write any more.
    """
    try:
        return await writing
    except NotLeader:
        raise
    except Exception as error:
        if on_fault is None:
            raise
        on_fault(job.key, job.uid, error)
        return True  # the job is set aside: deciding again at once would not help


def _object_generation(uid: str, jobs: Mapping[str, Job]) -> int | None:
    job = jobs.get(job_uid(uid))
    return None if job is None else job.object_generation
