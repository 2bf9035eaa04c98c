"""Standbys under real agents: a rank that is started again is the process that had imported.

What a script sees says whether it is: `early` keeps the attempt in whose environment it was
imported, which in a process of its own is the attempt that runs.
"""

from __future__ import annotations

import os
import signal
import sys

import pytest

from drumline_contract import ExitCode, Launch, LaunchSettings
from tests.faults.agent.agents import Agent
from tests.faults.agent.commands import CommandBand, launched, start_commands
from tests.faults.agent.gang import Gang
from tests.texts import missing

pytestmark = pytest.mark.extended(keep=1)

EARLY = """
import os
ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]
print("imports", flush=True)
"""
TRAINS = """
import os, sys, time
import early

ATTEMPT = os.environ["TORCHELASTIC_RESTART_COUNT"]
RANK = os.environ["RANK"]
print(f"rank {RANK} attempt {ATTEMPT} imported in {early.ATTEMPT} with {sys.argv}", flush=True)
print("iter 10: loss 4.0000, time 1.00ms, mfu 12.00%", flush=True)
if len(sys.argv) > 1 and ATTEMPT == sys.argv[1]:
    sys.exit(0)
while True:
    time.sleep(60)
"""


async def start(
    pods: Gang,
    count: int = 1,
    *,
    ranks: int = 1,
    preload: str = "early",
    script: str = TRAINS,
    early: str = EARLY,
    **variables: str,
) -> None:
    """Start a gang whose script ends well in its attempt 1."""
    assert isinstance(pods.band, CommandBand)
    folder = pods.band.folder
    (folder / "train.py").write_text(script)
    (folder / "early.py").write_text(early)
    pods.band.command = [sys.executable, "-u", str(folder / "train.py"), "1"]
    settings = LaunchSettings(launch=Launch.PER_GPU, preload=(preload,))
    await start_commands(pods, count, script="", launch=settings, ranks=ranks, **variables)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def lines_of(agent: Agent, rank: int) -> list[str]:
    begin = f"rank {rank} attempt"
    return [
        line[line.index(begin) + 5 :] for line in agent.lines if begin in line and "{" not in line
    ]


