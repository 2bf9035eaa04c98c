"""A slice of the kill matrix, and proof that its verdict can be red.

The seed, or MATRIX_SEED in the environment, picks it and is part of every test's name.
"""

from __future__ import annotations

import pytest

from tests.faults.agent.warm import WarmStarter
from tests.matrix.cells import OF_DEVICES, Cell, Fault, Moment, Role, every_cell, sample
from tests.matrix.judge import Verdict
from tests.matrix.run import result_of
from tests.matrix.stage import Observation
from tests.matrix.strikes import Backend
from tests.seeds import seed_of

SEED = seed_of("MATRIX_SEED")
CELLS = len(Fault) - len(OF_DEVICES)
"""Every fault once, at a moment and in a role that change with the seed."""
CELLS_ON_NCCL = 2
"""Beside those: others than these, in which ranks survive; and a kernel that does not end."""
A_MATTER_OF_TIME = "off the wall clock"
"""Only `make test-all WHAT=matrix` judges it: a busy machine reports late that a rank ended."""
MUTANTS = ("restored_step_off_by_one", "randomness_not_restored", "cursor_skips_a_batch")

pytestmark = pytest.mark.gloo


def slice_id(cell: Cell) -> str:
    return f"seed {SEED}: {cell.name}"


@pytest.mark.extended(keep=3)
@pytest.mark.parametrize("cell", sample(every_cell(), seed=SEED, count=CELLS), ids=slice_id)
async def test_a_cell_of_the_matrix_is_green(
    cell: Cell, starter: WarmStarter, undisturbed: Observation
) -> None:
    result = await result_of(cell, starter=starter, undisturbed=undisturbed)
    if result.verdict is Verdict.NOT_RUN:
        pytest.skip(result.failings[0])
    assert [failing for failing in result.failings if A_MATTER_OF_TIME not in failing] == []


def with_survivors() -> list[Cell]:
    """Of the cells that are not among those over Gloo."""
    cells = sample(every_cell(), seed=SEED, count=len(every_cell()))[CELLS:]
    return [cell for cell in cells if not cell.must_fail and cell.role is not Role.ALL]


def a_stuck_kernel() -> Cell:
    """Named by agents that ask live ranks how far their devices are."""
    stuck = [cell for cell in every_cell(devices=True) if cell.fault is Fault.KERNEL_STUCK]
    return stuck[SEED % len(stuck)]


@pytest.mark.extended(keep=1, of="matrix elsewhere")
@pytest.mark.parametrize(
    "cell", [*with_survivors()[:CELLS_ON_NCCL], a_stuck_kernel()], ids=slice_id
)
async def test_a_cell_is_green_on_the_stand_in_for_nccl(
    cell: Cell, starter: WarmStarter, undisturbed: Observation
) -> None:
    """A lost peer fails no wait, an abort leaves partial sums: same numbers, same processes."""
    result = await result_of(cell, starter=starter, undisturbed=undisturbed, backend=Backend.NCCL)
    if result.verdict is Verdict.NOT_RUN:
        pytest.skip(result.failings[0])
    assert [failing for failing in result.failings if A_MATTER_OF_TIME not in failing] == []


@pytest.mark.extended(keep=1, of="matrix elsewhere")
@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_trainer_that_restores_wrongly_makes_a_cell_red(
    mutant: str, starter: WarmStarter, undisturbed: Observation
) -> None:
    cell = Cell(fault=Fault.SIGKILL, moment=Moment.FORWARD, role=Role.REMOTE)
    result = await result_of(cell, starter=starter, undisturbed=undisturbed, mutant=mutant)
    assert result.verdict is Verdict.RED
    assert result.bitwise is False
