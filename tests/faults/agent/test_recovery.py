"""Real ranks that lose one of them, or a pod: survivors stay, and the result is the same."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.agent.gang import Gang

pytestmark = pytest.mark.gloo


async def test_a_killed_rank_is_forked_anew_and_the_others_go_on(gang: Gang) -> None:
    await gang.start(2, ranks=2, variables=gang.training(steps=60))
    await gang.push()
    pids = await gang.pids()
    await gang.reached(20)
    os.kill(pids[3], signal.SIGKILL)

    incident = await gang.incident()
    print(incident)
    after = await gang.pids()
    assert {rank for rank in pids if pids[rank] != after[rank]} == {3}
    assert await gang.ended() == [0, 0]
