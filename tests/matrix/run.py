"""Performing many cells, each held against one undisturbed run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.agent.warm import WarmStarter
from tests.matrix.cells import Cell
from tests.matrix.judge import Result, Verdict, healthy, judge
from tests.matrix.stage import NotHereError, Observation, perform
from tests.matrix.strikes import Backend


class NothingToCompareError(RuntimeError):
    """The undisturbed run is not what it must be: no cell can be judged."""


async def undisturbed_run(starter: WarmStarter) -> Observation:
    """What all cells are held against. Raises NothingToCompareError."""
    await starter.warm()
    seen = await perform(None, starter=starter)
    if not healthy(seen):
        raise NothingToCompareError(f"{seen.ending}\n{seen.output}")
    return seen


async def perform_all(
    cells: Sequence[Cell],
    *,
    starter: WarmStarter,
    undisturbed: Observation,
    on_result: Callable[[Result], None],
    backend: Backend = Backend.GLOO,
    keep_red: Path | None = None,
) -> None:
    """All of them, two at a time: one that works, beside one that waits while there are such.

    Args:
        cells: in any order.
        starter: forks the agents.
        undisturbed: what each is held against.
        on_result: told of each when it is over.
        backend: what the ranks talk over; the undisturbed run's is Gloo, with equal numbers.
        keep_red: where what agents printed in red cells goes.
    """
    waiting = deque(cell for cell in cells if cell.waits)
    working = deque(cell for cell in cells if not cell.waits)

    async def lane(own: deque[Cell], other: deque[Cell]) -> None:
        while own or other:
            cell = (own or other).popleft()
            on_result(
                await result_of(
                    cell,
                    starter=starter,
                    undisturbed=undisturbed,
                    backend=backend,
                    keep_red=keep_red,
                )
            )

    async with asyncio.TaskGroup() as lanes:
        lanes.create_task(lane(waiting, working))
        lanes.create_task(lane(working, waiting))


async def result_of(
    cell: Cell,
    *,
    starter: WarmStarter,
    undisturbed: Observation,
    mutant: str = "",
    backend: Backend = Backend.GLOO,
    keep_red: Path | None = None,
) -> Result:
    """Perform one cell and judge it."""
    try:
        seen = await perform(cell, starter=starter, mutant=mutant, backend=backend)
    except NotHereError as error:
        return Result(cell=cell, verdict=Verdict.NOT_RUN, failings=(str(error),))
    result = judge(cell, seen, undisturbed=undisturbed)
    if result.verdict is Verdict.RED and keep_red is not None:
        _keep(result, seen, folder=keep_red)
    return result


def _keep(result: Result, seen: Observation, *, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = "-".join("".join(c if c.isalnum() else " " for c in result.cell.name).split())
    output = [*result.failings, "", seen.output, "", *map(str, seen.diary.lines)]
    (folder / f"{name}.log").write_text("\n".join(output))
