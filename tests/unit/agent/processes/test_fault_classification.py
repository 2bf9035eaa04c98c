from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline_trainer.agent.leader.root_cause import (
    abandon_order,
    incident_of,
    incident_of_new_generation,
    root_cause_of,
    root_causes_by_class,
    with_fault,
)
from drumline_trainer.agent.processes import fault_classification
from drumline_trainer.agent.protocol.inventory import Inventory, MembershipFailure, parse_inventory
from drumline_trainer.agent.protocol.leader_orders import encode, parse_leader_order
from drumline_trainer.agent.protocol.member_reports import Fault, parse_fault
from drumline_trainer.contract import ExitCode, FaultClass, GenerationRecord, Incident, Member

BOOM = "rank 1: ValueError: boom at 0x7f [exit code 1 (APPLICATION)]"


def fault(**changes: Any) -> Fault:
    fields: dict[str, Any] = {
        "generation": 2,
        "attempt": 3,
        "index": 0,
        "rank": 1,
        "fault_class": FaultClass.APPLICATION,
        "cause": BOOM,
        "at": 100.0,
        "detected_at": 100.5,
        "step": 40,
        "exit_code": 1,
    }
    return Fault(**{**fields, **changes})


def test_however_much_was_said_the_leader_and_the_members_can_read_it() -> None:
    much = fault(cause=fault_classification.cause(1, -11, words="x" * 16_384))
    assert parse_fault(encode(much)) == much
    assert much.cause.startswith("rank 1: xxx")
    assert much.cause.endswith("x [killed by SIGSEGV]")

    word = abandon_order(fault(cause="y" * 2048), objection="no restart is left")
    assert parse_leader_order(encode(word)) == word
    assert word.reason.endswith("(no restart is left)")


@pytest.mark.parametrize(
    ("code", "error", "killed", "fault_class"),
    [
        (1, "ValueError: boom", False, FaultClass.APPLICATION),
        (-11, "", False, FaultClass.APPLICATION),
        (-9, "", False, FaultClass.APPLICATION),
        (-9, "", True, FaultClass.OUT_OF_MEMORY),
        (1, "MemoryError", False, FaultClass.OUT_OF_MEMORY),
        (1, "OutOfMemoryError: CUDA out of memory.", False, FaultClass.OUT_OF_MEMORY),
        (1, "torch.OutOfMemoryError: CUDA", False, FaultClass.OUT_OF_MEMORY),
        (1, "ValueError: not a MemoryError", True, FaultClass.APPLICATION),
        (75, "ConnectionError: gone", False, FaultClass.INFRASTRUCTURE),
    ],
)
def test_the_class_of_an_end(code: int, error: str, killed: bool, fault_class: FaultClass) -> None:
    assert fault_classification.classify(code, error=error, killed_for_memory=killed) is fault_class


def objection(culprit: Fault, *incidents: Incident, **changes: Any) -> str | None:
    fields: dict[str, Any] = {"restarts_left": {}, "restarts": {}, "stuck_attempts": 0, **changes}
    return fault_classification.objection_to_restart(culprit, incidents=incidents, **fields)


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


def test_the_culprit_is_no_victim_and_the_hopeless_come_first() -> None:
    victim, late, hopeless = fault(consequence=True, at=99.0), fault(at=100.1), fault(exit_code=65)
    assert root_cause_of([victim, late, fault()]) == fault()
    assert root_cause_of([victim, late, hopeless]) == hopeless
    assert root_cause_of([victim]) == victim


def test_an_incident_is_numbered_by_the_membership_it_leads_to() -> None:
    victim = fault(consequence=True, step=41, cause="rank 0: lost its peers")
    other = fault(rank=2, cause="rank 2: killed by SIGSEGV")
    assert incident_of([victim, fault(), other], now=200.0) == Incident(
        generation=2,
        attempt=4,
        fault_class=FaultClass.APPLICATION,
        cause=f"{BOOM}; rank 2: killed by SIGSEGV",
        culprit_index=0,
        culprit_rank=1,
        fault_at=100.0,
        detected_at=100.5,
        failed_step=41,
    )


OUT_OF_MEMORY = {"fault_class": FaultClass.OUT_OF_MEMORY, "at": 100.2, "rank": 2}
VICTIM = {"consequence": True, "fault_class": FaultClass.INFRASTRUCTURE, "at": 99.0, "rank": 0}


