"""The ledger of a job's faults: which were counted, what the last ones cost.

Restarts in place are numbered (generation, attempt) by the agents, attempts from 1 on; each number
is counted exactly once, whenever the operator reads of it. Attempt 0 is the operator's own: it
opens and charges that incident in the write that gives members up, and the agents only complete it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.api.incidents import IncidentNumber, IncidentStatus
from drumline.api.jobstatus import TrainingJobStatus
from drumline.lifecycle.incidents import timeline as of
from drumline.lifecycle.incidents.budgets import OWN_FAULTS, with_charge
from drumline.lifecycle.incidents.gpu_seconds import reclassified, with_elapsed
from drumline.lifecycle.model.conditions import changed
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.observed import Observed
from drumline_trainer.contract import FaultClass, Incident

MAX_EARLIER: Final = 7
MAX_CAUSE_CHARS: Final = 1024
MAX_FURTHER_CHARS: Final = 300
"""Of the cause of another fault in the same incident."""
Number = tuple[int, int]


def with_incident(status: TrainingJobStatus, entry: IncidentStatus) -> TrainingJobStatus:
    """The status with a new incident, the newest number last.

    What happens on the way to the same membership is the same incident: it is named in it. An
    incident counts how many of its kind came in a row without a step between them.
    """
    last = status.last_incident
    known = [last, *(status.earlier_incidents or ())] if last is not None else []
    newer = [one for one in known if _number(one) > _number(entry)]
    older = [one for one in known if _number(one) < _number(entry)]
    same = [_naming(one, entry.cause) for one in known if _number(one) == _number(entry)]
    if not same:
        same = [entry.model_copy(update={"repeats": _repeats(older, entry)})]
    newest, *earlier = [*newer, *same, *older]
    return changed(status, last_incident=newest, earlier_incidents=earlier[:MAX_EARLIER] or None)


def with_boundary_passed(
    status: TrainingJobStatus, boundary: int, *, now: float
) -> TrainingJobStatus:
    """The status whose last incident, if it is the operator's and not over, got so far."""
    last = status.last_incident
    if last is None or last.attempt or of.is_over(last):
        return status
    return changed(status, last_incident=of.with_boundary(last, boundary, at=now))


def with_agent_incidents(
    job: Job, observed: Observed, *, now: float, include_running: bool = False
) -> TrainingJobStatus:
    """The job's status with what the agents' log says that it does not hold yet.

    A recovery under way is counted once it is over, or another one took its place.

    Args:
        job: the job.
        observed: with the agents' log.
        now: seconds since the epoch.
        include_running: count recoveries in progress too, as their gang is about to be given up.
    """
    counted, told = _uncounted(job, observed, include_running=include_running), _told(job, observed)
    if not counted and told is None:
        return job.status
    status, members = with_elapsed(job, now=now), members_of(job.status)
    for incident in counted:
        for fault_class in incident.fault_classes:
            status = with_charge(status, job.spec.recovery, fault_class, at=now)
        entry = of.agent_incident(incident, job=job, members=members, now=now)
        number = IncidentNumber(generation=incident.generation, attempt=incident.attempt)
        status = changed(with_incident(status, entry), folded_incident=number)
        status = _booked(job, status, entry)
    last = status.last_incident
    if told is None or last is None or _number(last) != (told.generation, told.attempt):
        return status
    entry = of.merged_with_agents(last, told, now=now)
    return _booked(job, changed(status, last_incident=entry), entry)


def with_step_seen(
    job: Job, status: TrainingJobStatus, step: int, *, now: float
) -> TrainingJobStatus:
    """The status after training is seen at `step`: an open incident of ours is over by then.

    Fresh agents have no log of what was before them.
    """
    last = status.last_incident
    if last is None or last.attempt or of.is_over(last) or last.replace_milliseconds is None:
        return status
    saved = job.status.checkpoint.step if job.status.checkpoint else 0
    restored = last.restored_step if last.restored_step is not None else saved
    if step <= restored:
        return status
    lost = max(0, (last.failed_step or 0) - restored)
    entry = of.with_boundary(last, of.FIRST_STEP, at=now).model_copy(
        update={"restored_step": restored, "steps_lost": lost}
    )
    return _booked(job, changed(status, last_incident=entry), entry)


def _uncounted(job: Job, observed: Observed, *, include_running: bool) -> list[Incident]:
    known = job.status.folded_incident
    newest_known = (known.generation, known.attempt) if known is not None else (0, 0)
    log = sorted(observed.incidents, key=lambda one: (one.generation, one.attempt))
    current = (job.status.generation or 0, 0)
    newest = (log[-1].generation, log[-1].attempt) if log else (0, 0)
    return [
        one
        for one in log
        if one.attempt
        and (number := (one.generation, one.attempt)) > newest_known
        and one.generation <= current[0]
        and (include_running or one.first_step_at is not None or number < max(newest, current))
    ]


def _told(job: Job, observed: Observed) -> Incident | None:
    """What the agents know of the job's last incident, where that is news of its end."""
    last = job.status.last_incident
    if last is None or of.is_over(last):
        return None
    return next(
        (
            one
            for one in observed.incidents
            if (one.generation, one.attempt) == _number(last) and one.first_step_at is not None
        ),
        None,
    )


def _booked(job: Job, status: TrainingJobStatus, entry: IncidentStatus) -> TrainingJobStatus:
    """GPU-seconds of a recovery in place, and of the steps it undid, were no progress."""
    if not of.is_over(entry):
        return status
    gpus = job.size * job.spec.gpus_per_node
    in_place = of.total_milliseconds(entry) / 1000 if entry.attempt else 0.0
    again = (entry.steps_lost or 0) * _step_seconds(job)
    return reclassified(status, recovering=in_place * gpus, repeated=again * gpus)


def _step_seconds(job: Job) -> float:
    """As the last reported speed says."""
    trainer, speed = job.spec.trainer, job.status.tokens_per_second
    if trainer is None or not speed:
        return 0.0
    return trainer.global_batch_size * trainer.sequence_length / speed


def _naming(entry: IncidentStatus, cause: str) -> IncidentStatus:
    """The entry with one more cause in its sentence: the first and the newest keep their place."""
    if cause in entry.cause:
        return entry
    more = f"; {cause[:MAX_FURTHER_CHARS]}"
    return entry.model_copy(update={"cause": entry.cause[: MAX_CAUSE_CHARS - len(more)] + more})


def _repeats(older: Sequence[IncidentStatus], entry: IncidentStatus) -> int:
    """How many in a row, this one included, came without a step between them.

    Either the program answers for all of them, or the agents gave up over what lies between the
    members. In such a row restarting does not help.
    """
    last = older[0] if older else None
    if last is None or entry.failed_step is None or last.failed_step is None:
        return 1
    if entry.fault_class is FaultClass.INFRASTRUCTURE and entry.attempt == 0:
        return 1 + _given_up(older, step=entry.failed_step)
    own = entry.fault_class in OWN_FAULTS and last.fault_class in OWN_FAULTS
    return last.repeats + 1 if own and entry.failed_step <= last.failed_step else 1


def _given_up(older: Sequence[IncidentStatus], *, step: int) -> int:
    """How often new pods came for lost peers, newest first, since a step was finished."""
    count = 0
    for one in older:
        still = one.failed_step is not None and step <= one.failed_step and not of.is_over(one)
        if one.fault_class is not FaultClass.INFRASTRUCTURE or not still:
            break
        count += one.attempt == 0
    return count


def _number(entry: IncidentStatus) -> Number:
    return entry.generation, entry.attempt
