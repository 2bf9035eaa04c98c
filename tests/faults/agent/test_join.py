"""Pods with a template of their own: the init container that waits for the gang."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from drumline_contract import ExitCode
from tests.faults.agent.agents import ROOT, Agent, Band

pytestmark = pytest.mark.extended(keep=1)


def gang_file(agent: Agent, name: str) -> str:
    return (Path(agent.folder) / "gang" / name).read_text()


async def test_every_member_gets_the_files_and_the_first_exits_last(band: Band) -> None:
    first, second = await band.start_ready(2, program="join")
    assert (await first.push(band.record(agents=3, ranks=2)))[0] == 200

    assert await second.ended() == 0
    await first.event("gang_files_written")
    assert (await first.call("GET", "/healthz"))[0] == 200, "the third still needs it"
    third = await band.start(2, program="join")
    assert (await third.ended(), await first.ended()) == (0, 0)

    assert [event["index"] for event in first.events("member_departed")] == [1, 2]
    for agent in (first, second, third):
        hosts = [line.split() for line in gang_file(agent, "hosts").splitlines()]
        assert ["127.0.0.1", "localhost"] in hosts
        for index in range(3):
            entry = next(fields for fields in hosts if f"job-{index}" in fields)
            assert entry[:2] == [band.address(index), f"job-{index}"]
        assert gang_file(agent, "hostfile") == "job-0 slots=2\njob-1 slots=2\njob-2 slots=2\n"
        members = json.loads(gang_file(agent, "members.json"))
        assert (members["index"], members["world_size"]) == (agent.index, 6)
        assert [member["first_rank"] for member in members["members"]] == [0, 2, 4]


async def test_sigterm_ends_the_wait(band: Band) -> None:
    [agent] = await band.start_ready(1, program="join")
    agent.process.terminate()

    assert await agent.ended() == 143


async def test_an_environment_that_cannot_work_is_named(band: Band) -> None:
    agent = await band.start(0, program="join", variables={"DRUMLINE_INDEX": "first"})

    assert await agent.ended() == ExitCode.CONFIG
    assert agent.lines == ["DRUMLINE_INDEX: must be an integer in 0..9007199254740992, not 'first'"]


async def test_a_word_without_a_value_is_named() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "drumline_agent", "join", "DRUMLINE_JOB"),
        env={"PYTHONPATH": str(ROOT / "trainer")},
        stderr=asyncio.subprocess.PIPE,
    )
    _, error = await process.communicate()

    assert process.returncode == ExitCode.CONFIG
    assert error.decode() == "'DRUMLINE_JOB': want NAME=VALUE\n"
