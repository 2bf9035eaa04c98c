"""A budget's days: what was left, when it is spent at this use, and when some flows back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.cli.overview.tables import budget_text
from drumline.cli.report.burn_down import burn_down
from drumline.overview.queues import queue_rows
from drumline.overview.rows import BudgetDay, BudgetRow
from drumline.scheduling.model import GpuHourBudget, Refill
from drumline.scheduling.quota.budgets import window_gpu_seconds
from tests.unit.overview.objects import NOW, a_cluster, a_queue, at
from tests.unit.scheduling.builders import budgets

DAY = 86_400.0
HOUR = 3600
TODAY = NOW // DAY * DAY
"""NOW is 08:00."""


def a_day(back: int, gpu_hours: float) -> dict[str, Any]:
    day = datetime.fromtimestamp(TODAY - back * DAY, UTC).date()
    return {"day": day.isoformat(), "gpuSeconds": round(gpu_hours * HOUR)}


def budget_of(
    *days: dict[str, Any],
    gpu_hours: int = 100,
    window_days: int = 2,
    gpus: int = 0,
    refill: str = "",
    credit: int = 0,
) -> BudgetRow:
    spent = {"spentGpuHours": 7, "until": at(0), "days": list(days)}
    usage = [{"gpuPool": "gpus", "nominalGpus": 16, "usedGpus": gpus}]
    queue = a_queue(
        "q",
        budget={"gpuHours": gpu_hours, "creditGpuHours": credit}
        | ({"refill": refill} if refill else {"windowDays": window_days}),
        status={"budget": spent, "usage": usage},
    )
    (row,) = queue_rows(a_cluster(queue))
    assert row.budget is not None
    return row.budget


def test_what_is_left_goes_on_at_what_is_held() -> None:
    budget = budget_of(a_day(1, 60), a_day(0, 30), gpus=2)
    assert budget.left == (
        BudgetDay(at=TODAY, left_gpu_hours=40.0),
        BudgetDay(at=NOW, left_gpu_hours=10.0),
    )
    assert [day.at for day in budget.expected] == [TODAY + DAY, TODAY + 2 * DAY]
    assert budget.expected[0].left_gpu_hours == pytest.approx(-22, abs=0.1)
    assert budget.expected[1].left_gpu_hours == pytest.approx(100 - 30 - 32 - 48, abs=0.1)
    assert budget.spent_at == pytest.approx(NOW + 5 * HOUR, abs=1)
    assert budget.back_at is None


def test_a_spent_budget_says_when_enough_flows_back() -> None:
    budget = budget_of(a_day(1, 60), a_day(0, 50))
    assert (budget.spent_at, budget.back_at) == (None, TODAY + DAY)


def test_a_queue_that_holds_too_much_never_gets_back_below() -> None:
    budget = budget_of(a_day(0, 110), gpus=16)
    assert (budget.spent_at, budget.back_at) == (None, None)


def test_a_queue_that_holds_nothing_spends_nothing() -> None:
    assert budget_of(a_day(1, 60)).spent_at is None


def test_a_day_that_is_none_is_left_out() -> None:
    budget = budget_of({"day": "soon", "gpuSeconds": 9 * HOUR}, a_day(0, 30))
    assert budget.left[-1].left_gpu_hours == 70.0


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 60), max_size=6),
    st.integers(1, 8),
    st.integers(1, 150),
)
def test_the_midnight_is_the_one_that_the_scheduler_waits_for(
    hours: dict[int, int], window: int, whole: int
) -> None:
    row = budget_of(
        *(a_day(back, each) for back, each in hours.items()), gpu_hours=whole, window_days=window
    )
    budget = GpuHourBudget(gpu_hours=whole, window_days=window)
    days = {int(TODAY // DAY) - back: each * HOUR for back, each in hours.items()}
    had = window_gpu_seconds(days, budget=budget, now=NOW)
    assert row.left[-1].left_gpu_hours == pytest.approx(whole - had / HOUR, abs=0.1)
    if had >= whole * HOUR:
        assert row.back_at == budgets(days, budget=budget, now=NOW).retry_at


@given(
    st.dictionaries(st.integers(0, 60), st.integers(0, 60), max_size=8),
    st.sampled_from(list(Refill)),
    st.integers(1, 150),
    st.integers(0, 20),
)
def test_the_calendar_is_the_schedulers(
    hours: dict[int, int], refill: Refill, whole: int, credit: int
) -> None:
    used = (a_day(back, each) for back, each in hours.items())
    row = budget_of(*used, gpu_hours=whole, refill=refill, credit=credit)
    budget = GpuHourBudget(gpu_hours=whole, refill=refill, credit_gpu_hours=credit)
    days = {int(TODAY // DAY) - back: each * HOUR for back, each in hours.items()}
    had = window_gpu_seconds(days, budget=budget, now=NOW)
    assert row.left[-1].left_gpu_hours == pytest.approx(whole - had / HOUR, abs=0.1)
    if had >= (whole + credit) * HOUR and row.back_at is not None:
        assert row.back_at == budgets(days, budget=budget, now=NOW).retry_at
    back = budgets(days, budget=budget, now=NOW).retry_at
    assert (row.back_at is None) <= (back is None or back > NOW + 7 * DAY)


def test_the_words_name_the_refill_and_the_credit() -> None:
    row = budget_of(a_day(0, 30), refill="Monthly", credit=5)
    assert budget_text(row) == "7 of 100 GPU-hours a month spent (5 more on credit)"


def test_money_is_said_beside_the_hours() -> None:
    budget = {"gpuHours": 100, "windowDays": 30, "cost": "500"}
    spent = {"spentGpuHours": 7, "spentCost": "17.50", "until": at(0)}
    (row,) = queue_rows(a_cluster(a_queue("q", budget=budget, status={"budget": spent})))
    assert row.budget is not None
    assert budget_text(row.budget) == (
        "7 of 100 GPU-hours of 30 days spent, and 17.50 of 500 in money"
    )


def test_a_budget_without_gpu_hours_says_what_was_had_and_draws_nothing() -> None:
    budget = {"windowDays": 30, "cost": "500"}
    spent = {"spentGpuHours": 7, "spentCost": "17.50", "until": at(0), "days": [a_day(0, 7)]}
    (row,) = queue_rows(a_cluster(a_queue("q", budget=budget, status={"budget": spent})))
    assert row.budget is not None
    assert (row.budget.gpu_hours, row.budget.left, row.budget.spent_at) == (0, (), None)
    assert budget_text(row.budget) == "7 GPU-hours of 30 days had, and 17.50 of 500 in money"
    assert not burn_down("q", row.budget)
