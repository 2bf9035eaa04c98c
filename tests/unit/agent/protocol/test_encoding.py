from __future__ import annotations

from drumline_agent.leader.root_cause import abandon_order
from drumline_agent.processes.fault_classification import cause
from drumline_agent.protocol.encoding import encode
from drumline_agent.protocol.leader_orders import ShowPlaces, parse_leader_order
from drumline_agent.protocol.member_reports import parse_fault
from drumline_agent.protocol.rank_places import RankPlace, RankPlaces, parse_rank_places
from tests.unit.agent.fault_examples import fault


def test_however_much_was_said_the_leader_and_the_members_can_read_it() -> None:
    much = fault(cause=cause(1, -11, error="x" * 16_384))
    assert parse_fault(encode(much)) == much
    assert much.cause.startswith("rank 1: xxx")
    assert much.cause.endswith("x [killed by SIGSEGV]")

    order = abandon_order(fault(cause="y" * 2048), objection="no restart is left")
    assert parse_leader_order(encode(order)) == order
    assert order.reason.endswith("(no restart is left)")


def test_a_leader_asks_for_places_and_reads_the_answer() -> None:
    order = ShowPlaces(generation=3, attempt=1)
    assert parse_leader_order(encode(order)) == order
    places = RankPlaces(
        places=(RankPlace(rank=5, operation="all_reduce", place="train.py, line 31"),)
    )
    assert parse_rank_places(encode(places)) == places
