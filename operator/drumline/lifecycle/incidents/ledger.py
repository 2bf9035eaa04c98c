"""The ledger of a job's incidents: which were charged, and the cost of the last ones.

Agents number restarts in place by (generation, attempt), with attempts from 1. Each number is
charged exactly once, whenever the operator reads about it. Attempt 0 belongs to the operator. It
opens and charges that incident in the same write that gives members up, and the agents only add the
times that they measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.lifecycle.incidents import timeline
from drumline.lifecycle.incidents.gpu_seconds import reclassified, with_elapsed
from drumline.lifecycle.incidents.restart_budgets import OWN_FAULTS, with_charge
from drumline.lifecycle.model.conditions import changed
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.observed import Observed
from drumline_api.incidents import IncidentNumber, IncidentStatus
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import FaultClass, Incident

MAX_EARLIER: Final = 7
MAX_CAUSE_CHARS: Final = 1024
MAX_FURTHER_CHARS: Final = 300
"""Longest part for the cause of another fault in the same incident."""
Number = tuple[int, int]


def with_incident(status: TrainingJobStatus, entry: IncidentStatus) -> TrainingJobStatus:
    """Return the status with this incident in its ledger, ordered by number, newest first.

    Further faults before the same generation runs belong to the same incident, and their cause is
    added to it. A new incident counts how many of its kind occurred in a row without a training
    step in between (`repeats`).
    """
    last = status.last_incident
    # Newer, equal and older numbers. A late report of an old incident must not become the newest.
    known = [last, *(status.earlier_incidents or ())] if last is not None else []
    newer = [incident for incident in known if _number(incident) > _number(entry)]
    older = [incident for incident in known if _number(incident) < _number(entry)]
    same = [
        _with_cause(incident, entry.cause)
        for incident in known
        if _number(incident) == _number(entry)
    ]
    if not same:
        same = [entry.model_copy(update={"repeats": _repeats(older, entry)})]
    newest, *earlier = [*newer, *same, *older]
    return changed(status, last_incident=newest, earlier_incidents=earlier[:MAX_EARLIER] or None)


def with_boundary_passed(
    status: TrainingJobStatus, boundary: int, *, now: float
) -> TrainingJobStatus:
    """Return the status after the operator's open incident reached this boundary.

    Unchanged without an open incident of the operator.

    Args:
        status: the job's present status.
        boundary: number of the recovery phase that ended.
        now: Unix time in seconds.
    """
    last = status.last_incident
    if last is None or last.attempt or timeline.is_over(last):
        return status
    return changed(status, last_incident=timeline.with_boundary(last, boundary, at=now))


def with_agent_incidents(
    job: Job, observed: Observed, *, now: float, include_running: bool = False
) -> TrainingJobStatus:
    """Return the job's status with the incidents of the agents' log that it does not contain.

    A recovery in progress is charged once it is over or another one has replaced it.

    Args:
        job: the job.
        observed: contains the agents' log.
        now: seconds since the epoch.
        include_running: also count recoveries in progress, because their gang will be given up.
    """
    # Phase 1: what is new in the log. Most reports contain nothing new.
    uncharged = _uncharged(job, observed, include_running=include_running)
    completion = _completion_of_last(job, observed)
    if not uncharged and completion is None:
        return job.status
    # Phase 2: charge each incident, oldest first, and remember its number in the same write.
    status, members = with_elapsed(job, now=now), members_of(job.status)
    for incident in uncharged:
        for fault_class in incident.fault_classes:
            status = with_charge(status, job.spec.recovery, fault_class, at=now)
        entry = timeline.agent_incident(incident, job=job, members=members, now=now)
        number = IncidentNumber(generation=incident.generation, attempt=incident.attempt)
        status = changed(with_incident(status, entry), folded_incident=number)
        status = _reclassified(job, status, entry)
    # Phase 3: the agents' times for the operator's own open incident.
    last = status.last_incident
    if completion is None or last is None or _number(last) != _number_of(completion):
        return status
    entry = timeline.merged_with_agents(last, completion, job=job, now=now)
    return _reclassified(job, changed(status, last_incident=entry), entry)


def with_step_seen(
    job: Job, status: TrainingJobStatus, step: int, *, now: float
) -> TrainingJobStatus:
    """Return the status after training reached `step`. The operator's open incident ends.

    Agents of new pods have no log of incidents before their start, so no agent reports the end.

    Args:
        job: the job with its present status.
        status: the status to change.
        step: newest step that the agents reported.
        now: Unix time in seconds.
    """
    last = status.last_incident
    if last is None or last.attempt or timeline.is_over(last) or last.replace_milliseconds is None:
        return status
    # Without a report, the ranks restored the last checkpoint.
    saved = job.status.checkpoint.step if job.status.checkpoint else 0
    restored = last.restored_step if last.restored_step is not None else saved
    if step <= restored:
        return status
    lost = max(0, (last.failed_step or 0) - restored)
    entry = timeline.with_boundary(last, timeline.FIRST_STEP, at=now).model_copy(
        update={"restored_step": restored, "steps_lost": lost}
    )
    return _reclassified(job, changed(status, last_incident=entry), entry)


def _uncharged(job: Job, observed: Observed, *, include_running: bool) -> list[Incident]:
    """Return restarts in place that are not charged yet, oldest first.

    Example: (3, 1) is charged and the log contains (3, 1), (3, 2), (3, 3). (3, 3) is in progress.
    Only (3, 2) is returned. With `include_running` (3, 3) is returned too.
    """
    known = job.status.folded_incident
    # Numbers only grow, so one number in the status tells everything that was charged.
    newest_charged = (known.generation, known.attempt) if known is not None else (0, 0)
    log = sorted(observed.incidents, key=_number_of)
    current = (job.status.generation or 0, 0)
    newest = _number_of(log[-1]) if log else (0, 0)
    return [
        incident
        for incident in log
        if incident.attempt
        and (number := _number_of(incident)) > newest_charged
        and incident.generation <= current[0]
        and (include_running or incident.first_step_at is not None or number < max(newest, current))
    ]


def _completion_of_last(job: Job, observed: Observed) -> Incident | None:
    """Return the agents' entry of the last incident, if it ended there but not in the status."""
    last = job.status.last_incident
    if last is None or timeline.is_over(last):
        return None
    return next(
        (
            incident
            for incident in observed.incidents
            if _number_of(incident) == _number(last) and incident.first_step_at is not None
        ),
        None,
    )


