"""A long run under random faults: how much of what was trained counts, and of the time.

Faults come at random (exponential, with a seed) and hit whoever they hit, recoveries included. What
is looked at is the diary: a step that was trained again must have had the same loss to the last
bit, on every rank, in every membership.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from tests.faults.agent.gang import Gang
from tests.faults.agent.warm import WarmBand, WarmStarter
from tests.matrix.cells import WORLD_SIZE
from tests.matrix.diary import PIDS, Diary, Entry
from tests.matrix.stage import CONFIG, FOLDERS, variables_of
from tests.matrix.standin import StandIn
from tools.bench.report import FOLDER, machine

FILE = FOLDER / "soak.json"
ENDLESS = 1_000_000
_DEEDS = (
    # (what, how often, signal)
    ("rank", 6, signal.SIGKILL),
    ("rank", 2, signal.SIGSEGV),
    ("rank", 1, signal.SIGSTOP),
    ("agent", 1, signal.SIGKILL),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """What one long run came to."""

    mean_seconds_between_faults: float
    seed: int
    minutes: float
    faults: int
    generations: int
    steps: int
    """Reached."""
    trained: int
    """With those that were trained again."""
    undisturbed_step_seconds: float
    differing: tuple[int, ...]
    """Steps that did not have the same loss each time."""
    error: str
    """Empty, unless the job failed."""

    @property
    def committed_share(self) -> float:
        """Of all steps that were trained, those that count."""
        return self.steps / max(self.trained, 1)

    @property
    def time_share(self) -> float:
        """Of the time, what an undisturbed run would have taken for these steps."""
        return self.steps * self.undisturbed_step_seconds / (self.minutes * 60)

    @property
    def healthy(self) -> bool:
        """Whether nothing went wrong that may not."""
        return not self.differing and not self.error and self.steps > 0


async def soak(*, minutes: float, between_seconds: float, seed: int, starter: WarmStarter) -> Soak:
    """Train under faults for so long."""
    with tempfile.TemporaryDirectory(prefix="drumline-soak-") as name:
        folder = Path(name)
        for part in FOLDERS:
            (folder / part).mkdir()
        config = {**CONFIG, "steps": ENDLESS, "log_every_steps": 50}
        gang = Gang(band=WarmBand(folder=folder, starter=starter))
        started, error, faults = time.monotonic(), "", 0
        async with StandIn(gang=gang, variables=variables_of(folder, config=config)) as operator:
            mischief = asyncio.create_task(
                _mischief(folder, between_seconds=between_seconds, seed=seed, seconds=minutes * 60)
            )
            job = asyncio.create_task(operator.run())
            done, _ = await asyncio.wait({job, mischief}, return_when=asyncio.FIRST_COMPLETED)
            if job in done:
                error = job.result().error or "it ended before its time"
            for task in (job, mischief):
                task.cancel()
            [_, mischief_result] = await asyncio.gather(job, mischief, return_exceptions=True)
            faults = mischief_result if isinstance(mischief_result, int) else -1
        diary = Diary.read(folder)
        return Soak(
            mean_seconds_between_faults=between_seconds,
            seed=seed,
            minutes=(time.monotonic() - started) / 60,
            faults=faults,
            generations=gang.generation,
            steps=max(diary.losses(), default=0),
            trained=sum(1 for line in diary.lines if line.entry is Entry.STEP) // WORLD_SIZE,
            undisturbed_step_seconds=statistics.median(_step_seconds(diary)),
            differing=tuple(step for step, had in sorted(diary.losses().items()) if len(had) > 1),
            error=error,
        )


def publish(soaks: list[Soak]) -> None:
    """Print them and write them down."""
    for run in soaks:
        print(
            f"a fault every {run.mean_seconds_between_faults:.0f} s for {run.minutes:.0f} min:"
            f" {run.faults} faults, {run.steps} steps, {run.committed_share:.1%} of those trained"
            f" count, {run.time_share:.1%} of the time;"
            f" {len(run.differing)} steps differ {run.error}"
        )
    FOLDER.mkdir(parents=True, exist_ok=True)
    entries = [
        {
            **asdict(run),
            "committed_share": round(run.committed_share, 4),
            "time_share": round(run.time_share, 4),
        }
        for run in soaks
    ]
    FILE.write_text(json.dumps({"machine": machine(), "soaks": entries}, indent=1) + "\n")


async def _mischief(folder: Path, *, between_seconds: float, seed: int, seconds: float) -> int:
    """Hit somebody now and then. Returns how often."""
    chance, until, hits = random.Random(seed), time.monotonic() + seconds, 0
    while True:
        pause = chance.expovariate(1 / between_seconds)
        if time.monotonic() + pause >= until:
            await asyncio.sleep(until - time.monotonic())
            return hits
        await asyncio.sleep(pause)
        [(kind, _, number)] = chance.choices(_DEEDS, weights=[often for _, often, _ in _DEEDS])
        known = sorted(path for path in (folder / PIDS).iterdir() if path.name.startswith(kind))
        if known:
            with suppress(ProcessLookupError):
                os.kill(int(chance.choice(known).read_text()), number)
                hits += 1


def _step_seconds(diary: Diary) -> Iterator[float]:
    """Of rank 0, from one step to the next of the same membership."""
    mine = [line for line in diary.lines if line.rank == 0 and line.entry is Entry.STEP]
    for before, after in pairwise(mine):
        if before.membership == after.membership:
            yield after.time - before.time
