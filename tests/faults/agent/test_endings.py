"""How a pod ends: exit code, termination message, and what becomes of everyone else."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from drumline_contract import AgentPhase, ExitCode, FaultClass, GenerationRecord
from tests.faults.agent.agents import HANG_SECONDS, Agent, Band
from tests.faults.agent.scripts import MODULE, script
from tests.texts import missing

pytestmark = pytest.mark.extended(keep=3)


async def died(pid: int) -> None:
    """Wait for the end of a process that is not our child."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready = await asyncio.to_thread(select.select, [handle], [], [], HANG_SECONDS)
        assert ready[0], f"process {pid} lives on"
    finally:
        os.close(handle)


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def only_child(pid: int) -> int:
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def final(record: GenerationRecord) -> GenerationRecord:
    """A record that allows no restart in place."""
    return replace(record, restarts_left=dict.fromkeys(FaultClass, 0))


async def run_alone(band: Band, variables: dict[str, str], *, ranks: int) -> tuple[Agent, int]:
    [agent] = await band.start_ready(1, variables=variables)
    await agent.push(final(band.record(agents=1, ranks=ranks)))
    return agent, await agent.ended()


@pytest.mark.parametrize(
    ("lines", "code", "error"),
    [
        (
            ["raise ValueError('boom\\n at 0x1')"],
            1,
            "rank 1: ValueError: boom [exit code 1 (APPLICATION)]",
        ),
        (
            ["raise ConnectionError('gone')"],
            75,
            "rank 1: ConnectionError: gone [exit code 75 (PEER_LOST)] (the same error",
        ),
        (
            ["import os", "print('last words')", "os._exit(9)"],
            9,
            "rank 1: exit code 9; last line: last words",
        ),
        (["import os", "os.kill(os.getpid(), 9)"], 137, "rank 1: killed by SIGKILL"),
        (["import os", "os.abort()"], 134, "rank 1: killed by SIGABRT"),
    ],
    ids=["exception", "peer lost", "exit", "SIGKILL", "SIGABRT"],
)
async def test_a_failed_rank_takes_its_pod_with_it(
    band: Band, lines: list[str], code: int, error: str
) -> None:
    agent, ended = await run_alone(band, script(r0=["hang()"], r1=["beat(7)", *lines]), ranks=2)

    assert ended == code, agent.text
    assert error in agent.report.error
    assert agent.report.failed_rank == 1
    await died(agent.events("ranks_started")[-1]["pids"]["0"])


async def test_a_configuration_that_cannot_work_has_its_own_code(band: Band) -> None:
    agent, code = await run_alone(band, {**MODULE, "DRUMLINE_CONFIG": '{"stepz": 1}'}, ranks=1)

    assert code == ExitCode.CONFIG
    assert "stepz: unknown field; did you mean 'steps'?" in agent.report.error


async def test_the_culprit_is_named_although_its_victim_was_seen_to_exit_first(
    band: Band,
) -> None:
    gate = band.gate()
    variables = script(
        r0=["raise ConnectionResetError('by peer')"],
        r1=[gate.line, "raise ValueError('culprit')"],
    )
    [agent] = await band.start_ready(1, variables=variables)
    await agent.push(final(band.record(agents=1, ranks=2)))
    assert (await agent.event("rank_exited"))["rank"] == 0
    gate.open()

    assert await agent.ended() == ExitCode.APPLICATION
    assert agent.report.failed_rank == 1


async def test_the_store_and_its_agent_stay_until_the_last_rank_of_the_gang_is_done(
    band: Band,
) -> None:
    gate = band.gate()
    ask_store = (
        "import socket; socket.create_connection(('{0.store_host}', {0.store_port})).close()"
    )
    variables = script(
        r0=["beat(100)"],
        r1=[gate.line, f"exec({ask_store!r}.format(placement))"],
    )
    first, second = await band.start_ready(2, variables=variables)
    await first.push(band.record(agents=2, ranks=1))
    assert (await first.event("rank_exited"))["code"] == 0
    assert (await first.status()).phase is AgentPhase.RUNNING, "the gang is not done"
    gate.open()

    assert (await second.ended(), await first.ended()) == (0, 0)
    assert first.report.progress.step == 100
    assert first.report.error == ""


async def test_the_leader_does_not_end_well_while_a_rank_is_not_done(band: Band) -> None:
    gate = band.gate()
    variables = script(r0=["done(100)"], r1=["beat(99)", gate.line, "done(100)"])
    first, second = await band.start_ready(2, variables=variables)
    await first.push(band.record(agents=2, ranks=1))
    await first.event("rank_exited")
    await second.event("ranks_started")
    status = await first.status()
    assert (await first.status(since=status.version, wait=2.5)).phase is AgentPhase.RUNNING
    gate.open()

    assert [await first.ended(), await second.ended()] == [0, 0]


async def test_a_rank_that_hangs_once_it_is_done_has_succeeded(band: Band) -> None:
    variables = script(r0=["done(100)", "hang()"], r1=["done(100)"])
    variables["DRUMLINE_TEARDOWN_SECONDS"] = "1"
    agent, code = await run_alone(band, variables, ranks=2)

    assert code == 0
    assert (agent.report.progress.step, agent.report.error) == (100, "")
    [lingers] = agent.events("rank_lingers")
    assert (lingers["rank"], lingers["seconds"]) == (0, 1)
    [started] = agent.events("ranks_started")
    await died(started["pids"]["0"])


