"""Notices: from the operator to every rank, and the answer back."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from drumline_contract import ExitCode, NoticeAnswer
from tests.faults.agent.gang import Gang
from tests.faults.agent.scripts import script

pytestmark = pytest.mark.extended(keep=2)

STAY = ["beat(3)", "save(7)", "print('stayed')", "hang()"]
LEAVE = ["beat(3)", "asked = save(7)", "__import__('os')._exit(77 if asked.leave else 1)"]


async def test_the_answer_is_read_at_the_leader_as_soon_as_it_is_there(gang: Gang) -> None:
    await gang.start(2, variables=script(r0=STAY, r1=STAY))
    await gang.push()
    await gang.pids()
    version = (await gang.status()).version
    waiting = asyncio.create_task(answer_of(gang, since=version))
    await gang.notice("drain")

    assert await waiting == NoticeAnswer(id="drain", step=7, digest="d")
    for agent in gang.agents.values():
        await agent.until_line("stayed")
    await gang.notice("drain")
    status = await gang.status()
    assert status.notice == NoticeAnswer(id="drain", step=7, digest="d"), "one notice"
    assert (status.progress.checkpoint_step, status.progress.checkpoint_digest) == (7, "d")


async def answer_of(gang: Gang, *, since: int) -> NoticeAnswer:
    while True:
        status = await gang.status(since=since)
        if status.notice is not None and status.notice.step is not None:
            return status.notice
        since = status.version


async def test_ranks_that_leave_on_request_end_their_pods_as_preempted(gang: Gang) -> None:
    await gang.start(2, variables=script(r0=LEAVE, r1=LEAVE))
    await gang.push()
    await gang.pids()
    await gang.notice("preempted by a/b", leave=True)

    assert await gang.ended() == [ExitCode.PREEMPTED] * 2
    for agent in gang.agents.values():
        assert (agent.report.progress.checkpoint_step, agent.report.error) == (7, "")


async def test_leaving_unasked_is_a_fault(gang: Gang) -> None:
    gang.record_fields = {"restarts_left": {"Application": 0}}
    await gang.start(1, variables=script(r0=["beat(3)", "__import__('os')._exit(77)"]))
    await gang.push()

    assert await gang.ended() == [ExitCode.PREEMPTED]
    assert "exit code 77 (PREEMPTED)" in gang.leader.report.error


async def test_a_withdrawn_notice_is_forgotten(gang: Gang) -> None:
    waits = [
        "beat(3)",
        "notice(); print('in force')",
        "import time",
        "while control.notice: time.sleep(0.01)",
        "print('forgotten'); hang()",
    ]
    await gang.start(2, variables=script(r0=waits, r1=waits))
    await gang.push()
    await gang.pids()
    await gang.notice("one")
    for agent in gang.agents.values():
        await agent.until_line("in force")
    assert (await gang.status()).notice == NoticeAnswer(id="one")
    await gang.notice("one", withdraw=True)

    for agent in gang.agents.values():
        await agent.until_line("forgotten")
    assert (await gang.status()).notice is None
    await gang.notice("one")
    assert (await gang.status()).notice is None, "a late repetition is not a new notice"


async def test_a_notice_reaches_ranks_that_are_started_after_it(gang: Gang) -> None:
    dies = ["beat(3)", "notice()", "1 / 0 if placement.attempt == 0 else save(7)", "hang()"]
    await gang.start(1, ranks=1, variables=script(r0=dies))
    await gang.push()
    version = (await gang.status()).version
    waiting = asyncio.create_task(answer_of(gang, since=version))
    await gang.notice("drain")

    assert await waiting == NoticeAnswer(id="drain", step=7, digest="d")


async def test_a_pod_that_gets_sigterm_saves_first(gang: Gang, tmp_path: Path) -> None:
    folder = {"DRUMLINE_CHECKPOINT_FOLDER": str(tmp_path)}
    await gang.start(2, variables=script(r0=STAY, r1=STAY) | folder)
    await gang.push()
    await gang.pids()
    for agent in gang.agents.values():
        while (await agent.status()).progress.step < 3:
            pass
    gang.agents[1].process.send_signal(signal.SIGTERM)

    await gang.agents[0].until_line("stayed")
    assert await gang.agents[1].ended() == 128 + 15
    assert gang.agents[1].report.progress.checkpoint_step == 7
    assert (await gang.status()).notice is None, "nobody but the pod itself asked"


async def test_a_notice_of_a_pod_that_was_replaced_is_rejected(gang: Gang, tmp_path: Path) -> None:
    patient = {"DRUMLINE_CHECKPOINT_FOLDER": str(tmp_path), "DRUMLINE_GRACE_SECONDS": "3000"}
    trains = ["beat(3)", "hang()"]
    await gang.start(2, variables=script(r0=trains, r1=trains) | patient)
    await gang.push()
    await gang.pids()
    asleep = gang.agents[1]
    while (await asleep.status()).progress.step < 3:
        pass
    asleep.process.send_signal(signal.SIGSTOP)
    gang.generation = 2
    await gang.admit(1)
    await gang.push()
    await gang.pids()
    asleep.process.send_signal(signal.SIGTERM)
    asleep.process.send_signal(signal.SIGCONT)

    assert await asleep.ended() in {128 + signal.SIGTERM, ExitCode.PEER_LOST}
    assert "pod-ends" not in gang.leader.text, "there was nothing to save for it"


async def test_a_pod_that_gets_sigterm_as_its_gang_finishes_does_not_wait_for_a_save(
    gang: Gang, tmp_path: Path
) -> None:
    gate = gang.band.gate()
    patient = {"DRUMLINE_CHECKPOINT_FOLDER": str(tmp_path), "DRUMLINE_GRACE_SECONDS": "3000"}
    finishes = ["beat(3)", gate.line, "done(9)"]
    await gang.start(2, variables=script(r0=finishes, r1=finishes) | patient)
    await gang.push()
    await gang.pids()
    while (await gang.agents[1].status()).progress.step < 3:
        pass
    gang.agents[1].process.send_signal(signal.SIGTERM)
    await gang.leader.event("notice_taken")
    gate.open()
    gate.open()

    assert await gang.ended() == [0, 0]


async def test_new_pods_get_the_unanswered_notices(gang: Gang) -> None:
    waits = ["beat(3)", "hang(until=0, generation=2)", "print('asked', notice().id)", "hang()"]
    await gang.start(2, variables=script(r0=waits, r1=waits))
    await gang.push()
    await gang.pids()
    await gang.notice("drain")
    await gang.replace(1)

    for agent in gang.agents.values():
        await agent.until_line("asked drain")