async def test_after_a_sigkill_each_rank_is_the_process_that_had_imported(pods: Gang) -> None:
    await start(pods, 2, ranks=2)
    first = await pods.pids()
    standbys = [
        (await agent.event("standby_ready"))["pid"] for agent in pods.agents.values() for _ in "01"
    ]
    kill(first[3])
    second = await pods.pids()

    assert set(second.values()) == set(standbys)
    assert await pods.ended() == [0, 0]
    for rank in range(4):
        arguments = [str(pods.band.folder / "train.py"), "1"]
        assert lines_of(pods.agents[rank // 2], rank) == [
            f"{rank} attempt 0 imported in 0 with {arguments}",
            f"{rank} attempt 1 imported in 0 with {arguments}",
        ]
    started = pods.leader.events("ranks_started")
    assert [event["preloaded"] for event in started] == [[], [0, 1]]
    # what it printed while it imported stands in the log of the rank that it became
    assert [line for line in pods.leader.printed(0) if line == "imports"] == ["imports"] * 2


async def test_a_pod_whose_ranks_print_nothing_has_standbys_after_some_time(pods: Gang) -> None:
    script = TRAINS.replace('print("iter', 'print(RANK == "0" and "iter')
    await start(pods, 2, script=script, DRUMLINE_STEPLESS_SECONDS="1")
    pids = await pods.pids()
    for agent in pods.agents.values():
        await agent.event("standby_ready")
    kill(pids[0])
    assert await pods.ended() == [0, 0]
    for rank, agent in pods.agents.items():
        assert agent.events("ranks_started")[-1]["preloaded"] == [rank]


async def test_the_next_fault_finds_the_next_standby(pods: Gang) -> None:
    await start(pods, script=TRAINS.replace("sys.argv[1]", "'2'"))
    for _ in range(2):
        pids = await pods.pids()
        await pods.leader.event("standby_ready")
        kill(pids[0])
    assert await pods.ended() == [0]
    imports = [line.partition(" with")[0] for line in lines_of(pods.leader, 0)]
    assert imports == [
        f"0 attempt {now} imported in {then}" for now, then in ((0, 0), (1, 0), (2, 1))
    ]


async def test_a_standby_that_hangs_in_its_import_is_not_waited_for(pods: Gang) -> None:
    hangs = (
        "import pathlib, time\n"
        "mark = pathlib.Path(os.environ['FOLDER'], ATTEMPT)\n"
        "if mark.exists():\n"  # the second of an attempt is the standby, whose lines wait
        "    pathlib.Path(f'/proc/{os.getppid()}/fd/1').write_text('for ever\\n')\n"
        "    while True:\n        time.sleep(60)\n"
        "mark.touch()\n"
    )
    await start(pods, early=EARLY + hangs)
    pids = await pods.pids()
    await pods.leader.until_line("for ever")
    kill(pids[0])

    assert await pods.ended() == [0]
    assert "attempt 1 imported in 1" in lines_of(pods.leader, 0)[1]
    assert pods.leader.events("ranks_started")[-1]["preloaded"] == []


async def test_a_standby_that_was_killed_is_not_missed(pods: Gang) -> None:
    await start(pods)
    pids = await pods.pids()
    kill((await pods.leader.event("standby_ready"))["pid"])
    kill(pids[0])
    assert await pods.ended() == [0]
    assert "attempt 1 imported in 1" in lines_of(pods.leader, 0)[1]


async def test_a_module_that_cannot_be_imported_is_named_and_the_rank_starts_without(
    pods: Gang,
) -> None:
    await start(pods, preload="transfomers")
    pids = await pods.pids()
    failed = await pods.leader.event("standby_failed")
    expected = "import transfomers: ModuleNotFoundError: No module named 'transfomers'"
    assert (failed["slot"], failed["reason"]) == (0, expected)
    kill(pids[0])
    assert await pods.ended() == [0]


HAS_A_CHILD = """
if ATTEMPT == "1":
    import subprocess
    print("its child:", subprocess.Popen(["sleep", "600"]).pid, flush=True)
while True"""


async def test_children_of_a_preloaded_rank_end_with_it(pods: Gang) -> None:
    script = TRAINS.replace("sys.argv[1]", "'2'").replace("\nwhile True", HAS_A_CHILD)
    await start(pods, script=script)
    pids = await pods.pids()
    await pods.leader.event("standby_ready")
    kill(pids[0])
    pids = await pods.pids()
    child = int((await pods.leader.until_line("its child:")).split()[-1])
    kill(pids[0])

    assert await pods.ended() == [0]
    assert pods.leader.events("ranks_started")[1]["preloaded"] == [0]
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


SAVES_ALONE = """
import pathlib, signal

def save(*_):
    agent = os.getppid()
    while len(pathlib.Path(f"/proc/{agent}/task/{agent}/children").read_text().split()) > 1:
        time.sleep(0.01)
    print("no other child of the agent", flush=True)
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
"""


async def test_no_standby_holds_memory_while_a_rank_saves_for_the_last_time(pods: Gang) -> None:
    await start(pods, script=TRAINS.replace('\nprint("iter', SAVES_ALONE + 'print("iter'))
    await pods.leader.event("standby_ready")
    pods.leader.process.send_signal(signal.SIGTERM)
    await pods.leader.until_line("no other child of the agent")
    assert await pods.leader.ended() == ExitCode.PREEMPTED


async def test_a_command_that_cannot_be_preloaded_is_refused(pods: Gang) -> None:
    assert isinstance(pods.band, CommandBand)
    pods.band.command = ["torchrun", "train.py"]
    settings = LaunchSettings(launch=Launch.PER_GPU, preload=("torch",))
    agent = await pods.band.start(0, variables=launched(settings))
    assert await agent.ended() == ExitCode.CONFIG
    assert "preload: the command must be a Python program" in agent.text
    assert not missing(agent.text, "'torchrun'")
