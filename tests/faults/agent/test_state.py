"""Snapshots of a script's own state under agents: a rank dies, a pod dies, a snapshot is damaged.

Steps that are done twice have the same loss bit for bit, and all have that of an undisturbed run,
which `make test-all WHAT=samples` makes.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from drumline_contract import Launch
from tests.faults.agent.commands import CommandBand, start_commands
from tests.faults.agent.gang import Gang

pytestmark = pytest.mark.extended

SCRIPT = Path(__file__).with_name("state_script.py")
STEP = re.compile(r"^(?:\[rank \d+\] )?step (\d+): (.*)$")


def gang_in(folder: str) -> Gang:
    """Of a folder with a short path, for the sockets in it."""
    return Gang(CommandBand(folder=Path(folder), command=[sys.executable, str(SCRIPT)]))


async def start(gang: Gang, *, holds: str = "1") -> None:
    variables = {"GLOO_SOCKET_IFNAME": "lo", "HOLDS": holds}
    await start_commands(gang, 2, script="", **variables)


def steps_of(lines: Iterable[str]) -> list[tuple[int, str]]:
    """Step and what it printed, in order."""
    return [(int(match[1]), match[2]) for match in map(STEP.match, lines) if match]


async def undisturbed() -> list[tuple[int, str]]:
    with TemporaryDirectory() as folder:
        gang = gang_in(folder)
        try:
            await start(gang, holds="")
            await gang.leader.until_line("begins 0")  # each wait has its own time
            await gang.leader.until_line("step 16:")
            assert await gang.ended() == [0, 0], gang.leader.text
        finally:
            await gang.band.stop()
    return steps_of(gang.leader.lines)


async def until_held(gang: Gang, *, step: int, snapshot: int) -> None:
    """Until every rank has reported this step, and its snapshot of the other is at its peer."""
    for agent in gang.agents.values():
        status = await agent.status()
        while status.progress.step < step:
            status = await agent.status(since=status.version)
        while all(event["step"] != snapshot for event in agent.events("snapshot_copied")):
            await agent.event("snapshot_copied")


@pytest.mark.gloo
async def test_a_killed_rank_and_a_lost_pod_cost_the_steps_since_the_newest_snapshot() -> None:
    with TemporaryDirectory() as folder:
        gang = gang_in(folder)
        try:
            await start(gang)
            pids = await gang.pids()
            await gang.leader.until_line("begins 0")
            await until_held(gang, step=8, snapshot=6)
            os.kill(pids[1], signal.SIGKILL)
            await gang.leader.until_line("begins 6, seen 24")
            await until_held(gang, step=13, snapshot=12)
            former = gang.leader
            await gang.replace(0)
            await gang.leader.until_line("begins 12, seen 48")
            await gang.leader.until_line("step 16:")
            assert await gang.ended() == [0, 0], gang.leader.text
        finally:
            await gang.band.stop()
    leaders = (former, gang.leader)
    printed = steps_of(line for agent in leaders for line in agent.lines)
    assert [step for step, _ in printed] == [*range(1, 9), *range(7, 14), *range(13, 17)]
    assert len(set(printed)) == 16  # what was done twice came out the same
    if os.environ.get("DRUMLINE_SAMPLES") == "all":
        assert set(printed) == set(await undisturbed())
    incidents = [agent.events("incident")[-1]["incident"] for agent in leaders]
    assert [
        (incident["failed_step"], incident["restored_step"], incident["tier"])
        for incident in incidents
    ] == [(8, 6, "Memory"), (13, 12, "Peer")], [agent.events("incident") for agent in leaders]


REFUSES = """
import hashlib, os, sys, time
sys.path[:0] = os.environ["PYTHONPATH"].split(":")
import drumline_client
from drumline_client.environment import SNAPSHOTS_VARIABLE, SnapshotPlace
from drumline_client.snapshot_file import SnapshotHeader, write_snapshot
from drumline_client.wire import RestoreFailed, SnapshotWritten

run = drumline_client.join()
place = SnapshotPlace.parse(os.environ[SNAPSHOTS_VARIABLE])
print("begins", place.restore_step, flush=True)
if place.restore_step == 20 and run.rank == 1:
    run._deliver(RestoreFailed(step=20, error="damaged"))
    raise ValueError("damaged")
