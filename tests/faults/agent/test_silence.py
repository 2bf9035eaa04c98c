"""Who is silent is shown, and nobody acts on it but the operator."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.agent.agents import Agent
from tests.faults.agent.gang import Gang
from tests.faults.agent.scripts import script

pytestmark = pytest.mark.extended(keep=1)


async def silent_at(agent: Agent) -> set[int]:
    """Who is silent in the first status that names anyone."""
    status = await agent.status()
    while not status.silent:
        status = await agent.status(since=status.version)
    return {item.index for item in status.silent}


async def heard_again_at(agent: Agent) -> None:
    status = await agent.status()
    while status.silent:
        status = await agent.status(since=status.version)


async def test_a_follower_that_is_gone_is_silent_at_the_leader(gang: Gang) -> None:
    hang = ["beat(3)", "hang()"]
    await gang.start(3, variables=script(r0=hang, r1=hang, r2=hang))
    await gang.push()
    await gang.pids()
    await gang.agents[2].kill()

    assert await silent_at(gang.leader) == {2}
    assert (await gang.agents[1].status()).silent == (), "followers hear their leader only"


async def test_a_leader_that_is_gone_is_silent_at_the_followers(gang: Gang) -> None:
    hang = ["beat(3)", "hang()"]
    await gang.start(2, variables=script(r0=hang, r1=hang))
    await gang.push()
    await gang.pids()
    await gang.leader.kill()

    assert await silent_at(gang.agents[1]) == {0}
    assert gang.agents[1].process.returncode is None, "only a new generation can tell"


async def test_a_member_that_returns_is_no_longer_silent(gang: Gang) -> None:
    hang = ["beat(3)", "hang()"]
    await gang.start(2, variables=script(r0=hang, r1=hang))
    await gang.push()
    await gang.pids()
    os.kill(gang.agents[1].process.pid, signal.SIGSTOP)
    assert await silent_at(gang.leader) == {1}
    os.kill(gang.agents[1].process.pid, signal.SIGCONT)

    await heard_again_at(gang.leader)


async def test_a_new_generation_begins_without_silent_members(gang: Gang) -> None:
    line = "beat(3); hang(until=0, generation=2); beat(3); beat(4); hang()"
    await gang.start(2, variables=script(r0=[line], r1=[line]))
    await gang.push()
    await gang.pids()
    await gang.renew([1])
    assert await silent_at(gang.leader) == {1}
    await gang.push()

    assert (await gang.status()).silent == ()
    await gang.pids()
    incident = await gang.incident()
    assert incident["decided_at"] - incident["fault_at"] > 2, "it was silent before"
