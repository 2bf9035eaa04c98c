"""One fault and the recovery from it, as status shows it: phases without a gap between them.

The boundaries are those of `contract.Incident`: fault, detected, decided, replaced, joined,
restored, first step. A boundary that nobody saw lies on the one before it; what comes after the
last known one is absent. So the phases add up to the time from the fault to the last boundary, in
whole milliseconds.

Times that agents tell are tenant input: they are kept within `MAX_DISTANCE_SECONDS` of our clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.api.incidents import IncidentStatus
from drumline.lifecycle.incidents.failures import Failure
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember
from drumline.lifecycle.model.timestamps import parse_timestamp, precise_timestamp
from drumline_trainer.contract import FaultClass, Incident, pod_name

MAX_DISTANCE_SECONDS: Final = 30 * 86_400.0
PHASES: Final = (
    "detect_milliseconds",
    "decide_milliseconds",
    "replace_milliseconds",
    "rendezvous_milliseconds",
    "restore_milliseconds",
    "first_step_milliseconds",
)
DETECTED, DECIDED, REPLACED, JOINED, RESTORED, FIRST_STEP = range(1, 7)
"""Boundaries by number; 0 is the fault itself."""


def operator_incident(
    failure: Failure,
    *,
    job: Job,
    fault_class: FaultClass,
    now: float,
    fault_at: float | None = None,
) -> IncidentStatus:
    """The incident that the operator opens: it leads to the job's next generation."""
    struck = min(now, failure.at if failure.at is not None else fault_at or now)
    return _with_times(
        IncidentStatus(
            generation=(job.status.generation or 0) + 1,
            attempt=0,
            fault_class=fault_class,
            cause=failure.message[:1024],
            index=failure.index,
            rank=failure.rank,
            pod=failure.pod,
            node=failure.node,
            fault_at=precise_timestamp(struck),
            failed_step=failure.step,
        ),
        [struck, now],
    )


def agent_incident(
    incident: Incident, *, job: Job, members: Sequence[GangMember], now: float
) -> IncidentStatus:
    """A restart in place as the agents wrote it down."""
    culprit = next((one for one in members if one.index == incident.culprit_index), None)
    entry = IncidentStatus(
        generation=incident.generation,
        attempt=incident.attempt,
        fault_class=incident.fault_class,
        cause=incident.cause,
        index=incident.culprit_index,
        rank=incident.culprit_rank,
        pod=pod_name(job.name, culprit.index, culprit.pod_generation) if culprit else None,
        node=culprit.node if culprit else None,
        fault_at=precise_timestamp(_near(incident.fault_at, now)),
        failed_step=incident.failed_step,
    )
    return _told(_with_times(entry, agent_boundary_times(incident, now=now)), incident)


def merged_with_agents(entry: IncidentStatus, incident: Incident, *, now: float) -> IncidentStatus:
    """What the operator knows of an incident with what the agents know of the same one.

    The earlier time of the fault is believed. That it takes another member was found and decided
    by us; what follows is theirs.
    """
    ours, theirs = boundary_times(entry), agent_boundary_times(incident, now=now)
    times = list(theirs)
    first = [time for time in (ours[0], theirs[0]) if time is not None]
    times[0] = min(first)
    if entry.attempt == 0:
        times[DETECTED] = ours[DETECTED] or theirs[DETECTED]
        times[DECIDED] = ours[DECIDED] or theirs[DECIDED]
        times[REPLACED] = theirs[REPLACED] or ours[REPLACED]
    return _told(_with_times(entry, times), incident)


def with_boundary(entry: IncidentStatus, number: int, *, at: float) -> IncidentStatus:
    """The entry with this boundary passed at `at`; one that is known already stays."""
    times = boundary_times(entry)
    if times[number] is not None:
        return entry
    times[number] = at
    return _with_times(entry, times)


def is_over(entry: IncidentStatus) -> bool:
    """Whether the first step after it was finished."""
    return entry.first_step_milliseconds is not None


def total_milliseconds(entry: IncidentStatus) -> int:
    """From the fault to the last boundary that is known."""
    return sum(getattr(entry, phase) or 0 for phase in PHASES)


def boundary_times(entry: IncidentStatus) -> list[float | None]:
    """The boundaries (seconds since the epoch); None for those not passed yet."""
    moment = parse_timestamp(entry.fault_at)
    times: list[float | None] = [moment]
    for phase in PHASES:
        length: int | None = getattr(entry, phase)
        if length is None:
            times.append(None)
            continue
        moment += length / 1000
        times.append(moment)
    return times


def agent_boundary_times(incident: Incident, *, now: float) -> list[float | None]:
    """The same of what agents tell."""
    told = (
        incident.fault_at,
        incident.detected_at,
        incident.decided_at,
        incident.replaced_at,
        incident.joined_at,
        incident.restored_at,
        incident.first_step_at,
    )
    return [None if time is None else _near(time, now) for time in told]


def _with_times(entry: IncidentStatus, times: Sequence[float | None]) -> IncidentStatus:
    start = times[0] or 0.0
    last = max(position for position, time in enumerate(times) if time is not None)
    lengths: dict[str, int | None] = dict.fromkeys(PHASES)
    passed = 0
    for phase, time in zip(PHASES, times[1 : last + 1], strict=False):
        until = passed if time is None else max(passed, round((time - start) * 1000))
        lengths[phase] = until - passed
        passed = until
    return entry.model_copy(update={"fault_at": precise_timestamp(start), **lengths})


def _told(entry: IncidentStatus, incident: Incident) -> IncidentStatus:
    """Steps and tier, known once the state was restored."""
    failed = max(entry.failed_step or 0, incident.failed_step)
    if incident.restored_at is None:
        return entry.model_copy(update={"failed_step": failed})
    return entry.model_copy(
        update={
            "failed_step": failed,
            "restored_step": incident.restored_step,
            "steps_lost": max(0, failed - incident.restored_step),
            "tier": incident.tier,
        }
    )


def _near(time: float, now: float) -> float:
    return min(max(time, now - MAX_DISTANCE_SECONDS), now + MAX_DISTANCE_SECONDS)
