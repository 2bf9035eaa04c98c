"""The number of GPUs by time, cost and deadline."""

from __future__ import annotations

import pytest

from drumline_contract.config import MODEL_PRESETS
from drumline_planner.run_size import (
    Deadline,
    NoSize,
    Objective,
    PickedSize,
    SizedPlan,
    pick_size,
    run_days,
)
from drumline_planner.search import Planned, search
from tests.texts import missing

from .clusters import goal


@pytest.fixture(scope="module")
def curve() -> list[tuple[int, Planned | None]]:
    sizes = (2, 8, 16, 32)
    goals = {gpus: goal(gpus, batch=32, model=MODEL_PRESETS["llama-8b"]) for gpus in sizes}
    return [(gpus, next(iter(search(of, best=1).planned), None)) for gpus, of in goals.items()]


def picked(choice: PickedSize | NoSize) -> SizedPlan:
    assert isinstance(choice, PickedSize), choice
    return choice.sized


def test_the_fastest_and_the_cheapest(curve: list[tuple[int, Planned | None]]) -> None:
    fastest = picked(pick_size(curve, objective=Objective.TIME))
    cheapest = picked(pick_size(curve, objective=Objective.COST))
    assert fastest.gpus == 32
    assert cheapest.gpus < 32
    assert cheapest.gpu_seconds_per_token < fastest.gpu_seconds_per_token


def test_a_deadline_takes_the_cheapest_that_meets_it(
    curve: list[tuple[int, Planned | None]],
) -> None:
    sixteen = SizedPlan(gpus=16, planned=curve[2][1] or pytest.fail("16 GPUs fit"))
    deadline = Deadline(tokens=1e12, days=1.01 * run_days(sixteen, 1e12))
    choice = pick_size(curve, objective=Objective.COST, deadline=deadline)
    assert picked(choice).gpus == 16
    assert isinstance(choice, PickedSize)
    assert f"done in {run_days(sixteen, 1e12):.1f} of" in choice.reason


def test_where_no_size_meets_it_the_fastest_is_said(
    curve: list[tuple[int, Planned | None]],
) -> None:
    choice = pick_size(curve, objective=Objective.COST, deadline=Deadline(tokens=1e15, days=1))
    assert isinstance(choice, NoSize)
    assert not missing(choice.reason, "2 to 32 GPUs", "fastest", "32")


def test_where_nothing_fits_that_is_said() -> None:
    choice = pick_size([(1, None), (2, None)], objective=Objective.TIME)
    assert choice == NoSize(reason="No layout fits on 1 to 2 GPUs.")
