"""How long recoveries take and what snapshots cost: real agents and ranks, beside a bare import.

Recoveries are counted from the outside: from the moment before the signal is sent, or before the
new pod's process is started, until the first new optimizer step as the leading agent logged it. The
bare import, in the same run, is a fresh interpreter that imports the torch modules a rank has, and
nothing else: it is what a new process cannot be faster than.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tests.faults.agent.agents import Band
from tests.faults.agent.gang import Gang
from tools.bench.report import Row, publish

ROOT = Path(__file__).parents[2]
IMPORTS = 3
KILLS = 7
REPLACEMENTS = 3
PAIRS = 3
"""Of runs with and without snapshots, taken in turns: the machine's mood is in both."""
STEPS_BETWEEN_FAULTS = 15
WARM_UP_STEPS = 20
TIMED_STEPS = 100
STEPS_A_LINE = 5
"""Of progress that rank 0 prints."""
ENDLESS = 1_000_000

_MODULES = """
import sys, drumline_trainer.rank
print(*(name for name, module in sys.modules.items()
        if name.partition('.')[0] == 'torch' and getattr(module, '__file__', None)))
"""
_BARE = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"


def main() -> None:
    """Measure and publish."""
    modules = _python(_MODULES).split()
    _python(_BARE, *modules)  # the page cache is warm for all that follow
    bare = median(_seconds_of_a_bare_import(modules) for _ in range(IMPORTS))
    print(f"bare import of {len(modules)} torch modules: {bare:.2f} s", flush=True)
    kills = asyncio.run(_kills())
    replacements = asyncio.run(_replacements())
    pairs = [asyncio.run(_pair()) for _ in range(PAIRS)]
    publish("recovery", _rows(bare=bare, kills=kills, replacements=replacements, pairs=pairs))


async def _kills() -> list[float]:
    """SIGKILL of one rank of four in two pods, in turns in either pod: seconds to the next step."""
    async with _gang(count=2, ranks=2) as gang:
        seconds: list[float] = []
        pids = await gang.pids()
        for number in range(KILLS):
            victim = number % 4
            await _trained(gang, steps=STEPS_BETWEEN_FAULTS)
            began = time.time()
            os.kill(pids[victim], signal.SIGKILL)
            pids = await gang.pids()
            incident = await gang.incident()
            seconds.append(incident["first_step_at"] - began)
            print(f"rank {victim} killed: {seconds[-1]:.2f} s {_stages(incident)}", flush=True)
        return seconds


async def _replacements() -> list[float]:
    """A pod that is replaced in a new generation: from its new process to the next step."""
    async with _gang(count=3, ranks=1) as gang:
        seconds: list[float] = []
        for number in range(REPLACEMENTS):
            await _trained(gang, steps=STEPS_BETWEEN_FAULTS)
            began = time.time()
            await gang.replace(1 + number % 2)
            incident = await gang.incident()
            seconds.append(incident["first_step_at"] - began)
            print(f"pod replaced: {seconds[-1]:.2f} s {_stages(incident)}", flush=True)
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Mean over the timed steps."""

    seconds: float
    """Wall clock."""
    processor_seconds: float
    """Seconds of all ranks and agents. Other load on the machine changes it little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A run without snapshots and one with them."""

    plain: StepCost
    snapshots: StepCost
    standstill: float
    """Share of its time that the trainer itself says it stood still for them."""

    @property
    def tax(self) -> float:
        """By how much more a step takes, as a share."""
        return self.snapshots.seconds / self.plain.seconds - 1

    @property
    def processor_tax(self) -> float:
        """Return the additional processor time of a step, as a share."""
        return self.snapshots.processor_seconds / self.plain.processor_seconds - 1


async def _pair() -> Pair:
    plain, _ = await _step_cost(snapshot_every_steps=ENDLESS)
    snapshots, figures = await _step_cost(snapshot_every_steps=None)
    every = figures["snapshot_every_steps"]
    pair = Pair(
        plain=plain,
        snapshots=snapshots,
        standstill=figures["snapshot_seconds"] / (every * figures["step_seconds"]),
    )
    print(
        f"step: {plain.seconds * 1000:.1f} ms, with a snapshot every {every:g} steps"
        f" {snapshots.seconds * 1000:.1f} ms, of which standing still {pair.standstill:.1%};"
        f" processor time {plain.processor_seconds * 1000:.1f} ms,"
        f" {snapshots.processor_seconds * 1000:.1f} ms with snapshots",
        flush=True,
    )
    return pair


async def _step_cost(*, snapshot_every_steps: int | None) -> tuple[StepCost, dict[str, float]]:
    """Cost of one step, and the figures that the leading agent shows then."""
    config: dict[str, Any] = {
        "model": {"layers": 4, "hidden_size": 128, "ffn_size": 384},
        "data": {"sequence_length": 128},
        "global_batch_size": 16,
        "checkpoint": {"every_steps": ENDLESS, "snapshot_every_steps": snapshot_every_steps},
    }
    async with _gang(count=2, ranks=1, **config) as gang:
        await _trained(gang, steps=WARM_UP_STEPS)
        agents = [agent.process.pid for agent in gang.agents.values()]
        began, busy = time.perf_counter(), _processor_seconds(agents)
        await _trained(gang, steps=TIMED_STEPS)
        cost = StepCost(
            seconds=(time.perf_counter() - began) / TIMED_STEPS,
            processor_seconds=(_processor_seconds(agents) - busy) / TIMED_STEPS,
        )
        return cost, await _figures(gang)


def _processor_seconds(roots: Sequence[int]) -> float:
    """Processor time of these processes and of all that descend from them, while they live."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # the name in parentheses may hold spaces: state, parent, ..., user and system time
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            parents[pid], ticks[pid] = int(fields[1]), int(fields[11]) + int(fields[12])
    members = {*roots}
    while found := {pid for pid, parent in parents.items() if parent in members} - members:
        members |= found
    return sum(ticks.get(pid, 0) for pid in members) / os.sysconf("SC_CLK_TCK")


