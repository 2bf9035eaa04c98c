"""Incidents and GPU-seconds, counted from one status to the next."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.telemetry.incidents import IncidentCounters
from drumline.telemetry.metrics import Metrics
from drumline_api.jobstatus import TrainingJobStatus

AT = "2026-01-01T00:00:00Z"
NOTHING = TrainingJobStatus()


def incident(attempt: int, **fields: Any) -> dict[str, Any]:
    return {
        "generation": 1,
        "attempt": attempt,
        "faultClass": "Hang",
        "cause": "rank 3 stood still",
        "faultAt": AT,
        "detectMilliseconds": 2000,
        **fields,
    }


OVER = {
    "decideMilliseconds": 10,
    "replaceMilliseconds": 20,
    "rendezvousMilliseconds": 30,
    "restoreMilliseconds": 40,
    "firstStepMilliseconds": 50,
    "stepsLost": 2,
    "tier": "Memory",
}


def status(*incidents: dict[str, Any], **gpu_seconds: int) -> TrainingJobStatus:
    fields: dict[str, Any] = {"gpuSeconds": {"until": AT, **gpu_seconds}} if gpu_seconds else {}
    if incidents:
        last, *earlier = incidents
        fields |= {"lastIncident": last, "earlierIncidents": earlier or None}
    return TrainingJobStatus.model_validate(fields)


class Counted:
    def __init__(self) -> None:
        self.metrics = Metrics()
        self.ledger = IncidentCounters(self.metrics)

    def __call__(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


@pytest.fixture
def counted() -> Counted:
    return Counted()


def test_an_incident_counts_once_when_its_recovery_is_over(counted: Counted) -> None:
    begun, over = status(incident(1)), status(incident(1, **OVER))
    counted.ledger.observe(NOTHING, begun, queue="nlp")
    assert counted("drumline_incidents_total", **{"class": "Hang", "tier": "Memory"}) == 0
    counted.ledger.observe(begun, over, queue="nlp")
    counted.ledger.observe(over, over, queue="nlp")
    assert counted("drumline_incidents_total", **{"class": "Hang", "tier": "Memory"}) == 1
    assert counted("drumline_incident_steps_lost_total", **{"class": "Hang"}) == 2
    phases = {
        phase: counted("drumline_incident_seconds_sum", **{"phase": phase, "class": "Hang"})
        for phase in ("detect", "decide", "replace", "rendezvous", "restore", "first_step")
    }
    assert list(phases.values()) == [2.0, 0.01, 0.02, 0.03, 0.04, 0.05]


def test_incidents_that_were_folded_together_count_each(counted: Counted) -> None:
    both = status(incident(2, **OVER), incident(1, **OVER))
    counted.ledger.observe(status(incident(1)), both, queue="nlp")
    counted.ledger.observe(
        both, status(incident(3), incident(2, **OVER), incident(1, **OVER)), queue="nlp"
    )
    assert counted("drumline_incidents_total", **{"class": "Hang", "tier": "Memory"}) == 2


def test_gpu_seconds_that_move_to_another_state_are_counted_there_and_never_twice(
    counted: Counted,
) -> None:
    def productive() -> float:
        return counted("drumline_queue_gpu_seconds_total", queue="nlp", state="productive")

    first = status(productive=100)
    counted.ledger.observe(NOTHING, first, queue="nlp")
    moved = status(productive=60, recovering=40)
    counted.ledger.observe(first, moved, queue="nlp")
    assert (
        productive(),
        counted("drumline_queue_gpu_seconds_total", queue="nlp", state="recovering"),
    ) == (
        100,
        40,
    )
    counted.ledger.observe(moved, status(productive=90, recovering=40), queue="nlp")
    assert productive() == 100
    counted.ledger.observe(status(productive=90), status(productive=130), queue="nlp")
    assert productive() == 130


def test_gpu_seconds_on_parts_count_as_what_they_are_of_a_gpu() -> None:
    metrics = Metrics()
    counters = IncidentCounters(metrics)
    unit = {"parts": 2, "partsPerGpu": 7}
    for before, after in ((0, 10), (10, 35)):
        counters.observe(
            status(productive=before, **unit), status(productive=after, **unit), queue="nlp"
        )
    name, labels = "drumline_queue_gpu_seconds_total", {"queue": "nlp", "state": "productive"}
    assert metrics.registry.get_sample_value(name, labels) == pytest.approx(10)
