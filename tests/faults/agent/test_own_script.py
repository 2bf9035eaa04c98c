"""A torch script of the user's own under agents, against the same script undisturbed."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from drumline_contract import ExitCode, Launch, LaunchSettings
from tests.faults.agent.commands import CommandBand, start_commands
from tests.faults.agent.gang import Gang

pytestmark = pytest.mark.extended

SCRIPT = Path(__file__).with_name("ddp_script.py")
LOSS = re.compile(r"^iter (\d+): loss ([\d.]+),")


async def trained(
    folder: Path, *, killed: bool, preload: tuple[str, ...] = ()
) -> tuple[dict[int, set[str]], Gang]:
    """Losses by step of a gang of two pods, of which rank 1 may be killed at step 10."""
    launch = LaunchSettings(launch=Launch.PER_GPU, preload=preload)
    gang = Gang(CommandBand(folder=folder, command=[sys.executable, str(SCRIPT)]))
    variables = {"CHECKPOINT": str(folder / "checkpoint"), "GLOO_SOCKET_IFNAME": "lo"}
    variables |= {"HOLDS": "1"} if killed else {}
    variables |= {"DRUMLINE_STEPLESS_SECONDS": "1"}
    try:
        await start_commands(gang, 2, script="", launch=launch, **variables)
        if killed:  # each wait has its own time: torch is imported before the first line
            pids = await gang.pids()
            await gang.leader.until_line("iter 10:")
            for agent in gang.agents.values() if preload else ():
                await agent.seen("standby_ready")
            os.kill(pids[1], signal.SIGKILL)
        await gang.leader.until_line("iter 16:")
        assert await gang.ended() == [0, 0], gang.leader.text
    finally:
        await gang.band.stop()
    return losses_of(gang.leader.lines), gang


def losses_of(lines: list[str]) -> dict[int, set[str]]:
    """Losses by step."""
    losses: dict[int, set[str]] = {}
    for match in filter(None, map(LOSS.match, lines)):
        losses.setdefault(int(match[1]), set()).add(match[2])
    return losses


@pytest.mark.gloo
async def test_a_killed_rank_costs_the_steps_since_the_scripts_checkpoint_and_changes_none(
    tmp_path: Path,
) -> None:
    folders = [tmp_path / name for name in ("undisturbed", "killed")]
    for folder in folders:
        folder.mkdir()
    undisturbed, _ = await trained(folders[0], killed=False)
    losses, gang = await trained(folders[1], killed=True)
    assert losses == undisturbed
    assert {step: len(values) for step, values in losses.items()} == dict.fromkeys(range(1, 17), 1)

    [incident] = [event["incident"] for event in gang.leader.events("incident")]
    assert (incident["culprit_rank"], incident["fault_class"]) == (1, "Infrastructure")
    assert (incident["failed_step"], incident["restored_step"]) == (10, 8)
    lost = [line for line in gang.leader.lines if LOSS.match(line)]
    assert len(lost) == 18  # steps 9 and 10 were done twice


@pytest.mark.gloo
async def test_ranks_that_were_preloaded_train_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("undisturbed", "preloaded")]
    for folder in folders:
        folder.mkdir()
    undisturbed, _ = await trained(folders[0], killed=False)
    losses, gang = await trained(folders[1], killed=True, preload=("torch", "torch._dynamo"))
    assert losses == undisturbed
    started = [agent.events("ranks_started")[-1]["preloaded"] for agent in gang.agents.values()]
    assert started == [[0], [1]]


@pytest.mark.gloo
async def test_with_the_client_a_preemption_costs_no_step(tmp_path: Path) -> None:
    (tmp_path / "undisturbed").mkdir()
    undisturbed, _ = await trained(tmp_path / "undisturbed", killed=False)
    with TemporaryDirectory() as folder:  # the path of a socket is short
        gang = Gang(CommandBand(folder=Path(folder), command=[sys.executable, str(SCRIPT)]))
        variables = {"CHECKPOINT": f"{folder}/checkpoint", "GLOO_SOCKET_IFNAME": "lo"}
        try:
            await start_commands(gang, 2, script="", USES_CLIENT="1", **variables)
            status = await gang.status()
            while not status.acknowledges_saves:
                status = await gang.status(since=status.version)
            await gang.notice("preemption", leave=True)
            assert await gang.ended() == [ExitCode.PREEMPTED] * 2, gang.leader.text
            lines, saved = gang.leader.lines, gang.leader.report.progress.checkpoint_step
            await gang.replace(0, 1)
            await gang.leader.until_line("iter ")  # each wait has its own time, as above
            await gang.leader.until_line("iter 16:")
            assert await gang.ended() == [0, 0], gang.leader.text
        finally:
            await gang.band.stop()
    assert saved is not None
    assert max(losses_of(lines)) == saved  # both ranks stopped there: DDP hangs otherwise
    steps = [int(match[1]) for match in map(LOSS.match, [*lines, *gang.leader.lines]) if match]
    assert steps == list(range(1, 17))
    assert losses_of([*lines, *gang.leader.lines]) == undisturbed
