"""Processes that a rank starts may save after a notice, and never outlive their attempt."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from drumline_contract import ExitCode, FaultClass, Launch
from tests.faults.agent.commands import CommandBand, start_commands
from tests.faults.agent.gang import Gang

pytestmark = pytest.mark.extended(keep=1)


SAVES = """
import os, signal, sys, time
def save(*_):
    while not os.path.exists("{gate}"):
        time.sleep(0.01)
    print("has saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


@pytest.mark.parametrize("pods_of_gang", [1, 2])
async def test_a_script_below_a_shell_has_its_grace_period(pods: Gang, pods_of_gang: int) -> None:
    """A shell ends at SIGTERM while the script that it started still saves."""
    assert isinstance(pods.band, CommandBand)
    folder, gate = pods.band.folder, pods.band.folder / "gate"
    (folder / "save.py").write_text(SAVES.format(gate=gate))
    shell = folder / "train.sh"
    shell.write_text(f"cd {folder}\n{sys.executable} save.py\necho ended\n")
    pods.band.command = ["sh", str(shell)]
    await start_commands(pods, pods_of_gang, script="")
    for agent in pods.agents.values():
        await agent.until_line("ready")
    leaves = pods.agents[pods_of_gang - 1]
    leaves.process.send_signal(signal.SIGTERM)
    for agent in pods.agents.values():
        assert (await agent.event("rank_exited"))["code"] == -signal.SIGTERM
    gate.touch()
    for agent in pods.agents.values():
        await agent.until_line("has saved")
    assert await leaves.ended() == ExitCode.PREEMPTED


LAUNCHER = """
import os, subprocess, sys, time
worker = subprocess.Popen([sys.executable, "{worker}"], start_new_session=True, env={variables})
worker.wait()
"""
WORKER = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("worker", os.getpid(), flush=True)
while True:
    time.sleep(60)
"""


async def worker_of(gang: Gang) -> int:
    line = await gang.leader.until_line("worker ")
    while not line.startswith("worker "):  # events quote the last line
        line = await gang.leader.until_line("worker ")
    return int(line.split()[1])


@pytest.mark.parametrize("variables", [None, {}], ids=["torchrun", "sudo"])
async def test_a_worker_in_a_session_of_its_own_ends_with_its_launcher(
    pods: Gang, variables: dict[str, str] | None
) -> None:
    """torchrun starts its workers so, and sudo without the variables."""
    pods.record_fields = {"restarts_left": {FaultClass.INFRASTRUCTURE: 1}}
    worker = pods.band.folder / "worker.py"
    worker.write_text(WORKER)
    script = LAUNCHER.format(worker=worker, variables=variables)
    await start_commands(pods, 1, script=script, launch=Launch.PER_POD)
    launchers, first = await pods.pids(), await worker_of(pods)
    os.kill(launchers[0], signal.SIGKILL)
    second = await worker_of(pods)
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    pods.leader.process.send_signal(signal.SIGTERM)
    await pods.leader.ended()
    with pytest.raises(ProcessLookupError):
        os.kill(second, 0)
