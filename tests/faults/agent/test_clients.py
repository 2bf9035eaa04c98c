"""Scripts that use the client (`drumline_client`) under agents: notices, drains, lost pods."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from drumline_contract import ExitCode, FaultClass, Launch
from tests.faults.agent.commands import CommandBand, start_commands
from tests.faults.agent.gang import Gang
from tests.texts import missing

pytestmark = pytest.mark.extended(keep=1)


@pytest.fixture
async def pods() -> AsyncIterator[Gang]:
    """Pods of a gang that runs a command, in a folder whose sockets have short paths."""
    with TemporaryDirectory() as folder:
        band = CommandBand(folder=Path(folder))
        yield Gang(band)
        await band.stop()


TRAINS = """
import os, sys, time, json
sys.path[:0] = os.environ["PYTHONPATH"].split(":")
import drumline_client

run = drumline_client.join()
FOLDER = os.environ["FOLDER"]
RESTART = run.restarts
begin = run.checkpoint[0] if run.checkpoint else 0
print("begins", begin, "resized", run.resized)
run.expect(100_000)
for step in range(begin + 1, 100_000):
    time.sleep(0.01 * (1 + run.rank))  # ranks at different steps: nothing here waits for peers
    run.step(step, loss=1 / step, tokens=8)
    if run.should_save():
        path = os.path.join(FOLDER, f"{step}-{run.rank}")
        open(path, "w").close()
        print("saved", step, flush=True)
        run.saved(step, path)
        if run.should_stop():
            print("stops", step, flush=True)
            break
"""


async def until_it_acknowledges(gang: Gang) -> None:
    """Until every agent knows that the program asks whether to save."""
    for agent in gang.agents.values():
        status = await agent.status()
        while not status.acknowledges_saves:
            status = await agent.status(since=status.version)


def saved_steps(gang: Gang) -> dict[str, set[str]]:
    """Ranks by the step that each has saved."""
    steps: dict[str, set[str]] = {}
    for path in gang.band.folder.iterdir():
        step, _, rank = path.name.partition("-")
        if step.isdigit():
            steps.setdefault(step, set()).add(rank)
    return steps


async def test_a_notice_is_saved_by_all_ranks_at_the_same_step_and_training_goes_on(
    pods: Gang,
) -> None:
    await start_commands(pods, 2, script=TRAINS, ranks=2)
    await until_it_acknowledges(pods)
    await pods.notice("spot")
    answer = await pods.leader.event("notice_answered")
    assert answer["id"] == "spot"
    assert answer["error"] == ""
    assert saved_steps(pods) == {str(answer["step"]): {"0", "1", "2", "3"}}
    status = await pods.status()
    assert status.notice is not None
    assert status.notice.step == answer["step"]
    assert status.progress.checkpoint_step == answer["step"]
    assert status.progress.total_steps == 100_000
    while status.progress.step <= answer["step"]:  # a report of the client's, twice a second
        status = await pods.status(since=status.version, wait=1)
    assert not pods.leader.events("fault")


async def test_a_notice_to_leave_ends_every_pod_once_all_ranks_have_saved(pods: Gang) -> None:
    await start_commands(pods, 2, script=TRAINS)
    await until_it_acknowledges(pods)
    await pods.notice("preemption", leave=True)
    assert await pods.ended() == [ExitCode.PREEMPTED] * 2
    [(step, ranks)] = saved_steps(pods).items()
    assert ranks == {"0", "1"}
    for agent in pods.agents.values():
        assert f"stops {step}" in agent.text
        assert agent.report.progress.checkpoint_step == int(step)
    assert not pods.leader.events("fault")


async def test_a_pod_that_is_drained_has_all_save_first_and_no_step_is_done_twice(
    pods: Gang,
) -> None:
    await start_commands(pods, 2, script=TRAINS)
    await until_it_acknowledges(pods)
    pods.agents[1].process.send_signal(signal.SIGTERM)
    assert await pods.agents[1].ended() == ExitCode.PREEMPTED
    [(step, ranks)] = saved_steps(pods).items()
    assert ranks == {"0", "1"}
    await pods.replace(1)
    await pods.leader.until_line(f"begins {step} ")
    await until_it_acknowledges(pods)
    assert not pods.leader.events("fault")


@pytest.mark.parametrize(("launch", "before"), [(Launch.PER_GPU, 4), (Launch.PER_POD, 4)])
async def test_every_rank_learns_that_the_gang_had_another_size(
    pods: Gang, launch: Launch, before: int
) -> None:
    """Also in a pod that was not there then."""
    pods.record_fields = {"previous_ranks": before}
    await start_commands(pods, 2, script=TRAINS, launch=launch)
    for agent in pods.agents.values():
        await agent.until_line("begins 0 resized True")


async def test_the_same_size_as_before_is_no_other_one(pods: Gang) -> None:
    pods.record_fields = {"previous_ranks": 2}
    await start_commands(pods, 2, script=TRAINS)
    await pods.leader.until_line("begins 0 resized False")


async def test_a_program_that_never_asks_acknowledges_no_notice(pods: Gang) -> None:
    script = TRAINS.replace("if run.should_save()", "if False")
    await start_commands(pods, 2, script=script)
    await pods.pids()
    await pods.notice("spot")
    answer = await pods.leader.event("notice_answered")
    assert (answer["step"], answer["error"]) == (
        None,
        "the program does not acknowledge saves",
    )
    assert not (await pods.status()).acknowledges_saves


async def test_a_rank_that_dies_before_all_have_agreed_is_asked_again_after_its_restart(
    pods: Gang,
) -> None:
    await start_commands(pods, 2, script=TRAINS)
    pids = await pods.pids()
    await until_it_acknowledges(pods)
    os.kill(pids[1], signal.SIGSTOP)  # it replies to no proposal
    await pods.notice("spot")
    await pods.leader.event("save_proposed")
    os.kill(pids[1], signal.SIGKILL)
    answer = await pods.leader.event("notice_answered")
    assert (answer["id"], answer["error"]) == ("spot", "")
    assert saved_steps(pods) == {str(answer["step"]): {"0", "1"}}


async def test_under_per_pod_the_ranks_of_the_users_launcher_join(pods: Gang) -> None:
    launcher = """