for step in (10, 20) if place.restore_step is None else ():
    digest = hashlib.sha256(b"state").hexdigest()
    header = SnapshotHeader(
        rank=run.rank, step=step, world_size=2, generation=1, attempt=0, config="", trainer={},
        body_bytes=5, sha256=digest,
    )
    size = write_snapshot(place.folder, header, (memoryview(b"state"),))
    run._deliver(SnapshotWritten(step=step, bytes=size, sha256=digest, seconds=0.0))
    run.step(step)
ready = f"{place.folder}.ready"
if place.restore_step is None and run.rank == 0:
    open(ready, "w").close()
if place.restore_step is None and run.rank == 1:
    while not os.path.exists(ready):  # both ranks need a snapshot of step 20 before the fault
        time.sleep(0.01)
    time.sleep(0.5)
    raise ValueError("the first fault")
time.sleep(0 if place.restore_step == 10 else 600)
"""


async def test_a_snapshot_that_a_rank_cannot_use_is_passed_over_for_the_one_before() -> None:
    with TemporaryDirectory() as folder:
        gang = Gang(CommandBand(folder=Path(folder)))
        try:
            await start_commands(gang, 1, script=REFUSES, ranks=2)
            assert await gang.ended() == [0], gang.leader.text
        finally:
            await gang.band.stop()
    begins = [line for line in gang.leader.printed(1) if line.startswith("begins")]
    assert begins == ["begins None", "begins 20", "begins 10"]
    [refused] = gang.leader.events("snapshot_refused")
    assert (refused["rank"], refused["step"], refused["reason"]) == (1, 20, "damaged")


LAUNCHES = """
import os, subprocess, sys
each = int(os.environ["NPROC_PER_NODE"])
first, ranks = int(os.environ["NODE_RANK"]) * each, int(os.environ["NNODES"]) * each
started = [
    subprocess.Popen(
        [sys.executable, "-I", "-u", "-c", os.environ["SCRIPT"]],
        env={**os.environ, "RANK": str(first + local), "LOCAL_RANK": str(local),
             "WORLD_SIZE": str(ranks)},
    )
    for local in range(each)
]
sys.exit(max(each.wait() for each in started))
"""
RESTORES = """
import hashlib, os, sys, time
sys.path[:0] = os.environ["PYTHONPATH"].split(":")
import drumline_client
from drumline_client.environment import SNAPSHOTS_VARIABLE, SnapshotPlace
from drumline_client.snapshot_file import SnapshotHeader, snapshot_file, write_snapshot
from drumline_client.wire import SnapshotWritten

run = drumline_client.join()
place = SnapshotPlace.parse(os.environ[SNAPSHOTS_VARIABLE])
assert place.fits(run._place)
here = place.restore_step is not None and snapshot_file(
    place.folder, rank=run.rank, step=place.restore_step
).exists()
sys.stdout.write(f"rank {run.rank} begins {place.restore_step} {here}\\n")  # in a piece
if place.restore_step is None:
    state = b"state"
    digest = hashlib.sha256(state).hexdigest()
    header = SnapshotHeader(
        rank=run.rank, step=10, world_size=run.world_size, generation=place.generation,
        attempt=place.attempt, config="", trainer={}, body_bytes=len(state), sha256=digest,
    )
    size = write_snapshot(place.folder, header, (memoryview(state),))
    run._deliver(SnapshotWritten(step=10, bytes=size, sha256=digest, seconds=0.0))
    run.step(10)
    time.sleep(600)
"""


async def test_the_ranks_of_a_launcher_have_snapshots_also_in_a_new_pod() -> None:
    with TemporaryDirectory() as folder:
        gang = Gang(CommandBand(folder=Path(folder)))
        try:
            variables = {"SCRIPT": RESTORES}
            await start_commands(
                gang, 2, script=LAUNCHES, launch=Launch.PER_POD, ranks=2, **variables
            )
            for agent in gang.agents.values():
                copied: set[int] = set()
                while len(copied) < 2:
                    copied.add((await agent.event("snapshot_copied"))["rank"])
            await gang.replace(1)
            assert await gang.ended() == [0, 0], gang.leader.text
        finally:
            await gang.band.stop()
    for index, agent in gang.agents.items():
        for rank in (2 * index, 2 * index + 1):
            assert any(f"rank {rank} begins 10 True" in line for line in agent.lines), agent.text