@pytest.mark.parametrize(
    "teardown", ["raise ConnectionError('peer gone')", "import os; os.abort()", "exit(3)"]
)
async def test_a_teardown_that_fails_takes_no_success_away(band: Band, teardown: str) -> None:
    agent, code = await run_alone(band, script(r0=["done(100)", teardown]), ranks=1)

    assert (code, agent.report.progress.step, agent.report.error) == (0, 100, "")
    assert agent.events("rank_exited")[0]["code"] != 0
    assert agent.events("rank_lingers") == []


async def test_ranks_that_cannot_notice_are_ended_when_another_member_fails(band: Band) -> None:
    variables = script(r0=["hang()"], r1=["raise ValueError('boom')"])
    first, second = await band.start_ready(2, variables=variables)
    await first.push(final(band.record(agents=2, ranks=1)))

    assert await second.ended() == ExitCode.APPLICATION
    assert await first.ended() == ExitCode.PEER_LOST
    assert not missing(
        first.report.error, "member 1", "rank 1", "ValueError", "boom", "APPLICATION", "Application"
    )
    assert first.report.fault_class is second.report.fault_class is FaultClass.APPLICATION
    assert first.report.failed_rank is None


async def test_sigterm_is_passed_on_and_ranks_may_finish(band: Band) -> None:
    finish = (
        "import signal, sys; signal.signal(15, lambda *_: (beat(5), __import__('os')._exit(0)))"
    )
    [agent] = await band.start_ready(1, variables=script(r0=[finish, "print('armed')", "hang()"]))
    await agent.push(band.record(agents=1, ranks=1))
    await agent.until_line("armed")
    agent.process.terminate()

    assert await agent.ended() == 0
    assert agent.report.progress.step == 5


async def test_ranks_that_ignore_sigterm_are_killed_within_the_grace(band: Band) -> None:
    ignore = "import signal; signal.signal(15, signal.SIG_IGN)"
    variables = {
        **script(r0=[ignore, "print('armed')", "hang()"]),
        "DRUMLINE_GRACE_SECONDS": "1",
    }
    [agent] = await band.start_ready(1, variables=variables)
    await agent.push(band.record(agents=1, ranks=1))
    await agent.until_line("armed")
    agent.process.terminate()

    assert await agent.ended() == 128 + signal.SIGTERM
    assert agent.events("rank_exited")[0]["reason"] == "killed by SIGKILL"
    assert agent.report.error == "terminated before its ranks had finished"


async def test_sigterm_while_waiting_ends_the_agent_at_once(band: Band) -> None:
    [agent] = await band.start_ready(1, variables=MODULE)
    agent.process.terminate()

    assert await agent.ended() == 128 + signal.SIGTERM
    assert agent.report.error == "terminated before its ranks were started"


async def test_no_rank_outlives_its_agent(band: Band) -> None:
    [agent] = await band.start_ready(1, variables=script(r0=["hang()"]))
    await agent.push(band.record(agents=1, ranks=1))
    pid = (await agent.event("ranks_started"))["pids"]["0"]
    agent.process.kill()

    await died(pid)


async def test_the_agent_fails_with_its_zygote(band: Band) -> None:
    [agent] = await band.start_ready(1, variables=script(r0=["hang()"]))
    await agent.push(band.record(agents=1, ranks=1))
    rank = (await agent.event("ranks_started"))["pids"]["0"]
    os.kill(only_child(agent.process.pid), signal.SIGKILL)

    assert await agent.ended() == 137
    assert not missing(agent.report.error, "SIGKILL")
    await died(rank)


async def test_a_module_that_cannot_be_imported_is_named(band: Band) -> None:
    agent = await band.start(0, variables={"DRUMLINE_RANK_MODULE": "no_such_trainer"})

    assert await agent.ended() == ExitCode.APPLICATION
    assert "No module named 'no_such_trainer'" in agent.report.error


async def test_what_a_rank_leaves_behind_dies_with_it(band: Band) -> None:
    leave = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid)"
    agent, code = await run_alone(band, script(r0=[leave]), ranks=1)

    assert code == 0
    await died(int(agent.printed(0)[0]))


async def test_orphans_are_adopted_and_reaped(band: Band) -> None:
    """The orphan leaves its process group, so nobody but PID 1 is left to wait for it."""
    orphan = "import os; os.system('setsid sleep 1000 & echo $!')"
    [agent] = await band.start_ready(1, variables=script(r0=[orphan, "print('left')", "hang()"]))
    await agent.push(band.record(agents=1, ranks=1))
    await agent.until_line("left")
    pid = int(agent.printed(0)[0])
    assert parent_of(pid) == agent.process.pid
    os.kill(pid, signal.SIGKILL)
    await died(pid)

    async with asyncio.timeout(HANG_SECONDS):
        while exists(pid):
            assert (await agent.call("GET", "/healthz"))[0] == 200  # one more turn of its loop


async def test_the_zygote_leaves_it_to_the_agent_when_to_stop(band: Band) -> None:
    gate = band.gate()
    [agent] = await band.start_ready(1, variables=script(r0=[gate.line]))
    await agent.push(band.record(agents=1, ranks=1))
    await agent.event("ranks_started")
    os.kill(only_child(agent.process.pid), signal.SIGTERM)
    gate.open()

    assert await agent.ended() == 0
