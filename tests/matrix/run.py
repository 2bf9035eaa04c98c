"""Performing many cells, one after the other, each held against one undisturbed run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from tests.matrix.cells import Cell
from tests.matrix.judge import Result, Verdict, healthy, judge
from tests.matrix.stage import NotHereError, Observation, perform
from tests.matrix.warm import WarmStarter


class NothingToCompareError(RuntimeError):
    """The undisturbed run is not what it must be: no cell can be judged."""


async def undisturbed_run(starter: WarmStarter) -> Observation:
    """What all cells are held against. Raises NothingToCompareError."""
    seen = await perform(None, starter=starter)
    if not healthy(seen):
        raise NothingToCompareError(f"{seen.ending}\n{seen.output}")
    return seen


async def results_of(
    cells: Sequence[Cell],
    *,
    starter: WarmStarter,
    undisturbed: Observation,
    mutant: str = "",
    keep_red: Path | None = None,
) -> AsyncIterator[Result]:
    """One by one; what agents printed in a red cell goes to `keep_red`."""
    for cell in cells:
        try:
            seen = await perform(cell, starter=starter, mutant=mutant)
        except NotHereError as error:
            yield Result(cell=cell, verdict=Verdict.NOT_RUN, failings=(str(error),))
            continue
        result = judge(cell, seen, undisturbed=undisturbed)
        if result.verdict is Verdict.RED and keep_red is not None:
            _keep(result, seen, folder=keep_red)
        yield result


def _keep(result: Result, seen: Observation, *, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = "-".join("".join(c if c.isalnum() else " " for c in result.cell.name).split())
    told = [*result.failings, "", seen.output, "", *map(str, seen.diary.lines)]
    (folder / f"{name}.log").write_text("\n".join(told))