def test_each_class_of_fault_in_a_recovery_is_told_and_judged_once() -> None:
    second = fault(**OUT_OF_MEMORY, cause="rank 2: MemoryError")
    third = replace(second, rank=3, cause="rank 3: MemoryError", at=100.3)
    both = [fault(**VICTIM), third, second, fault()]
    assert root_causes_by_class(both) == [fault(), second]
    incident = incident_of(both, now=200.0)
    assert incident.fault_classes == (FaultClass.APPLICATION, FaultClass.OUT_OF_MEMORY)
    assert incident.cause == f"{BOOM}; rank 3: MemoryError"


def test_a_fault_heard_of_late_joins_the_incident_and_leaves_the_culprit_its_place() -> None:
    incident = incident_of([fault(cause="x" * 600)], now=200.0)
    late = fault(**OUT_OF_MEMORY, cause="rank 2: MemoryError", step=41)
    joined = with_fault(incident, late)
    assert (joined.culprit_rank, joined.fault_class) == (1, FaultClass.APPLICATION)
    assert (joined.also, joined.failed_step) == ((FaultClass.OUT_OF_MEMORY,), 41)
    assert joined.cause.endswith("xxx; rank 2: MemoryError")
    assert len(joined.cause) <= 512
    assert with_fault(joined, late) == joined, "told twice"


def test_where_only_consequences_were_seen_nobody_is_blamed_until_the_cause_is_known() -> None:
    victim = fault(**VICTIM, cause="rank 0: lost its peers")
    incident = incident_of([victim], now=200.0)
    blamed = (incident.culprit_index, incident.culprit_rank)
    assert (blamed, incident.fault_class) == ((None, None), FaultClass.INFRASTRUCTURE)
    known = with_fault(incident, fault(index=3))
    assert (known.culprit_index, known.culprit_rank, known.cause) == (3, 1, BOOM)
    assert known.fault_classes == (FaultClass.APPLICATION,)
    assert (known.fault_at, known.detected_at) == (99.0, 100.5)


MEMBERS = tuple(
    Member(index=i, pod_uid=f"p{i}", address=f"10.0.0.{i}", host=f"h{i}", ranks=1) for i in range(2)
)
RECORD = GenerationRecord(job_uid="job", generation=3, epoch=1, members=MEMBERS)


def inventory(index: int, **changes: Any) -> Inventory:
    fields: dict[str, Any] = {"previous_generation": 2, "broken": None, "step": 40, "saved": None}
    fields |= {"shards": (), "incidents": (), **changes}
    return Inventory(index=index, **fields)


def test_a_new_generation_is_an_incident_of_its_own() -> None:
    fresh = inventory(1, previous_generation=0, step=0)
    survivor = inventory(0, broken=MembershipFailure(at=90.0, noticed_at=92.5))
    assert incident_of_new_generation(RECORD, [survivor, fresh], now=100.0) == Incident(
        generation=3,
        attempt=0,
        fault_class=FaultClass.INFRASTRUCTURE,
        cause="lost member 1",
        culprit_index=1,
        fault_at=90.0,
        detected_at=92.5,
        failed_step=40,
    )
    moved = incident_of_new_generation(RECORD, [inventory(0), fresh], now=100.0)
    assert moved is not None
    assert (moved.fault_class, moved.cause) == (FaultClass.PREEMPTION, "moved member 1")


def test_a_member_tells_what_befell_its_own_ranks() -> None:
    told = inventory(0, faults=(fault(), fault(**OUT_OF_MEMORY)))
    assert parse_inventory(encode(told)) == told


def test_a_gang_that_is_all_new_has_lost_nothing() -> None:
    fresh = [inventory(index, previous_generation=0) for index in range(2)]
    assert incident_of_new_generation(RECORD, fresh, now=100.0) is None


def test_kills_for_memory_are_counted_by_the_kernel(tmp_path: Path) -> None:
    assert fault_classification.memory_kills(tmp_path) == 0
    (tmp_path / "memory.events").write_text("low 0\nmax 7\noom 3\noom_kill 2\n")
    assert fault_classification.memory_kills(tmp_path) == 2


def test_kills_for_memory_counted_by_an_older_kernel(tmp_path: Path) -> None:
    counts = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"
    (tmp_path / "memory.oom_control").write_text(counts)
    assert fault_classification.memory_kills(tmp_path) == 4


def test_the_own_control_group(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/old\n0::/kubepods/pod7\n")
    assert fault_classification.own_cgroup(membership, root=tmp_path) == tmp_path / "kubepods/pod7"
    assert fault_classification.own_cgroup(tmp_path / "none", root=tmp_path) == tmp_path
    (tmp_path / "memory").mkdir()
    assert fault_classification.own_cgroup(membership, root=tmp_path) == tmp_path / "memory"
