"""Incidents and GPU-seconds, counted from one status of a job to the next.

What is counted was durable first, so nothing is counted that a crash could undo; what an operator
misses while it is away is not made up for. The accounts of a job move seconds from `productive` to
where they turn out to belong: a counter must not fall, so it waits until the true sum is past it.
"""

from __future__ import annotations

from collections import defaultdict

from drumline.api.incidents import GpuSeconds, IncidentStatus
from drumline.api.jobstatus import TrainingJobStatus
from drumline.telemetry.metrics import Metrics

PHASES = ("detect", "decide", "replace", "rendezvous", "restore", "first_step")
STATES = ("starting", "productive", "repeated", "recovering")


class IncidentCounters:
    """Counts what status writes say.

    Args:
        metrics: where the counters are.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._true: dict[str, int] = defaultdict(int)
        self._shown: dict[str, int] = defaultdict(int)

    def observe(self, before: TrainingJobStatus, after: TrainingJobStatus) -> None:
        """Count what is true of a job now and was not before."""
        known = {number for number, _ in _over(before)}
        for number, incident in _over(after):
            if number not in known:
                self._count(incident)
        self._book(before.gpu_seconds, after.gpu_seconds)

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

    def _book(self, before: GpuSeconds | None, after: GpuSeconds | None) -> None:
        if after is None:
            return
        for state in STATES:
            self._true[state] += getattr(after, state) - (getattr(before, state) if before else 0)
            grown = self._true[state] - self._shown[state]
            if grown > 0:
                self._metrics.recovery.gpu_seconds.labels(state).inc(grown)
                self._shown[state] += grown


def _over(status: TrainingJobStatus) -> list[tuple[tuple[int, int], IncidentStatus]]:
    """The incidents of which the recovery is over, by number."""
    every = [*(status.earlier_incidents or ()), *filter(None, [status.last_incident])]
    return [
        ((one.generation, one.attempt), one)
        for one in every
        if one.first_step_milliseconds is not None
    ]
