"""Conditions of a status, and the summary (phase, reason, message) of the most important one.

A condition keeps its transition time while its status stays the same, as the API conventions
require (metav1.Condition).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.conditions import Condition, ConditionType, Phase
from drumline_api.jobstatus import TrainingJobStatus

Truth = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Value, reason and message of a condition."""

    truth: Truth
    reason: str
    message: str = ""


def next_condition(
    before: Iterable[Condition],
    kind: ConditionType,
    statement: Statement,
    *,
    generation: int,
    now: float,
) -> Condition:
    """Return the next condition of this type. It keeps its time while its truth stays.

    Args:
        before: conditions of the object.
        kind: type of the condition.
        statement: value, reason and message of the condition.
        generation: metadata.generation of the object.
        now: seconds since the epoch.
    """
    # The transition time changes only with the status of the condition, not with its message.
    known = next((condition for condition in before if condition.type == kind), None)
    stays = known is not None and known.status == statement.truth
    return Condition(
        type=kind.value,
        status=statement.truth,
        reason=statement.reason,
        message=statement.message[:2048],
        last_transition_time=known.last_transition_time if known and stays else timestamp(now),
        observed_generation=generation,
    )


def condition(status: TrainingJobStatus, kind: ConditionType) -> Condition | None:
    """Return the condition of this type, or None if it was never set."""
    return next((c for c in status.conditions or [] if c.type == kind), None)


def is_true(status: TrainingJobStatus, kind: ConditionType) -> bool:
    """Return whether the condition is set and True."""
    current = condition(status, kind)
    return current is not None and current.status == "True"


def with_condition(  # noqa: PLR0917 - one line per condition in the transitions reads as a table
    status: TrainingJobStatus,
    job: Job,
    kind: ConditionType,
    truth: Truth,
    reason: str,
    message: str,
    now: float,
) -> TrainingJobStatus:
    """Return the status with this condition. Its transition time changes only with its truth.

    Args:
        status: the status to change.
        job: gives the observed generation.
        kind: type of the condition.
        truth: True, False or Unknown.
        reason: reason for `kubectl get` and the event.
        message: text for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    entry = next_condition(
        status.conditions or (),
        kind,
        Statement(truth=truth, reason=str(reason), message=message),
        generation=job.object_generation,
        now=now,
    )
    unchanged = [c for c in status.conditions or [] if c.type != kind]
    return changed(status, conditions=sorted([*unchanged, entry], key=lambda c: c.type))


def cleared(
    status: TrainingJobStatus, job: Job, kind: ConditionType, reason: str, *, now: float
) -> TrainingJobStatus:
    """Return the status with this condition set to False if it was True.

    Args:
        status: the status to change.
        job: gives the observed generation.
        kind: type of the condition.
        reason: reason for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    return (
        with_condition(status, job, kind, "False", reason, "", now)
        if is_true(status, kind)
        else status
    )


def with_summary(
    status: TrainingJobStatus, phase: Phase, reason: str, message: str
) -> TrainingJobStatus:
    """Return the status with phase, reason and message as printed by `kubectl get`.

    Args:
        status: the status to change.
        phase: the new phase.
        reason: reason for `kubectl get` and the event.
        message: text for `kubectl get` and the event.
    """
    return changed(status, phase=phase, reason=str(reason), message=message[:2048])


def changed(status: TrainingJobStatus, **fields: Any) -> TrainingJobStatus:
    """Return a copy of the status with these fields changed."""
    return status.model_copy(update=fields)
