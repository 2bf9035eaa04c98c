from __future__ import annotations

from collections.abc import Iterator

import pytest

from tools.bench.report import Row
from tools.gpu.outcomes import FAILED, PASSED, Check, outcome_of


def row(*, met: bool | None) -> Row:
    return Row(name="peak", value=1.25, unit="x", goal="within 10%", met=met)


def two_rows(met: bool | None) -> Iterator[Row]:
    yield row(met=True)
    yield row(met=met)


def breaks(_: bool | None) -> Iterator[Row]:
    yield row(met=True)
    raise ValueError("no such device")


@pytest.mark.parametrize(
    ("met", "outcome", "words"),
    [(True, PASSED, ""), (None, PASSED, ""), (False, FAILED, "missed: peak")],
)
def test_a_row_that_misses_its_goal_fails_the_check(
    met: bool | None, outcome: str, words: str
) -> None:
    made = outcome_of("memory", Check(summary="a bill", run=two_rows), met)
    assert (made.outcome, made.words, len(made.rows)) == (outcome, words, 2)


def test_a_check_that_breaks_off_keeps_what_it_measured() -> None:
    made = outcome_of("memory", Check(summary="a bill", run=breaks), None)
    assert (made.outcome, made.words) == (FAILED, "ValueError: no such device")
    assert str(made).splitlines()[1].strip() == "peak: 1.25 x  within 10%  met"
