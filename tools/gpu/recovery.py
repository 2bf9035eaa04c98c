"""Devices that are missing, and ranks that die, under real agents."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator

from drumline_contract import ExitCode
from tests.faults.agent.gang import Gang
from tests.faults.agent.warm import WarmBand, WarmStarter
from tools.bench.report import Row
from tools.gpu.machine import ROOT
from tools.gpu.runs import Bench, CheckFailedError

STEPS = 60
KILLED_AT = 20


def missing_gpus(bench: Bench) -> Iterator[Row]:
    """GPUs that were asked for and are hidden."""
    folder = bench.new_folder()
    done = subprocess.run(
        bench.command(bench.config(), folder, ranks=1, checkpoints=None),
        cwd=ROOT,
        env={**bench.machine.environment, "DRUMLINE_DEVICE": "gpu", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    met = done.returncode == ExitCode.DEVICE and "none can be used here" in done.stderr
    if not met:
        raise CheckFailedError(f"exit code {done.returncode}: {done.stderr.strip()[-300:]}")
    yield Row(name="hidden GPUs: exit code", value=done.returncode, unit="", goal="69", met=met)


def killed_rank(bench: Bench) -> Iterator[Row]:
    """The losses of a gang whose last rank dies are those of one that nobody disturbs."""
    losses = asyncio.run(_two_gangs(bench))
    same = losses[0] == losses[1] and len(losses[0]) == STEPS
    yield Row(
        name=f"a rank of {bench.machine.ranks} killed at step {KILLED_AT}",
        value=len(losses[1]),
        unit="losses",
        goal="the same bits",
        met=same,
    )


async def _two_gangs(bench: Bench) -> list[dict[int, float | None]]:
    """Without a kill, and with one."""
    starter = WarmStarter()
    await starter.warm()
    return [
        await _gang(bench, WarmBand(folder=bench.new_folder(), starter=starter), kills=kills)
        for kills in (False, True)
    ]


async def _gang(bench: Bench, band: WarmBand, *, kills: bool) -> dict[int, float | None]:
    gang, ranks = Gang(band), bench.machine.ranks
    variables = gang.training(
        steps=STEPS,
        global_batch_size=24,
        data={"source": str(bench.text), "pattern": "**/*"},
        checkpoint={"snapshot_every_steps": 10},
    )
    variables |= {"DRUMLINE_DEVICE": bench.machine.device}
    for name in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH"):
        if name in os.environ:
            variables[name] = os.environ[name]
    try:
        await gang.start(1, ranks=ranks, variables=variables)
        await gang.push()
        before = await gang.pids()
        if kills:
            await gang.reached(KILLED_AT)
            os.kill(before[ranks - 1], signal.SIGKILL)
            after = await gang.pids()
            incident = await gang.incident()
            replaced = [rank for rank in before if before[rank] != after[rank]]
            if replaced != [ranks - 1]:
                raise CheckFailedError(f"ranks {replaced} were forked anew: {incident}")
        ended = await gang.ended()
        if ended != [0]:
            raise CheckFailedError(f"exit codes {ended}: {gang.leader.text[-600:]}")
    finally:
        await band.stop()
    return gang.losses()
