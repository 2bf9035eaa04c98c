"""A gang that gives up is held for its user, or not."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from drumline_agent.leader.hold import Hold
from drumline_agent.protocol.leader_orders import Abandon
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import ExitCode, FaultClass, RemarkKind
from tests.texts import missing
from tests.unit.agent.settings_builder import agent_settings

ORDER = Abandon(
    generation=1,
    attempt=0,
    index=1,
    rank=3,
    exit_code=ExitCode.APPLICATION,
    fault_class=FaultClass.APPLICATION,
    reason="rank 3: ValueError: shapes (no restart of class Application is left)",
)


def a_hold(status: RankStatusStore, gate: asyncio.Event, *, seconds: float | None = 600.0) -> Hold:
    async def sleep(asked: float) -> None:
        assert asked == seconds
        await gate.wait()

    return Hold(status, job="mine", seconds=seconds, sleep=sleep, clock=lambda: 1_700_000_000.0)


async def test_it_says_until_when_and_how_to_go_on_and_the_order_says_how_long_it_was() -> None:
    status, gate = RankStatusStore(agent_settings()), asyncio.Event()
    before = status.version
    keeping = asyncio.create_task(a_hold(status, gate).keep(ORDER))
    await status.wait_for_other_version(before)
    assert status.remark is not None
    assert status.remark.kind is RemarkKind.HELD
    assert not missing(
        status.remark.sentence,
        "2023-11-14T22:23:20Z",
        "drumline shell mine --rank 3",
        "drumline stop mine",
        "member 1: rank 3: ValueError: shapes",
        "class Application",
    )
    gate.set()
    assert await keeping == replace(ORDER, held_seconds=600.0)


@pytest.mark.parametrize(
    ("seconds", "fault_class"),
    [(None, FaultClass.APPLICATION), (600.0, FaultClass.INFRASTRUCTURE)],
    ids=["nobody-asked", "a-lost-peer"],
)
async def test_it_is_not_held_otherwise(seconds: float | None, fault_class: FaultClass) -> None:
    status, gate = RankStatusStore(agent_settings()), asyncio.Event()
    order = replace(ORDER, fault_class=fault_class)
    assert await a_hold(status, gate, seconds=seconds).keep(order) is order
    assert status.remark is None


async def test_a_newer_generation_takes_the_sentence_back() -> None:
    status, gate = RankStatusStore(agent_settings()), asyncio.Event()
    before = status.version
    keeping = asyncio.create_task(a_hold(status, gate).keep(ORDER))
    await status.wait_for_other_version(before)
    keeping.cancel()
    await asyncio.wait([keeping])
    assert status.remark is None