def _reclassified(job: Job, status: TrainingJobStatus, entry: IncidentStatus) -> TrainingJobStatus:
    """Move the GPU-seconds of a recovery in place and of its lost steps out of `productive`."""
    if not timeline.is_over(entry):
        return status
    gpus = job.gpus
    # A restart with new pods counts as recovering in the status already, one in place does not.
    in_place = timeline.total_milliseconds(entry) / 1000 if entry.attempt else 0.0
    again = (entry.steps_lost or 0) * _step_seconds(job)
    return reclassified(status, recovering=in_place * gpus, repeated=again * gpus)


def _step_seconds(job: Job) -> float:
    """Return the seconds of a training step at the last reported speed, or 0 without one."""
    trainer, speed = job.spec.trainer, job.status.tokens_per_second
    if trainer is None or not speed:
        return 0.0
    return trainer.global_batch_size * trainer.sequence_length / speed


def _with_cause(entry: IncidentStatus, cause: str) -> IncidentStatus:
    """Add a cause to the incident's sentence. The first and the newest cause always fit."""
    if cause in entry.cause:
        return entry
    more = f"; {cause[:MAX_FURTHER_CHARS]}"
    return entry.model_copy(update={"cause": entry.cause[: MAX_CAUSE_CHARS - len(more)] + more})


def _repeats(older: Sequence[IncidentStatus], entry: IncidentStatus) -> int:
    """Return the number of incidents in a row without a training step in between.

    It includes this one. Counted are rows of faults of the program, and rows in which the agents
    gave up because members lost each other. In such a row, restarting does not help.
    """
    last = older[0] if older else None
    if last is None or entry.failed_step is None or last.failed_step is None:
        return 1
    # Agents give up after lost peers: count how often pods were replaced for it.
    if entry.fault_class is FaultClass.INFRASTRUCTURE and entry.attempt == 0:
        return 1 + _given_up(older, step=entry.failed_step)
    own = entry.fault_class in OWN_FAULTS and last.fault_class in OWN_FAULTS
    return last.repeats + 1 if own and entry.failed_step <= last.failed_step else 1


def _given_up(older: Sequence[IncidentStatus], *, step: int) -> int:
    """Return how often pods were replaced for lost peers since the last training step."""
    count = 0
    for incident in older:
        failed = incident.failed_step
        open_still = failed is not None and step <= failed and not timeline.is_over(incident)
        if incident.fault_class is not FaultClass.INFRASTRUCTURE or not open_still:
            break
        count += incident.attempt == 0
    return count


def _number(entry: IncidentStatus) -> Number:
    return entry.generation, entry.attempt


def _number_of(incident: Incident) -> Number:
    return incident.generation, incident.attempt
