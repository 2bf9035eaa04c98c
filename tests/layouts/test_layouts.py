"""Layouts in which each two settings of the matrix meet train the same model.

The seed picks the layouts, LAYOUT_SEED in the environment other ones. With
LAYOUTS=all (`make test-all WHAT=adapters`) there are both halves; every layout there is, `make
test-all WHAT=layouts`.
"""

from __future__ import annotations

import os
import random

import pytest

from tests.layouts.cases import Case, all_pairs, every_case, names
from tests.layouts.judge import failings
from tests.layouts.runs import Runs
from tests.seeds import seed_of

SEED = seed_of("LAYOUT_SEED")
ALL_PAIRS = all_pairs(every_case(), seed=SEED // 2, at_least=40)
CASES = ALL_PAIRS if os.environ.get("LAYOUTS") == "all" else ALL_PAIRS[SEED % 2 :: 2]
CHANGES = 3 * len(CASES) // 5
RESTARTS = CASES[: len(CASES) // 10]
LOW_PRECISION = CASES[len(CASES) // 10 : len(CASES) // 5]
BF16_TOLERANCE = 2e-2

pytestmark = pytest.mark.gloo


def changes_of_layout() -> list[tuple[Case, Case]]:
    """Ordered pairs of layouts of the same model, the second one the quickest of a few."""
    generator = random.Random(SEED)
    changes: list[tuple[Case, Case]] = []
    for before in generator.sample(CASES, CHANGES):
        partners = [case for case in CASES if case.model == before.model and case != before]
        after = generator.sample(partners, min(3, len(partners))) or [before]
        changes.append((before, min(after, key=lambda case: effort_of_change(before, case))))
    return changes


def effort_of_change(before: Case, after: Case) -> int:
    """The first half is there, unless the second one needs a model of more layers."""
    return after.effort + (before.effort if after.layers > before.layers else 0)


@pytest.mark.extended(keep=2)
@pytest.mark.parametrize("case", CASES, ids=names(CASES))
def test_a_layout_trains_what_one_process_trains(runs: Runs, case: Case) -> None:
    assert failings(runs.whole(case), runs.plain(case)) == []


@pytest.mark.extended(keep=1, of="changes of layout")
@pytest.mark.parametrize(
    ("before", "after"),
    changes_of_layout(),
    ids=lambda case: case.name,
)
def test_what_one_layout_saved_another_goes_on_from(runs: Runs, before: Case, after: Case) -> None:
    expected = max(before, after, key=lambda case: case.layers)
    assert failings(runs.resumed(before, after), runs.plain(expected)) == []


@pytest.mark.extended(keep=1, of="changes of layout")
@pytest.mark.parametrize("case", RESTARTS, ids=names(RESTARTS))
def test_a_restart_in_the_same_layout_is_bitwise(runs: Runs, case: Case) -> None:
    assert runs.resumed(case, case).same_bits(runs.whole(case))


@pytest.mark.extended(keep=1, of="changes of layout")
@pytest.mark.parametrize("case", LOW_PRECISION, ids=names(LOW_PRECISION))
def test_bf16_follows_fp32_in_every_layout(runs: Runs, case: Case) -> None:
    got = runs.whole(case, precision="bf16")
    assert got.loss_error(runs.plain(case)) <= BF16_TOLERANCE
