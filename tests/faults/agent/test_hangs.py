"""Ranks that do not move: only the culprit is killed, and nobody who is merely slow."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.agent.gang import Gang
from tests.faults.agent.scripts import script
from tests.texts import missing

pytestmark = pytest.mark.extended(keep=1)

STEPS = ["import time", "for step in range(5):\n    beat(step); time.sleep(0.01)"]
"""Fast steps, so that two seconds of silence are unusual."""
WAITS = [*STEPS, "beat(5, phase='backward')", "hang(until=1)", "done(9)"]


async def test_the_rank_that_is_behind_its_peers_is_killed(gang: Gang) -> None:
    asked = "import signal; signal.signal(signal.SIGUSR1, lambda *_: print('asked'))"
    stuck = [asked, *STEPS, "beat(5, phase='data')", STUCK, "done(9)"]
    await gang.start(2, ranks=2, variables=script(r0=WAITS, r1=WAITS, r2=stuck, r3=WAITS))
    await gang.push()
    before, after = await gang.pids(), await gang.pids()

    assert await gang.ended() == [0, 0]
    assert {rank for rank in before if before[rank] != after[rank]} == {2}
    assert gang.agents[1].printed(2) == ["asked"]
    [killed] = gang.agents[1].events("rank_killed")
    assert killed["rank"] == 2
    incident = gang.leader.events("incident")[0]["incident"]
    assert (incident["fault_class"], incident["culprit_rank"]) == ("Hang", 2)
    assert incident["detected_at"] - incident["fault_at"] > 2, "since its last sign of life"


STUCK = "import threading; threading.Event().wait() if placement.attempt == 0 else None"


async def test_a_stopped_process_is_distinguished_from_waiting_peers(
    gang: Gang,
) -> None:
    waits = [*STEPS, "beat(5, phase='backward'); print('waits')", "hang(until=1)", "done(9)"]
    await gang.start(1, ranks=3, variables=script(r0=waits, r1=waits, r2=waits))
    await gang.push()
    before = await gang.pids()
    await gang.leader.until_line("[rank 1] waits")
    os.kill(before[1], signal.SIGSTOP)
    after = await gang.pids()

    assert await gang.ended() == [0]
    assert {rank for rank in before if before[rank] != after[rank]} == {1}


async def test_a_slow_rank_is_never_killed(gang: Gang) -> None:
    """It lags far behind and moves every second; the others wait for it in the same place."""
    slow = [
        *STEPS,
        "for step in range(5, 10):\n    beat(step, phase='data'); time.sleep(1)",
        "done(12)",
    ]
    ahead = [*STEPS, "beat(10, phase='forward')", "time.sleep(5)", "done(12)"]
    await gang.start(2, variables=script(r0=ahead, r1=slow))
    await gang.push()

    assert await gang.ended() == [0, 0]
    assert gang.agents[1].events("rank_killed") == []
    assert len(gang.leader.events("round_begun")) == 1


async def test_a_stalled_gang_restarts_after_the_hang_timeout(gang: Gang) -> None:
    gang.record_fields = {"hang_timeout_seconds": 2.5}
    await gang.start(2, variables=script(r0=WAITS, r1=WAITS))
    await gang.push()
    before, after = await gang.pids(), await gang.pids()

    assert await gang.ended() == [0, 0]
    assert before == after, "ranks that park when they are told to are not killed"
    incident = gang.leader.events("incident")[0]["incident"]
    assert (incident["fault_class"], incident["culprit_rank"]) == ("Hang", None)
    assert "no rank moved" in incident["cause"]


KNOWS = [
    "import drumline_agent.rank_protocol.messages as words",
    "import drumline_agent.rank_protocol.collective_progress as known",
    "def knows(started):",
    "    counts = dict(enqueued=9, started=started, completed=6, operation='all_reduce')",
    "    progress = known.CollectiveProgress((known.GroupProgress(group='0', size=3, **counts),))",
    "    said = words.CollectivesReported(generation=1, attempt=0, progress=progress)",
    "    control.on_report = lambda: say(said)",
]
"""A rank of three in one group: nine calls are under way, six complete."""


async def test_of_ranks_in_one_place_the_one_whose_device_hangs_is_killed(gang: Gang) -> None:
    """Under NCCL processes run ahead of devices: all wait in the same line."""
    waits = ["beat(5, phase='backward')", "hang(until=1)", "done(9)"]
    waiting, culprit = [*KNOWS, "knows(7)", *STEPS, *waits], [*KNOWS, "knows(6)", *STEPS, *waits]
    await gang.start(3, variables=script(r0=waiting, r1=culprit, r2=waiting))
    await gang.push()
    before, after = await gang.pids(), await gang.pids()

    assert await gang.ended() == [0, 0, 0]
    assert {rank for rank in before if before[rank] != after[rank]} == {1}
    incident = gang.leader.events("incident")[0]["incident"]
    assert (incident["fault_class"], incident["culprit_rank"]) == ("Hang", 1)
    assert not missing(incident["cause"], "rank 1", "all_reduce", "#7")


async def test_a_link_that_is_dead_is_named(gang: Gang) -> None:
    gang.record_fields = {"hang_timeout_seconds": 3.5}
    waits = [*KNOWS, "knows(7)", *STEPS, "beat(5, phase='backward')", "hang(until=1)", "done(9)"]
    await gang.start(3, variables=script(r0=waits, r1=waits, r2=waits))
    await gang.push()

    assert await gang.ended() == [0, 0, 0]
    incident = gang.leader.events("incident")[0]["incident"]
    assert (incident["fault_class"], incident["culprit_rank"]) == ("Hang", None)
    assert not missing(incident["cause"], "all_reduce", "#7", "group 0", "ranks 0", "1", "2")