import os, subprocess, sys
node, count = int(os.environ["NODE_RANK"]), int(os.environ["NPROC_PER_NODE"])
script = os.path.join(os.environ["FOLDER"], "ranks.py")
def start(local):
    variables = {**os.environ, "RANK": str(node * count + local)}
    return subprocess.Popen([sys.executable, script], env=variables)
ranks = [start(local) for local in range(count)]
sys.exit(max(rank.wait() for rank in ranks))
"""
    (pods.band.folder / "ranks.py").write_text(TRAINS)
    await start_commands(pods, 2, script=launcher, ranks=2, launch=Launch.PER_POD)
    await until_it_acknowledges(pods)
    await pods.notice("preemption", leave=True)
    assert await pods.ended() == [ExitCode.PREEMPTED] * 2
    [ranks] = saved_steps(pods).values()
    assert ranks == {"0", "1", "2", "3"}


async def test_lines_that_are_no_messages_close_the_connection_and_nothing_else(
    pods: Gang,
) -> None:
    hostile = """
import json, os, socket, sys, time
def talk(data):
    with socket.socket(socket.AF_UNIX) as agent:
        agent.connect(os.environ["DRUMLINE_AGENT"])
        try:
            agent.sendall(data)
            agent.settimeout(20)
            return agent.recv(4096)
        except (BrokenPipeError, ConnectionResetError):
            return b""
hello = {"t": "hello", "v": 1, "pid": 1, "rank": 0, "local_rank": 0, "world_size": 1}
def line(**changes):
    return json.dumps({**hello, **changes}).encode() + b"\\n"
print(json.dumps([
    talk(b"no json\\n").decode(),
    talk(b"x" * 9000).decode(),
    talk(b'{"t": "saved", "step": 1}\\n').decode(),
    talk(line(v=2)).decode(),
    talk(line(rank=7, world_size=8)).decode(),
    talk(line()).decode(),
    oct(os.stat(os.environ["DRUMLINE_AGENT"]).st_mode),
]))
"""
    await start_commands(pods, 1, script=hostile)
    assert await pods.ended() == [0]
    [line] = [line for line in pods.leader.lines if line.startswith("[")]
    *closed, version, foreign, welcome, mode = json.loads(line)
    assert closed == ["", "", ""]
    assert "version 1" in version
    assert not missing(foreign, "rank 7")
    assert json.loads(welcome)["job"] == "job"
    assert mode == "0o140600"


async def test_of_ranks_without_a_step_the_rank_that_is_behind_by_its_phase_is_killed(
    pods: Gang,
) -> None:
    hangs = """
    if step == 20 and RESTART == 0:
        if run.rank == 1:
            run.phase("data")
        time.sleep(600)
"""
    loop = "    run.step(step, loss=1 / step, tokens=8)\n"
    pods.record_fields = {"hang_timeout_seconds": 2.0}
    await start_commands(pods, 2, script=TRAINS.replace(loop, loop + hangs.removeprefix("\n")))
    incident = await pods.incident()
    assert (incident["culprit_rank"], incident["fault_class"]) == (1, FaultClass.HANG)
    assert "while all others waited for it" in incident["cause"]


async def test_ranks_that_evaluate_do_not_hang(pods: Gang) -> None:
    evaluates = """
    if step == 5:
        run.phase("evaluating")
        time.sleep(4)
"""
    loop = "    run.step(step, loss=1 / step, tokens=8)\n"
    script = TRAINS.replace(loop, loop + evaluates.removeprefix("\n"))
    pods.record_fields = {"hang_timeout_seconds": 1.0}
    await start_commands(pods, 1, script=script)
    status = await pods.status()
    while status.progress.step <= 5:
        status = await pods.status(since=status.version, wait=1)
    assert not pods.leader.events("fault")
