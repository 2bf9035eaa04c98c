from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_agent.leader.recovery_tracker import RecoveryTracker
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.state.incident_log import IncidentLog
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import FaultClass, Incident, RestoreTier
from tests.unit.agent.settings_builder import agent_settings

INCIDENT = Incident(
    generation=1,
    attempt=1,
    fault_class=FaultClass.APPLICATION,
    cause="boom",
    fault_at=1.0,
    detected_at=2.0,
    failed_step=45,
)


@pytest.fixture
def incidents() -> IncidentLog:
    return IncidentLog(RankStatusStore(agent_settings()))


def beat(rank: int, step: int, phase: Phase = Phase.DATA, **changes: Any) -> Heartbeat:
    fields: dict[str, Any] = {"generation": 1, "attempt": 1, "total_steps": 99, **changes}
    return Heartbeat(rank=rank, step=step, phase=phase, time_seconds=0.0, **fields)


def follow(incidents: IncidentLog, *beats: Heartbeat, fetched: bool = False) -> Incident:
    incidents.add(INCIDENT)
    recovery = RecoveryTracker(incidents, membership=(1, 1), ranks=range(2), fetched=fetched)
    for each_beat in beats:
        recovery.follow(each_beat)
    return incidents.all[-1]


def test_a_recovery_is_followed_from_stage_to_stage(incidents: IncidentLog) -> None:
    starting = [beat(rank, 0, Phase.STARTING) for rank in range(2)]
    follow_a = follow(incidents, starting[0])
    assert follow_a.joined_at is None, "not all have met"
    follow_a = follow(incidents, *starting)
    assert follow_a.joined_at is not None
    assert follow_a.restored_at is None
    memory = {"restored_step": 40, "restored_from": RestoreTier.MEMORY}
    follow_a = follow(incidents, *starting, beat(0, 40, **memory))
    assert (follow_a.restored_step, follow_a.tier, follow_a.first_step_at) == (
        40,
        RestoreTier.MEMORY,
        None,
    )
    follow_a = follow(incidents, *starting, beat(0, 40, **memory), beat(0, 41, **memory))
    assert follow_a.first_step_at is not None
    assert incidents.open == ()


def test_a_copy_from_another_node_is_a_tier_of_its_own(incidents: IncidentLog) -> None:
    memory = beat(0, 40, restored_step=40, restored_from=RestoreTier.MEMORY)
    assert follow(incidents, memory, fetched=True).tier is RestoreTier.PEER
    storage = beat(0, 40, restored_step=40, restored_from=RestoreTier.STORAGE)
    assert follow(incidents, storage, fetched=True).tier is RestoreTier.STORAGE


def test_heartbeats_of_another_attempt_say_nothing(incidents: IncidentLog) -> None:
    assert follow(incidents, beat(0, 50, attempt=0)) == INCIDENT


def test_a_run_that_has_nothing_left_to_do_has_recovered(incidents: IncidentLog) -> None:
    assert follow(incidents, beat(0, 99, Phase.DONE)).first_step_at is not None


def test_times_are_kept_and_an_interrupted_recovery_loses_no_step_twice(
    incidents: IncidentLog,
) -> None:
    incidents.add(INCIDENT)
    incidents.update_open(decided_at=3.0)
    incidents.update_open(decided_at=4.0, restored_step=40)
    incidents.add(replace(INCIDENT, attempt=2, failed_step=0))
    incidents.complete_open(restored_step=40)

    first, second = incidents.all
    assert first.decided_at == 3.0
    assert (first.failed_step - first.restored_step) == 5
    assert (second.failed_step - second.restored_step) == 0
    assert first.first_step_at == second.first_step_at is not None


def test_of_two_versions_the_one_that_knows_the_end_counts(incidents: IncidentLog) -> None:
    ended = replace(INCIDENT, first_step_at=9.0)
    incidents.add(INCIDENT)
    incidents.merge([ended])
    incidents.merge([INCIDENT])
    assert incidents.all == (ended,)


def test_of_two_open_versions_the_fuller_story_counts_and_the_newer_times(
    incidents: IncidentLog,
) -> None:
    late = replace(INCIDENT, also=(FaultClass.HANG,), cause="boom; rank 2: silent")
    incidents.add(late)
    incidents.merge([replace(INCIDENT, decided_at=3.0)])
    assert incidents.all == (replace(late, decided_at=3.0),)
    incidents.merge([INCIDENT])
    incidents.merge([late])
    assert incidents.by_membership((1, 1)) == late
    assert [Incident.parse(item) for item in incidents.to_json()] == [late]
    assert incidents.by_membership((1, 2)) is None


def test_the_log_is_bounded_and_ordered(incidents: IncidentLog) -> None:
    incidents.merge(replace(INCIDENT, attempt=attempt) for attempt in range(40, 0, -1))
    assert [incident.attempt for incident in incidents.all] == list(range(9, 41))
