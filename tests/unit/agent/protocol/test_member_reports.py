"""A member's heartbeat on the wire: what it says of its ranks arrives as it was."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from drumline_agent.protocol.member_reports import (
    MemberHeartbeat,
    RankView,
    StepCompute,
    parse_member_heartbeat,
)
from drumline_contract import ContractError

VIEW = RankView(
    rank=3,
    position=(7, 0, 8),
    silent_seconds=0.5,
    patience_seconds=2.0,
    compute=StepCompute(step=40, seconds=1.25, stage=1),
)
HEARTBEAT = MemberHeartbeat(index=1, generation=2, attempt=0, ranks=(VIEW,))


def body(**changes: Any) -> bytes:
    return json.dumps(asdict(HEARTBEAT) | {"ranks": [asdict(VIEW) | changes]}).encode()


def test_what_a_rank_computes_arrives_as_it_was() -> None:
    assert parse_member_heartbeat(body()) == HEARTBEAT


def test_an_agent_that_measures_nothing_says_nothing() -> None:
    (view,) = parse_member_heartbeat(body(compute=None)).ranks
    assert view.compute is None


@pytest.mark.parametrize("compute", [1, [], {"step": -1, "seconds": 1.0, "stage": 0}])
def test_a_computation_of_another_shape_is_refused(compute: object) -> None:
    with pytest.raises(ContractError):
        parse_member_heartbeat(body(compute=compute))
