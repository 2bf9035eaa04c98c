"""Real ranks that lose some of them: the others stay, and what comes out is the same to the bit."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from drumline_contract.step_series import PARTS, decode
from tests.faults.agent.gang import Gang
from tests.faults.agent.warm import WarmBand, WarmStarter

pytestmark = [pytest.mark.gloo, pytest.mark.extended]

STEPS = 80
"""So many that they are not done before something happens to a gang that is at work."""
KILLED = {
    "one rank": ([(3, signal.SIGKILL)], "Infrastructure"),
    "rank 0": ([(0, signal.SIGSEGV)], "Application"),
    "two at once": ([(1, signal.SIGKILL), (2, signal.SIGKILL)], "Infrastructure"),
}

Result = tuple[dict[int, float | None], str]


async def trained(gang: Gang) -> Result:
    """What a gang that has ended well has to show."""
    assert await gang.ended() == [0] * len(gang.agents)
    return gang.losses(), gang.weights()


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """Of the undisturbed run, once there is one."""
    return {}


@pytest.fixture
async def undisturbed(results: dict[str, Result], starter: WarmStarter, tmp_path: Path) -> Result:
    """Two pods of two ranks that nobody disturbs."""
    if not results:
        folder = tmp_path / "undisturbed"
        folder.mkdir()
        band = WarmBand(folder=folder, starter=starter)
        gang = Gang(band)
        await gang.start(2, ranks=2, variables=gang.training(steps=STEPS))
        await gang.push()
        results["undisturbed"] = await trained(gang)
        await band.stop()
    return results["undisturbed"]


async def at_work(gang: Gang, *, snapshot_every_steps: int = 10) -> dict[int, int]:
    """Two pods of two ranks in the middle of their training; process ids by rank."""
    # a copy is at the partner long before the next snapshot is taken
    snapshots = {"snapshot_every_steps": snapshot_every_steps}
    await gang.start(2, ranks=2, variables=gang.training(steps=STEPS, checkpoint=snapshots))
    await gang.push()
    pids = await gang.pids()
    await gang.reached(20)
    return pids


@pytest.mark.parametrize(("killed", "fault_class"), KILLED.values(), ids=KILLED)
async def test_only_killed_ranks_are_forked_again(
    gang: Gang, undisturbed: Result, killed: list[tuple[int, int]], fault_class: str
) -> None:
    before = await at_work(gang)
    for rank, number in killed:
        os.kill(before[rank], number)

    after = await gang.pids()
    incident = await gang.incident()
    renewed = {rank for rank in before if before[rank] != after[rank]}
    # Gloo may leave a survivor waiting whose peers died with bytes under way (recovery/abort.py):
    # it is given up after its time to park, and forked again as well. Seen once in a hundred.
    lingered = {
        each["rank"] for agent in gang.agents.values() for each in agent.events("rank_lingers")
    }
    assert len(lingered) <= 1
    assert renewed - lingered == {rank for rank, _ in killed}
    assert (incident["generation"], incident["attempt"]) == (1, 1)
    assert (incident["fault_class"], incident["tier"]) == (fault_class, "Memory")
    assert incident["culprit_rank"] in {rank for rank, _ in killed}
    assert await trained(gang) == undisturbed
    last = decode(gang.leader.report.progress.series)[-1]
    assert (last.step, last.generation) == (STEPS, 1)
    assert last.loss == pytest.approx(undisturbed[0][STEPS], rel=1e-3)
    assert last.parts["compute"] > 0
    assert sum(last.parts.values()) == pytest.approx(1000, abs=len(PARTS))


async def test_only_a_stopped_rank_is_killed(gang: Gang, undisturbed: Result) -> None:
    # far from any snapshot: whoever takes one may be silent for half a minute
    before = await at_work(gang, snapshot_every_steps=15)
    os.kill(before[2], signal.SIGSTOP)

    after = await gang.pids()
    incident = await gang.incident()
    assert {rank for rank in before if before[rank] != after[rank]} == {2}
    assert (incident["fault_class"], incident["culprit_rank"]) == ("Hang", 2)
    assert "while all others waited for it" in incident["cause"]
    assert await trained(gang) == undisturbed


async def test_a_lost_pod_is_replaced_from_its_partners_memory(
    gang: Gang, undisturbed: Result
) -> None:
    before = await at_work(gang)
    await gang.replace(1)

    after = await gang.pids()
    incident = await gang.incident()
    assert (after[0], after[1]) == (before[0], before[1])
    assert (incident["generation"], incident["attempt"]) == (2, 0)
    assert (incident["fault_class"], incident["cause"]) == ("Infrastructure", "lost member 1")
    assert incident["tier"] == "Peer"
    assert await trained(gang) == undisturbed


async def test_the_leaders_pod_is_replaced_like_any_other(gang: Gang, undisturbed: Result) -> None:
    before = await at_work(gang)
    await gang.replace(0)

    after = await gang.pids()
    incident = await gang.incident()
    assert (after[2], after[3]) == (before[2], before[3])
    assert (incident["cause"], incident["tier"]) == ("lost member 0", "Peer")
    assert await trained(gang) == undisturbed


async def test_a_rank_that_dies_while_its_peers_join_again(gang: Gang, undisturbed: Result) -> None:
    before = await at_work(gang)
    os.kill(before[3], signal.SIGKILL)
    during = await gang.pids()
    os.kill(during[1], signal.SIGKILL)

    incidents = [await gang.incident(), await gang.incident()]
    assert [incident["attempt"] for incident in incidents] == [1, 2]
    assert incidents[0]["first_step_at"] == incidents[1]["first_step_at"]
    assert await trained(gang) == undisturbed
