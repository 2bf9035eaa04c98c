from __future__ import annotations

from dataclasses import replace
from typing import Any

from drumline_agent.leader.root_cause import (
    incident_of,
    incident_of_new_generation,
    root_cause_of,
    root_causes_by_class,
    with_fault,
    with_finished_steps,
)
from drumline_agent.protocol.encoding import encode
from drumline_agent.protocol.inventory import Inventory, MembershipFailure, parse_inventory
from drumline_contract import FaultClass, GenerationRecord, Incident, Member
from tests.unit.agent.fault_examples import BOOM, fault


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
    output = inventory(0, faults=(fault(), fault(**OUT_OF_MEMORY)))
    assert parse_inventory(encode(output)) == output


def test_a_gang_that_is_all_new_has_lost_nothing() -> None:
    fresh = [inventory(index, previous_generation=0) for index in range(2)]
    assert incident_of_new_generation(RECORD, fresh, now=100.0) is None


def test_steps_that_ranks_tell_of_once_they_are_at_rest_are_lost_too() -> None:
    """Survivors under NCCL leave when they are told to, after the fault is known."""
    incident = incident_of([fault(step=6)], now=50.0)
    members = [inventory(0, step=7), inventory(1, step=6)]
    assert with_finished_steps(incident, members).failed_step == 7
    assert with_finished_steps(incident, [inventory(0, step=0)]).failed_step == 6
