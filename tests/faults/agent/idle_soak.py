"""Gangs that work, under real agents, until time is over: none of them may be called idle.

Three kinds side by side: the bundled trainer, with evaluations, checkpoints and ranks that are
killed; a script with the client, that saves and evaluates for longer than a minute; a script that
only prints, and evaluates for longer than a minute without saying so. At the end both scripts stand
still, and have to be called idle.

    make test-all WHAT=idle MINUTES=30
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from drumline_contract import AgentStatus, Pause
from tests.faults.agent.commands import CommandBand, start_commands
from tests.faults.agent.gang import Gang
from tests.faults.agent.warm import WarmBand, WarmStarter

LOOK_SECONDS = 2.0
"""As often as the operator asks at most."""
FAULT_SECONDS = 60.0
"""Between two ranks of the trainer that are killed, in the mean."""
MISSED_SECONDS = 400.0
"""So long is waited for the scripts to be called idle."""
ENDLESS = 1_000_000

CLIENT = """
import os, random, sys, time
sys.path[:0] = os.environ["PYTHONPATH"].split(":")
import drumline_client

run, dice = drumline_client.join(), random.Random(int(os.environ["RANK"]))
stop = os.path.join(os.environ["FOLDER"], "stop")
for step in range(1, 10**9):
    time.sleep(dice.uniform(0.05, 1.0) if step % 50 else dice.uniform(5.0, 20.0))
    run.step(step, loss=1 / step, tokens=8)
    while os.path.exists(stop):
        time.sleep(1)
    if step % 120 == 30:
        run.phase("evaluating")
        time.sleep(90)
    if step % 120 == 90:
        run.phase("saving")
        time.sleep(70)
        run.saved(step, os.path.join(os.environ["FOLDER"], str(step)))
"""
PRINTS = """
import os, sys, time
stop = os.path.join(os.environ["FOLDER"], "stop")
for step in range(10, 10**9, 10):
    time.sleep(4)
    print(f"step: {step}  loss: {1 / step:.4f}", flush=True)
    if step % 700 == 350:
        end = time.monotonic() + 80
        while time.monotonic() < end:
            sum(range(200_000))
            time.sleep(0.05)
    while os.path.exists(stop):
        time.sleep(1)
"""


@dataclass(kw_only=True)
class Watched:
    """A gang, and what its leader has said of its pauses."""

    name: str
    gang: Gang
    looks: int = 0
    known: int = 0
    """Looks at which the leader could tell."""
    longest: Pause = field(default_factory=lambda: Pause(seconds=0.0, usual_seconds=0.0))
    false: list[str] = field(default_factory=list[str])

    async def look(self) -> AgentStatus:
        """Ask the leader once."""
        status = await self.gang.leader.status()
        self.looks += 1
        pause = status.pause
        if pause is not None:
            self.known += 1
            self.longest = max(self.longest, pause, key=lambda each: each.seconds)
            if pause.is_idle:
                self.false.append(f"{self.name}: step {status.progress.step}: {pause}")
        return status


async def _strike(gang: Gang, dice: random.Random, *, until: float) -> int:
    """Kill a rank now and then; how many."""
    pids, struck = await gang.pids(), 0
    while True:
        pause = dice.expovariate(1 / FAULT_SECONDS)
        if time.monotonic() + pause > until:
            return struck
        await asyncio.sleep(pause)
        os.kill(dice.choice(list(pids.values())), signal.SIGKILL)
        pids = await gang.pids()
        struck += 1


async def _find(script: Watched) -> bool:
    """Whether a script that stands still is called idle in time."""
    script.looks, script.false = 0, []
    end = time.monotonic() + MISSED_SECONDS
    while time.monotonic() < end:
        if (status := await script.look()).pause is not None and status.pause.is_idle:
            print(f"{script.name}: stands still, idle: {status.pause}", flush=True)
            return True
        await asyncio.sleep(LOOK_SECONDS)
    return False


async def soak(*, minutes: float, seed: int) -> bool:
    """Let them work for so long, and the scripts stand still then. Whether all was right."""
    with tempfile.TemporaryDirectory(prefix="di") as name:
        folders = {kind: Path(name) / kind for kind in ("trainer", "client", "prints")}
        for folder in folders.values():
            folder.mkdir()
        trainer = Gang(WarmBand(folder=folders["trainer"], starter=WarmStarter()))
        scripts = {kind: Gang(CommandBand(folder=folders[kind])) for kind in ("client", "prints")}
        gangs = [Watched(name="trainer", gang=trainer)]
        gangs += [Watched(name=kind, gang=gang) for kind, gang in scripts.items()]
        try:
            config = {"checkpoint": {"every_steps": 500}, "log_every_steps": 100}
            await trainer.start(2, variables=trainer.training(steps=ENDLESS, **config))
            await trainer.push()
            await start_commands(scripts["client"], 2, script=CLIENT)
            await start_commands(scripts["prints"], 2, script=PRINTS)
            end = time.monotonic() + 60 * minutes
            strikes = asyncio.create_task(_strike(trainer, random.Random(seed), until=end))
            while time.monotonic() < end:
                await asyncio.gather(*(each.look() for each in gangs))
                await asyncio.sleep(LOOK_SECONDS)
            for each in gangs:
                print(
                    f"{each.name}: {each.looks} looks, {each.known} with a pause, the longest"
                    f" {each.longest}, {len(each.false)} false",
                    *each.false,
                    sep="\n  ",
                    flush=True,
                )
            print(f"trainer: {await strikes} ranks killed", flush=True)
            false = sum(len(each.false) for each in gangs)
            for kind in scripts:
                (folders[kind] / "stop").touch()
            noticed = await asyncio.gather(*(_find(each) for each in gangs[1:]))
        finally:
            for each in gangs:
                await each.gang.band.stop()
    print(f"{false} false, {noticed.count(False)} missed in {minutes:g} minutes, seed {seed}")
    return not false and all(noticed)


def main() -> int:
    """1 if a gang that worked was called idle, or one that stood still was not."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.agent.idle_soak")
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("MINUTES") or 30))
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    return 0 if asyncio.run(soak(minutes=asked.minutes, seed=asked.seed)) else 1


if __name__ == "__main__":
    sys.exit(main())
