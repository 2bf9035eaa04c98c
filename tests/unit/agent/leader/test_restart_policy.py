from __future__ import annotations

from typing import Any

import pytest

from drumline_agent.leader.restart_policy import RestartHistory, objection_to_restart
from drumline_agent.leader.root_cause import incident_of
from drumline_agent.protocol.member_reports import Fault
from drumline_contract import ExitCode, FaultClass, Incident
from tests.unit.agent.fault_examples import BOOM, fault


def objection(culprit: Fault, *incidents: Incident, **changes: Any) -> str | None:
    fields: dict[str, Any] = {"restarts_left": {}, "restarts": {}, "stuck_attempts": 0, **changes}
    return objection_to_restart(culprit, RestartHistory(incidents=incidents, **fields))


def test_a_fault_is_restarted_in_place_without_limit_where_none_is_set() -> None:
    assert objection(fault(), restarts={FaultClass.APPLICATION: 99}) is None


@pytest.mark.parametrize("code", [ExitCode.CONFIG, ExitCode.CORRUPT_CHECKPOINT])
def test_what_can_never_work_is_not_tried_again(code: ExitCode) -> None:
    assert objection(fault(exit_code=code)) == "starting again cannot help"


def test_each_class_has_a_budget_of_its_own() -> None:
    left = {"Application": 1, "Hang": 0}
    used = {FaultClass.APPLICATION: 1}
    assert objection(fault(), restarts_left=left) is None
    assert objection(fault(), restarts_left=left, restarts=used) is not None
    assert objection(fault(fault_class=FaultClass.HANG), restarts_left=left) is not None
    assert objection(fault(fault_class=FaultClass.OUT_OF_MEMORY), restarts_left=left) is None


def test_what_may_be_a_lost_pod_is_not_counted_here() -> None:
    victim = fault(fault_class=FaultClass.INFRASTRUCTURE, consequence=True)
    assert objection(victim, restarts_left={"Infrastructure": 0}) is None


def earlier(**changes: Any) -> Incident:
    return incident_of([fault(**changes)], now=101.0)


def test_the_same_error_at_the_same_step_three_times_in_a_row_is_the_programs() -> None:
    moved = BOOM.replace("0x7f", "0x80").replace("rank 1", "rank 0")
    assert objection(fault(), earlier()) is None
    assert objection(fault(), earlier(cause=moved), earlier()) is not None
    assert objection(fault(), earlier(), earlier(step=41)) is None
    assert objection(fault(), earlier(), earlier(cause="rank 1: KeyError")) is None


def test_kills_from_outside_say_nothing_about_the_program() -> None:
    killed = {"cause": "rank 1: killed by SIGKILL", "exit_code": 137}
    assert objection(fault(**killed), *[earlier(**killed)] * 5) is None


def test_the_same_error_of_all_ranks_at_once_is_recognized_again() -> None:
    ranks = [fault(rank=rank, cause=BOOM.replace("rank 1", f"rank {rank}")) for rank in range(4)]
    incident = incident_of(ranks, now=101.0)
    assert incident.cause == ranks[0].cause
    assert objection(ranks[2], incident, incident) is not None


def test_attempts_that_finish_nothing_end() -> None:
    assert objection(fault(), stuck_attempts=2) is None
    assert objection(fault(), stuck_attempts=3) is not None


def test_a_storage_that_fails_is_tried_again_however_often() -> None:
    full = {"exit_code": ExitCode.STORAGE, "fault_class": FaultClass.INFRASTRUCTURE}
    row = [earlier(**full)] * 9
    assert objection(fault(**full), *row, stuck_attempts=9) is None
    assert objection(fault(**full), *row, restarts_left={"Infrastructure": 0}) is not None
