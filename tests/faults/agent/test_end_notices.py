"""A command that its template notifies otherwise than by SIGTERM."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from drumline_contract import ExitCode, Launch, LaunchSettings, NoticeSignal
from tests.faults.agent.commands import start_commands
from tests.faults.agent.gang import Gang

pytestmark = pytest.mark.extended(keep=1)


HEARS_A_SIGNAL = """
import os, signal, sys, time
def save(number, _):
    print("saved at", signal.Signals(number).name, flush=True)
    sys.exit(0)
signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
while True:
    time.sleep(60)
"""


async def test_every_rank_gets_the_signal_of_its_template(pods: Gang) -> None:
    launch = LaunchSettings(launch=Launch.PER_GPU, notice_signal=NoticeSignal.SIGUSR1)
    await start_commands(pods, 2, script=HEARS_A_SIGNAL, launch=launch)
    for agent in pods.agents.values():
        await agent.until_line("ready")
    pods.agents[1].process.send_signal(signal.SIGTERM)

    assert await pods.agents[1].ended() == ExitCode.PREEMPTED
    await pods.leader.until_line("saved")
    assert "saved at SIGUSR1" in pods.leader.lines
    assert "saved at SIGUSR1" in pods.agents[1].lines


POLLS_A_FILE = """
import os, sys, time
path, rank = {path}, os.environ["RANK"]
print("begins", os.path.exists(path), flush=True)
if os.path.exists(os.environ["FOLDER"] + "/second"):
    sys.exit()
while not os.path.exists(path):
    time.sleep(0.01)
print("notice", open(path).read(), flush=True)
"""


def by_file(path: str) -> LaunchSettings:
    """A file alone says it."""
    return LaunchSettings(launch=Launch.PER_GPU, notice_signal=NoticeSignal.NONE, notice_file=path)


async def test_a_file_says_when_the_grace_period_ends_and_is_gone_in_the_next_attempt(
    pods: Gang, tmp_path: Path
) -> None:
    path = tmp_path / "end.json"
    script = POLLS_A_FILE.format(path=repr(str(path)))
    path.write_text("of an earlier pod")
    before = time.time()
    await start_commands(pods, 2, script=script, launch=by_file(str(path)))
    for agent in pods.agents.values():
        await agent.until_line("begins")
        assert "begins False" in agent.lines
    pods.agents[1].process.send_signal(signal.SIGTERM)

    assert await pods.agents[1].ended() == ExitCode.PREEMPTED
    line = await pods.leader.until_line("notice {")
    assert before < json.loads(line.removeprefix("notice "))["deadline"] < time.time() + 60
    (tmp_path / "second").touch()
    await pods.replace(1)
    assert await pods.ended() == [0, 0]
    assert not path.exists()
    assert not pods.leader.events("fault")


async def test_a_file_that_cannot_be_written_is_replaced_by_sigterm(
    pods: Gang, tmp_path: Path
) -> None:
    launch = by_file(str(tmp_path / "no" / "such" / "folder"))
    await start_commands(pods, 1, script=HEARS_A_SIGNAL, launch=launch)
    await pods.leader.until_line("ready")
    pods.leader.process.send_signal(signal.SIGTERM)

    assert await pods.leader.ended() == ExitCode.PREEMPTED
    assert "saved at SIGTERM" in pods.leader.lines
    [failed] = pods.leader.events("notice_file_failed")
    assert "No such file or directory" in failed["reason"]
