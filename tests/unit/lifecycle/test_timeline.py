"""One incident in figures: phases without gaps that add up to the wall clock."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.lifecycle.incidents import timeline as of
from drumline.lifecycle.incidents.failures import classify
from drumline.lifecycle.model.members import members_of
from drumline.lifecycle.model.timestamps import precise_timestamp
from drumline_api.incidents import IncidentStatus
from drumline_contract import FaultClass, Incident, RestoreTier
from tests.builders import T0, a_job, a_pod, admitted, ended, report, running

JOB = running(admitted(a_job()))
MEMBERS = members_of(JOB.status)


def logged(**facts: Any) -> Incident:
    plain: dict[str, Any] = {
        "generation": 1,
        "attempt": 2,
        "fault_class": FaultClass.APPLICATION,
        "cause": "rank 3: ValueError: boom",
        "culprit_index": 1,
        "culprit_rank": 3,
        "fault_at": T0 + 1,
        "detected_at": T0 + 1.25,
    }
    return Incident(**{**plain, **facts})


WHOLE: dict[str, Any] = {
    "decided_at": T0 + 1.3,
    "replaced_at": T0 + 1.5,
    "joined_at": T0 + 2,
    "restored_at": T0 + 2.4,
    "first_step_at": T0 + 2.5,
    "failed_step": 42,
    "restored_step": 40,
    "tier": RestoreTier.PEER,
}


def phases(entry: IncidentStatus) -> list[int | None]:
    return [getattr(entry, phase) for phase in of.PHASES]


def entry_of(incident: Incident, *, now: float = T0 + 3) -> IncidentStatus:
    return of.agent_incident(incident, job=JOB, members=MEMBERS, now=now)


def test_a_restart_in_place_has_culprit_phases_and_steps() -> None:
    entry = entry_of(logged(**WHOLE))
    assert entry == IncidentStatus(
        generation=1,
        attempt=2,
        fault_class=FaultClass.APPLICATION,
        cause="rank 3: ValueError: boom",
        index=1,
        rank=3,
        pod="llama-1-g1",
        node="node-b",
        fault_at=precise_timestamp(T0 + 1),
        detect_milliseconds=250,
        decide_milliseconds=50,
        replace_milliseconds=200,
        rendezvous_milliseconds=500,
        restore_milliseconds=400,
        first_step_milliseconds=100,
        failed_step=42,
        restored_step=40,
        steps_lost=2,
        tier=RestoreTier.PEER,
    )
    assert of.is_over(entry)
    assert of.total_milliseconds(entry) == 1500


def test_phases_not_over_are_absent_and_unknown_boundaries_take_no_time() -> None:
    assert phases(entry_of(logged())) == [250, None, None, None, None, None]
    assert phases(entry_of(logged(joined_at=T0 + 2))) == [250, 0, 0, 750, None, None]
    assert not of.is_over(entry_of(logged()))


def test_a_clock_that_went_back_makes_no_negative_phase() -> None:
    entry = entry_of(logged(decided_at=T0, replaced_at=T0 + 1.5))
    assert phases(entry) == [250, 0, 250, None, None, None]


@settings(deadline=None)
@given(st.lists(st.none() | st.floats(-1e15, 1e15), min_size=7, max_size=7))
def test_phases_add_up_to_the_last_boundary_and_any_time_fits_the_api(
    times: list[float | None],
) -> None:
    names = ("decided_at", "replaced_at", "joined_at", "restored_at", "first_step_at")
    facts = dict(zip(names, times[2:], strict=True))
    incident = logged(fault_at=times[0] or 0.0, detected_at=times[1] or 0.0, **facts)
    entry = entry_of(incident)
    IncidentStatus.model_validate(json.loads(entry.model_dump_json(by_alias=True)))
    bounds = [time for time in of.agent_boundary_times(incident, now=T0 + 3) if time is not None]
    assert of.total_milliseconds(entry) == pytest.approx((max(bounds) - bounds[0]) * 1000, abs=1)
    assert all(length is None or length >= 0 for length in phases(entry))
    again = [time for time in of.boundary_times(entry) if time is not None]
    assert again[-1] == pytest.approx(max(bounds), abs=0.01)


def test_the_operator_opens_an_incident_with_what_the_pod_said_last() -> None:
    words = report(step=17, error="rank 2: boom")
    pod = a_pod(JOB, 1, end=ended(exit_code=1, message=words, at=T0 + 5))
    failure = classify(pod)
    assert failure is not None
    entry = of.operator_incident(failure, job=JOB, fault_class=FaultClass.APPLICATION, now=T0 + 6.5)
    assert (entry.generation, entry.attempt) == (2, 0)
    assert (entry.index, entry.pod, entry.node) == (1, "llama-1-g1", "node-b")
    assert (entry.fault_at, entry.detect_milliseconds) == (precise_timestamp(T0 + 5), 1500)
    assert entry.failed_step == 17
    assert "rank 2: boom" in entry.cause


def test_the_operator_dates_the_decision_and_the_agents_what_follows() -> None:
    pod = a_pod(JOB, 1, terminating=True)
    failure = classify(pod)
    assert failure is not None
    ours = of.operator_incident(failure, job=JOB, fault_class=FaultClass.INFRASTRUCTURE, now=T0 + 2)
    ours = of.with_boundary(ours, of.DECIDED, at=T0 + 4)
    ours = of.with_boundary(ours, of.REPLACED, at=T0 + 9)
    theirs = logged(
        generation=2,
        attempt=0,
        fault_at=T0 + 1,
        detected_at=T0 + 1.5,
        decided_at=T0 + 8,
        replaced_at=T0 + 8,
        joined_at=T0 + 10,
        restored_at=T0 + 11,
        first_step_at=T0 + 12,
        failed_step=30,
        restored_step=30,
        tier=RestoreTier.MEMORY,
    )
    entry = of.merged_with_agents(ours, theirs, job=JOB, now=T0 + 13)
    assert phases(entry) == [1000, 2000, 4000, 2000, 1000, 1000]
    assert (entry.cause, entry.fault_class) == (ours.cause, FaultClass.INFRASTRUCTURE)
    assert (entry.failed_step, entry.steps_lost, entry.tier) == (30, 0, RestoreTier.MEMORY)


def test_a_boundary_that_is_known_stays() -> None:
    entry = entry_of(logged(decided_at=T0 + 2))
    assert of.with_boundary(entry, of.DECIDED, at=T0 + 9) == entry
