"""Every option of the trainer is in the matrix, and a few cells of it are trained.

The seed (LAYOUT_SEED in the environment another one) picks them among those that
`make test-all WHAT=settings` trains.
"""

from __future__ import annotations

import random

import pytest

from tests.layouts.cases import MODELS, Case, all_pairs, every_case
from tests.layouts.coverage import REASONS, demands, had_by
from tests.layouts.runs import Runs
from tests.layouts.setting_table import SETTINGS
from tests.layouts.settings import Cell, cells_of
from tests.seeds import seed_of

SEED = seed_of("LAYOUT_SEED")
SAMPLED_CELLS = 5
SEED_OF_ALL = 0
"""Of `python -m tests.layouts --settings`."""
CASES = every_case()


def sampled_cells() -> list[Cell]:
    """Of so many settings one each; every setting has its turn."""
    names = list(SETTINGS)
    begin = SEED * SAMPLED_CELLS % len(names)
    turn = [*names, *names][begin : begin + SAMPLED_CELLS]
    cells = [cells_of(SETTINGS[name], cases=CASES, seed=SEED_OF_ALL) for name in turn]
    return [random.Random(SEED).choice(some) for some in cells]


def a_layout_of(name: str) -> Case | None:
    shuffled = random.Random(0).sample(CASES, len(CASES))
    return next((case for case in shuffled if SETTINGS[name].fits(case)), None)


@pytest.fixture(scope="module")
def met() -> dict[str, set[str]]:
    layouts = all_pairs(CASES, seed=0, at_least=0)
    crossed = [(setting, a_layout_of(name)) for name, setting in SETTINGS.items()]
    return had_by(
        [
            *(case.config() for case in layouts),
            *(case.config(**setting.whole) for setting, case in crossed if case is not None),
        ]
    )


def test_every_option_and_every_value_of_it_has_cells_or_a_reason(
    met: dict[str, set[str]],
) -> None:
    """A new one: a `Setting` in setting_table.py, or a line in `coverage.REASONS`."""
    assert [d.name for d in demands() if not d.is_met(met) and d.reason is None] == []


def test_every_reason_is_needed(met: dict[str, set[str]]) -> None:
    needed = {demand.reason for demand in demands() if not demand.is_met(met)}
    assert REASONS.keys() - needed == set()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_layouts(name: str) -> None:
    assert a_layout_of(name) is not None


def test_a_setting_meets_every_kind_of_data_parallelism_and_every_schedule() -> None:
    cells = cells_of(SETTINGS["bf16"], cases=CASES, seed=0)
    for axis in ("data", "tensor", "pipeline", "context", "expert", "recompute", "accumulation"):
        values = {getattr(case, axis) for case in CASES}
        assert {getattr(cell.case, axis) for cell in cells} == values
    assert {cell.case.model for cell in cells} == set(MODELS)


@pytest.mark.extended(keep=1)
@pytest.mark.gloo
@pytest.mark.parametrize("cell", sampled_cells(), ids=lambda cell: cell.name)
def test_a_setting_trains_in_a_layout_what_it_trains_in_one_process(runs: Runs, cell: Cell) -> None:
    assert runs.failings_of(cell) == []
