"""Counters of incidents and GPU-seconds, from the difference between two statuses of a job.

Only durable statuses are counted, so a crash cannot undo what was counted; statuses written while
no operator ran are not counted later. A job's status moves GPU-seconds from `productive` to another
state when a recovery ends. A counter must not decrease, so it stays until the true sum exceeds it.

Example: productive 100 -> 70 (30 moved) -> 120: the counter shows 100, 100, 120.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction

from drumline.telemetry.metrics import Metrics
from drumline_api.incidents import GpuSeconds, IncidentStatus
from drumline_api.jobstatus import TrainingJobStatus

PHASES = ("detect", "decide", "replace", "rendezvous", "restore", "first_step")
STATES = ("starting", "productive", "repeated", "recovering")


class IncidentCounters:
    """Counts incidents and GPU-seconds of status writes.

    Args:
        metrics: holds the counters.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._true: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        self._shown: dict[tuple[str, str], Fraction] = defaultdict(Fraction)

    def observe(self, before: TrainingJobStatus, after: TrainingJobStatus, *, queue: str) -> None:
        """Count incidents that ended and GPU-seconds that were added from `before` to `after`.

        Args:
            before: the status before a write.
            after: the written status.
            queue: name of the job's queue.
        """
        known = {number for number, _ in _over(before)}
        for number, incident in _over(after):
            if number not in known:
                self._count(incident)
        self._book(before.gpu_seconds, after.gpu_seconds, queue=queue)

    def _count(self, incident: IncidentStatus) -> None:
        fault_class = str(incident.fault_class)
        tier = "" if incident.tier is None else str(incident.tier)
        self._metrics.recovery.incidents.labels(fault_class, tier).inc()
        self._metrics.recovery.steps_lost.labels(fault_class).inc(incident.steps_lost or 0)
        for phase in PHASES:
            spent = getattr(incident, f"{phase}_milliseconds")
            if spent is not None:
                self._metrics.recovery.incident_seconds.labels(phase, fault_class).observe(
                    spent / 1000
                )

    def _book(self, before: GpuSeconds | None, after: GpuSeconds | None, *, queue: str) -> None:
        if after is None:
            return
        share = after.share
        for state in STATES:
            key = queue, state
            had = getattr(after, state) - (getattr(before, state) if before else 0)
            self._true[key] += had * share
            grown = self._true[key] - self._shown[key]
            if grown > 0:
                self._metrics.recovery.gpu_seconds.labels(queue, state).inc(float(grown))
                self._shown[key] += grown


def _over(status: TrainingJobStatus) -> list[tuple[tuple[int, int], IncidentStatus]]:
    """Return the incidents whose recovery is over, with generation and attempt."""
    every = [*(status.earlier_incidents or ()), *filter(None, [status.last_incident])]
    return [
        ((incident.generation, incident.attempt), incident)
        for incident in every
        if incident.first_step_milliseconds is not None
    ]
