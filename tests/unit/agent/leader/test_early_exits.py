"""Ranks that end with 0 while others go on, as the status says it."""

from __future__ import annotations

import asyncio

from drumline_agent.leader.early_exits import EarlyExits
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import RemarkKind
from tests.texts import missing
from tests.unit.agent.settings_builder import agent_settings


async def test_the_remark_ends_with_the_wait() -> None:
    status = RankStatusStore(agent_settings())
    before = status.version
    waiting = asyncio.create_task(EarlyExits(status, own_index=0, seconds=0.0).wait())
    await status.wait_for_other_version(before)
    remark = status.remark
    assert remark is not None
    assert remark.kind is RemarkKind.RANKS_ENDED
    assert not missing(remark.sentence, "0", "0 s")
    await waiting
    assert status.remark is None
    assert status.version == before + 2
