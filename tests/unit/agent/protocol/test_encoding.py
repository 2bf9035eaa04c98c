from __future__ import annotations

from drumline_agent.leader.root_cause import abandon_order
from drumline_agent.processes.fault_classification import cause
from drumline_agent.protocol.encoding import encode
from drumline_agent.protocol.leader_orders import ShowStacks, parse_leader_order
from drumline_agent.protocol.member_reports import parse_fault
from drumline_agent.protocol.rank_stacks import RankStack, RankStacks, parse_rank_stacks
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
    order = ShowStacks(generation=3, attempt=1)
    assert parse_leader_order(encode(order)) == order
    places = RankStacks(
        places=(RankStack(rank=5, operation="all_reduce", place="train.py, line 31"),)
    )
    assert parse_rank_stacks(encode(places)) == places