async def _figures(gang: Gang) -> dict[str, float]:
    """The trainer's own metrics, without their prefix."""
    _, body, _ = await gang.leader.call("GET", "/metrics")
    matches = re.findall(r"^drumline_trainer_(\w+) (\S+)$", body.decode(), re.MULTILINE)
    return {name: float(value) for name, value in matches}


@asynccontextmanager
async def _gang(*, count: int, ranks: int, **config: Any) -> AsyncIterator[Gang]:
    """A gang that trains without end, in pods with snapshots."""
    with tempfile.TemporaryDirectory() as folder:
        gang = Gang(Band(folder=Path(folder)))
        try:
            config["log_every_steps"] = STEPS_A_LINE
            variables = gang.training(steps=ENDLESS, **config)
            await gang.start(count, ranks=ranks, variables=variables)
            await gang.push()
            yield gang
        finally:
            await gang.band.stop()


async def _trained(gang: Gang, *, steps: int) -> None:
    """Wait until training has gone on for so many steps."""
    for _ in range(steps // STEPS_A_LINE):
        await gang.leader.until_line("[rank 0] step ")


def _stages(incident: dict[str, Any]) -> str:
    names = ("fault", "detected", "decided", "replaced", "joined", "restored", "first_step")
    times = [(name, incident[f"{name}_at"]) for name in names if incident[f"{name}_at"]]
    pairs = itertools.pairwise(times)
    return ", ".join(f"{name} +{after - before:.2f}" for (_, before), (name, after) in pairs)


def _seconds_of_a_bare_import(modules: list[str]) -> float:
    began = time.perf_counter()
    _python(_BARE, *modules)
    return time.perf_counter() - began


def _python(script: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "trainer")}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _rows(
    *,
    bare: float,
    kills: list[float],
    replacements: list[float],
    pairs: list[Pair],
) -> list[Row]:
    kill, replacement = median(kills), median(replacements)
    tax = median(pair.tax for pair in pairs)
    processor_tax = median(pair.processor_tax for pair in pairs)
    of_pairs = f"median of {len(pairs)} pairs of {TIMED_STEPS} steps"
    return [
        Row(name="bare import of a rank's torch modules", value=bare, unit="s"),
        Row(
            name="SIGKILL of a rank to the first new step",
            value=kill,
            unit="s",
            goal="<= 1.5 s",
            met=kill <= 1.5,
            source=f"median of {len(kills)}, slowest {max(kills):.2f} s",
        ),
        Row(name="the same as a share of the bare import", value=kill / bare, unit="x"),
        Row(
            name="new pod's process to the first new step",
            value=replacement,
            unit="s",
            goal=f"<= {bare + 3:.2f} s",
            met=replacement <= bare + 3,
            source=f"median of {len(replacements)}, slowest {max(replacements):.2f} s",
        ),
        Row(name="the same less the bare import", value=replacement - bare, unit="s"),
        Row(
            name="a step with snapshots takes longer by",
            value=100 * tax,
            unit="%",
            goal="<= 3 %",
            met=tax <= 0.03,
            source=of_pairs,
        ),
        Row(
            name="a step with snapshots takes more processor time by",
            value=100 * processor_tax,
            unit="%",
            goal="<= 3 %",
            met=processor_tax <= 0.03,
            source=of_pairs,
        ),
        Row(
            name="training stands still for snapshots",
            value=100 * median(pair.standstill for pair in pairs),
            unit="%",
            source=f"as the trainer says; {of_pairs}",
        ),
        Row(
            name="a step without snapshots",
            value=1000 * median(pair.plain.seconds for pair in pairs),
            unit="ms",
            source=of_pairs,
        ),
    ]


if __name__ == "__main__":
    main()
