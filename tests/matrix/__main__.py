"""`make test-all WHAT=matrix`: all cells, or a part of them; red cells make it fail.

python -m tests.matrix                            all of them, and docs/kill-matrix.md
python -m tests.matrix --seed 7 --cells 30        a seeded slice
python -m tests.matrix --only "SIGSTOP · data"    the cells whose name contains these words
python -m tests.matrix --backend nccl             on the stand-in for NCCL: docs/kill-matrix-nccl.md
python -m tests.matrix --more --cells 60          60 more of the cells that have no result yet
python -m tests.matrix --soak 10 --between 15     random faults for ten minutes, one in 15 s
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime

import structlog

from tests.matrix.cells import Cell, sample, shuffled
from tests.matrix.judge import Result, Verdict
from tests.matrix.report import Run, counts, kept, publish
from tests.matrix.run import perform_all, undisturbed_run
from tests.matrix.soak import publish as publish_soaks
from tests.matrix.soak import soak
from tests.matrix.strikes import STEPS, Backend, cells_on
from tests.matrix.warm import striking_starter
from tools.bench.report import FOLDER

SOAK_RATES = (15.0, 60.0)
"""Mean seconds between two faults."""


def main() -> int:
    """Run what the command line asks for; 1 if a cell is red."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # with all clean-up
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    if arguments.soak:
        return asyncio.run(_soak(arguments.soak, seed=arguments.seed))
    cells = [cell for cell in cells_on(arguments.backend) if arguments.only in cell.name]
    goes_on = arguments.again or arguments.more
    earlier, seconds = kept(arguments.backend) if goes_on else ([], 0.0)
    if arguments.again:
        earlier = [result for result in earlier if result.verdict is Verdict.GREEN]
    cells = [cell for cell in cells if cell not in {result.cell for result in earlier}]
    keeps = goes_on or not (arguments.only or arguments.cells)
    print(f"seed {arguments.seed}")
    cells = shuffled(cells, seed=arguments.seed)
    if arguments.cells:
        cells = sample(cells, seed=arguments.seed, count=arguments.cells)
    score = Score(earlier=earlier, seconds=seconds, keeps=keeps, backend=arguments.backend)
    results = asyncio.run(_perform(cells, score=score, backend=arguments.backend))
    totals = counts(results)
    print(", ".join(f"{number} {verdict}" for verdict, number in totals.items()))
    return 1 if totals[Verdict.RED] or not totals[Verdict.GREEN] else 0


class Score:
    """The results so far, in the order of the cells; written down as they come."""

    def __init__(
        self, *, earlier: list[Result], seconds: float, keeps: bool, backend: Backend
    ) -> None:
        self._by_cell = {result.cell: result for result in earlier}
        self._began = time.monotonic() - seconds
        self._keeps = keeps
        self._backend = backend

    @property
    def results(self) -> list[Result]:
        """In the order of the report."""
        return [self._by_cell[cell] for cell in cells_on(self._backend) if cell in self._by_cell]

    @property
    def run(self) -> Run:
        """When and how long."""
        date = datetime.now(UTC).date().isoformat()
        seconds = time.monotonic() - self._began
        return Run(
            date=date,
            cells=len(cells_on(self._backend)),
            steps=STEPS,
            seconds=seconds,
            backend=self._backend,
        )

    def add(self, result: Result) -> None:
        """One more."""
        self._by_cell[result.cell] = result
        if self._keeps:
            publish(self.results, self.run)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help="part of a cell's name")
    parser.add_argument("--backend", type=Backend, default=Backend.GLOO, help="gloo or nccl")
    parser.add_argument("--again", action="store_true", help="what was not green last time")
    parser.add_argument("--more", action="store_true", help="what has no result yet")
    parser.add_argument("--cells", type=int, default=0, help="so many of them; 0: all")
    parser.add_argument("--seed", type=int, default=0, help="in which order, and so which ones")
    parser.add_argument("--soak", type=float, default=0.0, help="minutes at each rate of faults")
    return parser.parse_args()


async def _soak(minutes: float, *, seed: int) -> int:
    starter = striking_starter()
    soaks = [
        await soak(minutes=minutes, between_seconds=between, seed=seed, starter=starter)
        for between in SOAK_RATES
    ]
    publish_soaks(soaks)
    return 0 if all(each_soak.healthy for each_soak in soaks) else 1


async def _perform(cells: Sequence[Cell], *, score: Score, backend: Backend) -> list[Result]:
    starter = striking_starter()
    undisturbed = await undisturbed_run(starter)
    print(f"undisturbed: {STEPS} steps in {undisturbed.seconds:.1f} s", flush=True)
    results: list[Result] = []

    def note(result: Result) -> None:
        results.append(result)
        score.add(result)
        _tell(result, number=len(results), of=len(cells))

    await perform_all(
        cells,
        starter=starter,
        undisturbed=undisturbed,
        on_result=note,
        backend=backend,
        keep_red=FOLDER / "matrix-red",
    )
    return results


def _tell(result: Result, *, number: int, of: int) -> None:
    recovery = result.recovery_seconds
    output = "" if recovery is None else f"{recovery:.2f} s, {result.steps_lost} lost {result.tier}"
    print(f"{number}/{of}  {result.verdict:5}  {result.cell.name}  {output}", flush=True)
    for failing in result.failings:
        print(f"        {failing}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
