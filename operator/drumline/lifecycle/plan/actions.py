"""Actions of a plan for the controller, as values."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from drumline.lifecycle.model.members import GangMember
from drumline.lifecycle.model.observed import PodFacts
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import GenerationRecord, Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateMembers:
    """Create the job's missing children, then the pods with these indices."""

    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGenerations:
    """Delete all pods of these generations of the job, gracefully, in one request."""

    generations: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletePods:
    """Delete only these pods, gracefully. Other pods of their generations stay."""

    pods: tuple[PodFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRecord:
    """Send the generation record to the store's agent."""

    record: GenerationRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectMembers:
    """Create the job's own PodDisruptionBudget, or change the number of evictable members.

    Only once all members run. The disruption controller writes a budget's status at every change of
    its pods, and the pods of a starting gang change many times.
    """

    evictable: int = 0
    """Members on nodes with an announced disruption that may be evicted now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelPods:
    """Put pods under their namespace's PodDisruptionBudget, or release them from it.

    The labels are visible on the pods, so the operator need not remember them.
    """

    protect: tuple[PodFacts, ...] = ()
    release: tuple[PodFacts, ...] = ()
    """Pods that a drain may evict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPodEvents:
    """Read the events of pods that do not start. The kubelet explains the reason there.

    Events are not watched: a cluster writes more events than anything else, and only a slow start
    needs some.
    """

    pods: tuple[PodFacts, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreChildren:
    """Create the job's Secret again after it was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notify:
    """Send a notice, or its withdrawal, to the store's agent, which forwards it to all members."""

    notice: Notice


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteJob:
    """Delete the job, because its ttlSecondsAfterFinished is over."""


Action = (
    CreateMembers
    | DeleteGenerations
    | DeletePods
    | PushRecord
    | ProtectMembers
    | LabelPods
    | ReadPodEvents
    | RestoreChildren
    | Notify
    | DeleteJob
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """One reconcile: the status is written first, and actions follow only if that succeeded."""

    status: TrainingJobStatus | None = None
    """None if there is nothing to write."""
    actions: tuple[Action, ...] = ()
    requeue_at: float | None = None
    """Time of the next plan without an event (seconds since the epoch)."""


def delete_actions(
    pods: Iterable[PodFacts], *, members: Collection[GangMember] = ()
) -> list[Action]:
    """Return the actions that delete these pods, except pods that are terminating already.

    One request deletes a whole generation in which no member's pod was created.

    Args:
        pods: pods to delete. None of them represents a member.
        members: members whose pods stay.
    """
    # A generation with a member's pod cannot be deleted as a whole: its other pods go one by one.
    kept_generations = {member.pod_generation for member in members}
    live = [pod for pod in pods if not pod.terminating]
    generations = {pod.generation for pod in live} - kept_generations
    single = tuple(pod for pod in live if pod.generation in kept_generations)
    actions: list[Action] = []
    if generations:
        actions.append(DeleteGenerations(generations=tuple(sorted(generations))))
    if single:
        actions.append(DeletePods(pods=single))
    return actions
