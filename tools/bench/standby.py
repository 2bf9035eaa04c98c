"""SIGKILL of a rank of a user's script to the next step: cold, and with a preloaded standby.

    python -m tools.bench.standby [KILLS]

Real agents with two pods of a DDP script on Gloo, cold and preloaded in turns. Counted from the
outside: from the moment before the signal until the leading agent prints a step of the new attempt.
The signals come once every standby is ready, so that nothing else imports.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from drumline_contract import Launch, LaunchSettings
from tests.faults.agent.commands import CommandBand, start_commands
from tests.faults.agent.gang import Gang
from tools.bench.report import Row, publish

SCRIPT = Path(__file__).with_name("standby_script.py")
PODS = 2
KILLS = 5
IMPORTS = 3
MODULES = ("torch", "torch._dynamo", "torch.nn.parallel")
"""What the script imports, and what torch imports with the first step of an optimizer."""
GOAL_SECONDS = 2.0


def main() -> None:
    """Measure and publish."""
    arguments = argparse.ArgumentParser(prog="python -m tools.bench.standby", description=__doc__)
    arguments.add_argument("kills", nargs="?", type=int, default=KILLS, help="of each kind")
    kills: int = arguments.parse_args().kills
    _import_torch()  # the page cache is warm for all that follow
    bare = median(_import_torch() for _ in range(IMPORTS))
    print(f"a bare import of torch: {bare:.2f} s", flush=True)
    cold, preloaded = asyncio.run(_measure(kills))
    publish("standby", _rows(bare=bare, cold=cold, preloaded=preloaded))


async def _measure(kills: int) -> tuple[list[float], list[float]]:
    """Seconds of each kill, cold and preloaded."""
    cold: list[float] = []
    preloaded: list[float] = []
    async with _gang(()) as without, _gang(MODULES) as with_standbys:
        pids = {id(gang): await _trains(gang) for gang in (without, with_standbys)}
        for _ in range(kills):
            for agent in with_standbys.agents.values():
                await agent.event("standby_ready")
            for gang, seconds in ((without, cold), (with_standbys, preloaded)):
                began = time.time()
                os.kill(pids[id(gang)][1], signal.SIGKILL)
                pids[id(gang)] = await _trains(gang)
                seconds.append(time.time() - began)
                print(f"{'cold' if gang is without else 'preloaded'}: {seconds[-1]:.2f} s")
        for agent in with_standbys.agents.values():
            used = [bool(event["preloaded"]) for event in agent.events("ranks_started")]
            assert used == [False, *[True] * kills], used
    return cold, preloaded


@asynccontextmanager
async def _gang(modules: tuple[str, ...]) -> AsyncIterator[Gang]:
    with tempfile.TemporaryDirectory() as folder:
        gang = Gang(CommandBand(folder=Path(folder), command=[sys.executable, str(SCRIPT)]))
        launch = LaunchSettings(launch=Launch.PER_GPU, preload=modules)
        # a thread each: the two gangs have four ranks on the cores of one machine
        variables = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        try:
            await start_commands(gang, PODS, script="", launch=launch, **variables)
            yield gang
        finally:
            await gang.band.stop()


async def _trains(gang: Gang) -> dict[int, int]:
    """The process ids of the next attempt, once it has shown a step."""
    pids = await gang.pids()
    await gang.leader.until_line("iter 1: ")
    return pids


def _import_torch() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


def _rows(*, bare: float, cold: list[float], preloaded: list[float]) -> list[Row]:
    short = median(preloaded)
    return [
        Row(name="bare import of torch", value=bare, unit="s"),
        Row(
            name="SIGKILL of a rank to the next step, cold",
            value=median(cold),
            unit="s",
            source=f"median of {len(cold)}, slowest {max(cold):.2f} s",
        ),
        Row(
            name="the same with a preloaded standby",
            value=short,
            unit="s",
            goal=f"<= {GOAL_SECONDS:g} s",
            met=short <= GOAL_SECONDS,
            source=f"median of {len(preloaded)}, slowest {max(preloaded):.2f} s",
        ),
        Row(name="preloaded as a share of cold", value=short / median(cold), unit="x"),
    ]


if __name__ == "__main__":
    main()
