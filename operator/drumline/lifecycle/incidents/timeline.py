"""The timeline of an incident in the status: phases without gaps.

The boundaries are those of `contract.Incident`: fault, detected, decided, replaced, joined,
restored, first step. An unknown boundary before a known one equals its predecessor. Phases after
the last known boundary are absent. So the phases add up to the time from the fault to the last
boundary, in whole milliseconds.

Example: fault at 10.0 s, detected 10.5, decided unknown, replaced 12.0, nothing more known: detect
= 500, decide = 0, replace = 1500. Rendezvous, restore and first step are absent.

Times reported by agents are tenant input, so they are clamped to `MAX_DISTANCE_SECONDS` around
`now`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.lifecycle.incidents.claim_names import with_claim_names
from drumline.lifecycle.incidents.failures import Failure
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.members import GangMember
from drumline.lifecycle.model.timestamps import parse_timestamp, precise_timestamp
from drumline_api.incidents import IncidentStatus
from drumline_contract import FaultClass, Incident, pod_name

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
"""Boundaries by number. 0 is the fault itself."""


def operator_incident(
    failure: Failure,
    *,
    job: Job,
    fault_class: FaultClass,
    now: float,
    fault_at: float | None = None,
) -> IncidentStatus:
    """Return an incident that the operator opens. It leads to the job's next generation.

    Args:
        failure: the failure that is handled.
        job: the job with its present status.
        fault_class: class of the fault.
        now: Unix time in seconds.
        fault_at: Unix time of the fault, if it is known.
    """
    # A kubelet's clock may be ahead. A fault never lies in the future.
    fault_time = min(now, failure.at if failure.at is not None else fault_at or now)
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
            fault_at=precise_timestamp(fault_time),
            failed_step=failure.step if job.runs_trainer else failure.step or None,
        ),
        [fault_time, now],
    )


def agent_incident(
    incident: Incident, *, job: Job, members: Sequence[GangMember], now: float
) -> IncidentStatus:
    """Return a restart in place from the agents' log.

    Args:
        incident: the agents' record.
        job: the job with its present status.
        members: present members, for the names of nodes.
        now: Unix time in seconds.
    """
    culprit = next((member for member in members if member.index == incident.culprit_index), None)
    entry = IncidentStatus(
        generation=incident.generation,
        attempt=incident.attempt,
        fault_class=incident.fault_class,
        cause=with_claim_names(incident.cause, job.spec)[:1024],
        index=incident.culprit_index,
        rank=incident.culprit_rank,
        pod=pod_name(job.name, culprit.index, culprit.pod_generation) if culprit else None,
        node=culprit.node if culprit else None,
        fault_at=precise_timestamp(_near(incident.fault_at, now)),
    )
    entry = _with_times(entry, agent_boundary_times(incident, now=now))
    return _with_steps(entry, incident, job=job)


def merged_with_agents(
    entry: IncidentStatus, incident: Incident, *, job: Job, now: float
) -> IncidentStatus:
    """Merge the operator's entry of an incident with the agents' log of the same one.

    The earlier time of the fault counts. For an incident of the operator (attempt 0), detection and
    decision are the operator's, and all later boundaries are the agents'.

    Args:
        entry: the operator's record.
        incident: the agents' record.
        job: the job with its present status.
        now: Unix time in seconds.
    """
    own, reported = boundary_times(entry), agent_boundary_times(incident, now=now)
    times = list(reported)
    times[0] = min(time for time in (own[0], reported[0]) if time is not None)
    # The operator detected and decided, so its own times of these boundaries are exact.
    if entry.attempt == 0:
        times[DETECTED] = own[DETECTED] or reported[DETECTED]
        times[DECIDED] = own[DECIDED] or reported[DECIDED]
        times[REPLACED] = reported[REPLACED] or own[REPLACED]
    return _with_steps(_with_times(entry, times), incident, job=job)


def with_boundary(entry: IncidentStatus, number: int, *, at: float) -> IncidentStatus:
    """Return the incident with this boundary at `at`. A known boundary stays.

    Args:
        entry: the incident.
        number: number of the recovery phase that ended.
        at: Unix time in seconds.
    """
    times = boundary_times(entry)
    if times[number] is not None:
        return entry
    times[number] = at
    return _with_times(entry, times)


def is_over(entry: IncidentStatus) -> bool:
    """Return whether the first training step after the fault was finished."""
    return entry.first_step_milliseconds is not None


def total_milliseconds(entry: IncidentStatus) -> int:
    """Return the milliseconds from the fault to the last known boundary."""
    return sum(getattr(entry, phase) or 0 for phase in PHASES)


def boundary_times(entry: IncidentStatus) -> list[float | None]:
    """Return all seven boundaries in seconds since the epoch. None for those not reached yet."""
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
    """Return all seven boundaries of the agents' log, clamped around `now`."""
    reported = (
        incident.fault_at,
        incident.detected_at,
        incident.decided_at,
        incident.replaced_at,
        incident.joined_at,
        incident.restored_at,
        incident.first_step_at,
    )
    return [None if time is None else _near(time, now) for time in reported]


def _with_times(entry: IncidentStatus, times: Sequence[float | None]) -> IncidentStatus:
    # Later boundaries are never before earlier ones, although clocks of several hosts are mixed.
    start = times[0] or 0.0
    last = max(position for position, time in enumerate(times) if time is not None)
    lengths: dict[str, int | None] = dict.fromkeys(PHASES)
    passed = 0
    for phase, time in zip(PHASES, times[1 : last + 1], strict=False):
        until = passed if time is None else max(passed, round((time - start) * 1000))
        lengths[phase] = until - passed
        passed = until
    return entry.model_copy(update={"fault_at": precise_timestamp(start), **lengths})


def _with_steps(entry: IncidentStatus, incident: Incident, *, job: Job) -> IncidentStatus:
    """Add lost steps and the restore tier, which are known once the state is restored.

    A user's program may not report its steps. Then its agents know none, and they stay unknown.
    """
    if not job.runs_trainer and incident.failed_step == incident.restored_step == 0:
        return entry
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
