"""The timeline of a job: waiting, starting, running, recovering; as far as its status knows.

Status keeps the times of the current placement, and of those before it, after a preemption or a
suspension, when they held GPUs (`gpuSeconds.stays`): these are spans named `EARLIER`. Where an
older operator kept no stays, all that was before an incident is one such span.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from drumline_api.conditions import ConditionType
from drumline_api.trainingjob import TrainingJobStatus
from drumline_cli.formatting import moment
from drumline_cli.report.model import IncidentReport, TimelineSpan

WAITING: Final = "Waiting"
STARTING: Final = "Starting"
RUNNING: Final = "Running"
RECOVERING: Final = "Recovering"
SUSPENDED: Final = "Suspended"
EARLIER: Final = "Earlier placements"


def timeline(
    status: TrainingJobStatus,
    *,
    created_at: float | None,
    incidents: Sequence[IncidentReport],
    now: float,
) -> tuple[TimelineSpan, ...]:
    """Return the spans in order, without gaps. Empty while nothing is known.

    Args:
        status: status of the job.
        created_at: Unix time of the job's creation.
        incidents: incidents in order of time.
        now: Unix time in seconds.
    """
    # Phase 1: placements and stays, in the order of time.
    stays = _stays(status)
    placements = [
        part
        for span in _placements(status, created_at=created_at, now=now)
        for part in _with_stays(span, stays)
        if _lasts(part)
    ]
    # An old status has no stays, but incidents prove an earlier placement.
    if placements and not stays and incidents and incidents[-1].at < placements[0].ends_at:
        first = placements[0]
        if first.state == WAITING:
            placements[0] = TimelineSpan(
                state=EARLIER, begins_at=first.begins_at, ends_at=first.ends_at
            )
    # Phase 2: cut recoveries out of the running spans.
    return tuple(part for span in placements for part in _cut(span, incidents))


def _placements(
    status: TrainingJobStatus, *, created_at: float | None, now: float
) -> Iterator[TimelineSpan]:
    queued = moment(status.queued_at) or created_at
    if queued is None:
        return
    admitted, started = moment(status.admitted_at), moment(status.started_at)
    released, after = _released(status)
    # The last end is the finish, the release, or now.
    ends = moment(status.finished_at) or released or now
    if admitted is None:
        yield TimelineSpan(state=after, begins_at=queued, ends_at=ends)
        return
    # A preempted job is queued again, after its first admission.
    if created_at is not None:
        queued = min(queued, created_at) if queued >= admitted else queued
    yield TimelineSpan(state=WAITING, begins_at=queued, ends_at=admitted)
    # A job with steps has started, even if the time is unknown.
    if started is None and status.step:
        started = admitted
    if started is None:
        yield TimelineSpan(state=STARTING, begins_at=admitted, ends_at=ends)
    else:
        yield TimelineSpan(state=STARTING, begins_at=admitted, ends_at=started)
        yield TimelineSpan(state=RUNNING, begins_at=started, ends_at=ends)
    if released is not None and status.finished_at is None:
        yield TimelineSpan(state=after, begins_at=released, ends_at=now)


def _released(status: TrainingJobStatus) -> tuple[float | None, str]:
    """Return the time at which a job released its nodes, and its state since then."""
    if status.assignment is not None:
        return None, WAITING
    conditions = {condition.type: condition for condition in status.conditions or []}
    for kind, truth, state in (
        (ConditionType.SUSPENDED, "True", SUSPENDED),
        (ConditionType.ADMITTED, "False", WAITING),
    ):
        condition = conditions.get(kind)
        if condition is not None and condition.status == truth:
            return moment(condition.last_transition_time), state
    return None, WAITING


def _stays(status: TrainingJobStatus) -> list[tuple[float, float]]:
    """Return the periods in which a job held GPUs."""
    kept = (status.gpu_seconds and status.gpu_seconds.stays) or ()
    bounds = ((moment(stay.since), moment(stay.until)) for stay in kept)
    return [(since, until) for since, until in bounds if since is not None and until is not None]


def _with_stays(span: TimelineSpan, stays: Sequence[tuple[float, float]]) -> Iterator[TimelineSpan]:
    """Return a span in which it waits, with the earlier stays on GPUs in it."""
    begins = span.begins_at
    # Stays lie in waiting spans only, because a held placement has its own spans.
    for since, until in stays if span.state == WAITING else ():
        held, left = max(since, begins), min(until, span.ends_at)
        if left > held:
            yield TimelineSpan(state=WAITING, begins_at=begins, ends_at=held)
            yield TimelineSpan(state=EARLIER, begins_at=held, ends_at=left)
            begins = left
    yield TimelineSpan(state=span.state, begins_at=begins, ends_at=span.ends_at)


def _cut(span: TimelineSpan, incidents: Sequence[IncidentReport]) -> Iterator[TimelineSpan]:
    """Return a running span with its recoveries cut out."""
    begins = span.begins_at
    # Incidents are newest first, and the cut goes forward in time.
    for incident in reversed(incidents if span.state == RUNNING else ()):
        at = max(incident.at, begins)
        until = min(incident.at + incident.seconds, span.ends_at)
        if until > at:
            if at > begins:
                yield TimelineSpan(state=RUNNING, begins_at=begins, ends_at=at)
            yield TimelineSpan(state=RECOVERING, begins_at=at, ends_at=until)
            begins = until
    if span.ends_at > begins:
        yield TimelineSpan(state=span.state, begins_at=begins, ends_at=span.ends_at)


def _lasts(span: TimelineSpan) -> bool:
    return span.ends_at > span.begins_at
