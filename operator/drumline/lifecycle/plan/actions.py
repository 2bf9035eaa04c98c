"""What a plan asks the controller to do, as values."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.api.trainingjob import TrainingJobStatus
from drumline.lifecycle.model.observed import PodFacts
from drumline_trainer.contract import GenerationRecord, Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateMembers:
    """Create the job's children where they are missing, then the pods with these indices."""

    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGenerations:
    """Delete the job's pods of these generations, gracefully, in one request."""

    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePods:
    """Delete these pods and no others, gracefully: members of the same births stay."""

    pods: tuple[PodFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRecord:
    """Hand the generation record to the store's agent."""

    record: GenerationRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectMembers:
    """Create the job's PodDisruptionBudget.

    Only when all members stand: the disruption controller writes a budget's status at every change
    of its pods, and a gang that is still starting changes many times.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Hand a notice, or its withdrawal, to the store's agent, which tells all members."""

    notice: Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """The job's time to live is over."""


Action = (
    CreateMembers
    | DeleteGenerations
    | DeletePods
    | PushRecord
    | ProtectMembers
    | Notify
    | DeleteJob
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """One reconcile: the status is written first; only when that held are the actions done."""

    status: TrainingJobStatus | None = None
    """None: nothing to write."""
    actions: tuple[Action, ...] = ()
    requeue_at: float | None = None
    """Look again at this time (seconds since the epoch) though nothing happened."""
