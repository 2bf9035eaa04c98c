"""Extract the fields of a TrainingJob that messages need. Pure.

All texts come from users. They are plain and bounded after this module.
"""

from __future__ import annotations

from typing import Final

import msgspec

from drumline.kube.codec import decoded
from drumline_api.objects.base import Metadata
from drumline_api.objects.custom import (
    StoredCondition,
    StoredIncidentStatus,
    StoredTrainingJob,
    StoredTrainingJobStatus,
)
from drumline_contract import plain

ANNOTATION_NOTIFY: Final = "drumline.dev/notify"
MOST_CHOICE_CHARACTERS: Final = 1024
_MOST_TEXT_CHARACTERS: Final = 300
_MOST_NAME_CHARACTERS: Final = 253
_STAYS_IDLE: Final = "StaysIdle"
_WAITS_FOR_VICTIMS: Final = "WaitingForVictims"
"""Reason with which nodes are also reserved for a job that waits for other jobs to leave."""
_TERMINAL: Final = frozenset(("Succeeded", "Failed"))


class Culprit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Culprit of the newest incident."""

    cause: str
    pod: str = ""
    node: str = ""
    rank: int | None = None


class NotifiableJob(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """View of a TrainingJob in the notifier's informer. Times are RFC 3339, or empty.

    Attributes:
        running_changed_at: transition time of its Running condition.
        idle_at: time since which it should be reported as idle. Empty: not idle.
        idle_message: the idle state with figures.
        is_moving: whether it left its nodes for other nodes that are reserved for it.
        lost_at: time at which it last lost its GPUs. Empty while it holds GPUs, or never had any.
        lost_reason: reason for the loss.
        lost_message: reason with figures and names.
        choice: annotation `drumline.dev/notify`.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    created_at: str = ""
    queue: str = ""
    user: str = ""
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    queued_at: str = ""
    admitted_at: str = ""
    started_at: str = ""
    finished_at: str = ""
    expected_start: str = ""
    expected_start_by: str = ""
    running_changed_at: str = ""
    idle_at: str = ""
    idle_message: str = ""
    is_moving: bool = False
    lost_at: str = ""
    lost_reason: str = ""
    lost_message: str = ""
    step: int | None = None
    total_steps: int | None = None
    restarts: int = 0
    culprit: Culprit | None = None
    choice: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether the job succeeded or failed permanently."""
        return self.phase in _TERMINAL


class _SeenJob(StoredTrainingJob, frozen=True):
    metadata: Metadata


SEEN_JOBS: Final = msgspec.json.Decoder(_SeenJob)


def notifiable_job(raw: bytes | msgspec.Raw) -> NotifiableJob:
    """Return the view of one TrainingJob.

    Raises:
        Undecodable: the object is not a TrainingJob.
    """
    job = decoded(SEEN_JOBS, raw)
    metadata, status = job.metadata, job.status
    # Conditions are read once here, so `events` needs no object of the API.
    admitted, running = _condition(status, "Admitted"), _condition(status, "Running")
    idle = _condition(status, "Idle")
    # An idle condition of another reason is about a short pause, which is not reported.
    if idle is not None and (idle.status, idle.reason) != ("True", _STAYS_IDLE):
        idle = None
    # Admitted=False keeps the time and the reason of the loss.
    lost = admitted if admitted is not None and admitted.status == "False" else None
    choice = (metadata.annotations or {}).get(ANNOTATION_NOTIFY, "")
    return NotifiableJob(
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        created_at=metadata.creation_timestamp or "",
        queue=_name(job.spec.queue),
        user=_name(job.spec.user),
        phase=_name(status.phase) or "Pending",
        reason=_name(status.reason),
        message=_text(status.message),
        queued_at=status.queued_at or "",
        admitted_at=status.admitted_at or "",
        started_at=status.started_at or "",
        finished_at=status.finished_at or "",
        expected_start=status.expected_start or "",
        expected_start_by=status.expected_start_by or "",
        running_changed_at=(running and running.last_transition_time) or "",
        idle_at=(idle and idle.last_transition_time) or "",
        idle_message=_text(idle.message) if idle is not None else "",
        # A job that waits for victims has nodes too, but it does not move.
        is_moving=status.nominated is not None and status.reason != _WAITS_FOR_VICTIMS,
        lost_at=(lost and lost.last_transition_time) or "",
        lost_reason=_name(lost.reason) if lost is not None else "",
        lost_message=_text(lost.message) if lost is not None else "",
        step=status.step,
        total_steps=status.total_steps,
        restarts=status.restarts or 0,
        culprit=_culprit(status.last_incident),
        # A cut choice could name another address, so a long one is dropped.
        choice=choice if len(choice) <= MOST_CHOICE_CHARACTERS else "",
    )


def _condition(status: StoredTrainingJobStatus, kind: str) -> StoredCondition | None:
    return next((each for each in status.conditions or () if each.type == kind), None)


def _culprit(incident: StoredIncidentStatus | None) -> Culprit | None:
    if incident is None:
        return None
    return Culprit(
        cause=_text(incident.cause),
        pod=_name(incident.pod),
        node=_name(incident.node),
        rank=incident.rank,
    )


def _text(text: str | None) -> str:
    return _bounded(text or "", _MOST_TEXT_CHARACTERS)


def _name(text: str | None) -> str:
    return _bounded(text or "", _MOST_NAME_CHARACTERS)


def _bounded(text: str, characters: int) -> str:
    """Return one line of limited length, with a mark if it was cut."""
    # Four times the length before cleaning, because escapes shrink when they are removed.
    line = plain(text[: 4 * characters])
    return line if len(line) <= characters else f"{line[: characters - 3]}..."
