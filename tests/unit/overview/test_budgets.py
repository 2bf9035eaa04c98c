"""A budget's days: what was left, when it is spent at this use, and when some flows back."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline.overview.queues import queue_rows
from drumline.overview.rows import BudgetDay, BudgetRow, MoneyDay, UsageRow
from drumline.overview.usage import with_budgets
from drumline.overview.why import why_card
from drumline_cli.overview import tables
from drumline_cli.overview.tables import budget_text
from drumline_cli.report.burn_down import burn_down
from drumline_scheduler.model import Budget, Refill
from drumline_scheduler.quota.usage_budgets import window_gpu_seconds
from tests.texts import missing
from tests.unit.overview.objects import NOW, a_cluster, a_job, a_queue, at
from tests.unit.scheduler.builders import budgets

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
    spent |= {"gpuSecondsPerHour": gpus * HOUR}
    queue = a_queue(
        "q",
        budget={"gpuHours": gpu_hours, "creditGpuHours": credit}
        | ({"refill": refill} if refill else {"windowDays": window_days}),
        status={"budget": spent},
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
    budget = Budget(gpu_hours=whole, window_days=window)
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
    budget = Budget(gpu_hours=whole, refill=refill, credit_gpu_hours=credit)
    days = {int(TODAY // DAY) - back: each * HOUR for back, each in hours.items()}
    had = window_gpu_seconds(days, budget=budget, now=NOW)
    assert row.left[-1].left_gpu_hours == pytest.approx(whole - had / HOUR, abs=0.1)
    if had >= (whole + credit) * HOUR and row.back_at is not None:
        assert row.back_at == budgets(days, budget=budget, now=NOW).retry_at
    back = budgets(days, budget=budget, now=NOW).retry_at
    assert (row.back_at is None) <= (back is None or back > NOW + 7 * DAY)


def test_the_words_name_the_refill_and_the_credit() -> None:
    row = budget_of(a_day(0, 30), refill="Monthly", credit=5)
    assert not missing(budget_text(row), "7 of 100 GPU-hours", "5")


def the_budget(budget: dict[str, Any], spent: dict[str, Any]) -> BudgetRow:
    (row,) = queue_rows(a_cluster(a_queue("q", budget=budget, status={"budget": spent})))
    assert row.budget is not None
    return row.budget


def test_money_is_said_beside_the_hours() -> None:
    budget = {"gpuHours": 100, "windowDays": 30, "cost": "500"}
    spent = {"spentGpuHours": 7, "spentCost": "17.50", "until": at(0)}
    assert not missing(
        budget_text(the_budget(budget, spent)), "7 of 100 GPU-hours", "30 days", "17.50 of 500"
    )


def in_money(*costs: str, per_hour: str = "") -> BudgetRow:
    days = [{**a_day(back, 1), "cost": cost} for back, cost in enumerate(costs)]
    budget = {"windowDays": 2, "cost": "500"}
    spent = {"spentGpuHours": 2, "spentCost": "1", "until": at(0), "days": days}
    return the_budget(budget, spent | ({"costPerHour": per_hour} if per_hour else {}))


def test_money_goes_on_at_what_an_hour_costs() -> None:
    row = in_money("400.25", "60", per_hour="10")
    money = row.money
    assert money is not None
    assert money.left == (MoneyDay(at=TODAY, left=440.0), MoneyDay(at=NOW, left=39.75))
    assert money.expected[0].left == pytest.approx(500 - 460.25 - 160, abs=0.01)
    assert money.spent_at == pytest.approx(NOW + 3.975 * HOUR, abs=1)
    assert "in cost used, used up on" in budget_text(row)
    assert (row.left, row.spent_at) == ((), None)
    assert "money-q" in burn_down("q", row)


def test_money_that_is_spent_says_when_enough_flows_back() -> None:
    row = in_money("100", "400")
    assert row.money is not None
    assert (row.money.spent_at, row.money.back_at) == (None, TODAY + DAY)
    assert in_money("100", "399.99").money != row.money


@pytest.mark.parametrize("text", ["", "soon", "-3"])
def test_a_price_that_is_none_spends_nothing(text: str) -> None:
    money = in_money("400", per_hour=text).money
    assert money is not None
    assert money.spent_at is None


def of_users(*users: tuple[str, float, int]) -> BudgetRow:
    """Each with the GPU-hours of today and the GPUs that are held."""
    uses = [
        {"user": user, "days": [a_day(0, hours)], "gpuSecondsPerHour": gpus * HOUR}
        for user, hours, gpus in users
    ]
    budget = {"windowDays": 2, "userGpuHours": 50}
    return the_budget(budget, {"spentGpuHours": 9, "until": at(0), "users": uses})


def test_each_user_spends_by_what_their_own_jobs_hold() -> None:
    row = of_users(("ann", 45, 1), ("bob", 1, 0), ("eve", 50, 3))
    ann, bob, eve = row.users
    assert (ann.spent_gpu_hours, ann.spent_at) == (45.0, pytest.approx(NOW + 5 * HOUR, abs=1))
    assert (bob.spent_gpu_hours, bob.spent_at, bob.back_at) == (1.0, None, None)
    assert (eve.spent_at, eve.back_at) == (None, None)  # it holds too much for a window to free
    assert not missing(
        budget_text(row),
        "9 GPU-hours",
        "2 days",
        "50 of 50 GPU-hours",
        "ann",
        "45 of 50 GPU-hours",
        "2027-01-15",
    )


def test_of_many_users_those_with_most_are_named() -> None:
    row = of_users(*((f"user-{number}", 41 + number, 0) for number in range(6)))
    text = budget_text(row)
    assert text.count("per user used") == 4
    assert "user-5: 46 of 50" in text
    assert "user-1" not in text
    assert text.endswith("; 2 more users near that")


def test_why_names_the_user_of_the_job_alone() -> None:
    uses = [{"user": user, "days": [a_day(0, 49)]} for user in ("ann", "bob")]
    budget = {"windowDays": 2, "userGpuHours": 50}
    status = {"budget": {"spentGpuHours": 98, "until": at(0), "users": uses}}
    cluster = a_cluster(
        a_job("mine", spec={"queue": "q", "user": "bob"}),
        a_queue("q", budget=budget, status=status),
    )
    card = why_card(cluster, cluster.jobs[0])
    assert card.budget is not None
    assert [each.user for each in card.budget.users] == ["bob"]


def test_usage_by_queue_says_what_is_left_of_budgets() -> None:
    queue = a_queue("q", budget={"windowDays": 2, "gpuHours": 50})
    usage = UsageRow(
        by=("q",), jobs=1, gpu_seconds=9, productive=9, starting=0, repeated=0, recovering=0
    )
    other = msgspec.structs.replace(usage, by=("r",))
    limited, free = with_budgets((usage, other), a_cluster(queue).queues, now=NOW)
    assert limited.budget == BudgetRow(gpu_hours=50, window_days=2, spent_gpu_hours=0)
    assert free.budget is None
    head, first, second, _ = tables.usage((limited, free), by=["queue"]).splitlines()
    assert head.endswith("BUDGET")
    assert not missing(first, "0 of 50 GPU-hours", "2 days")
    assert second.endswith("-")
    assert "BUDGET" not in tables.usage((free,), by=["queue"])


def test_a_budget_without_gpu_hours_says_what_was_had_and_draws_no_hours() -> None:
    budget = {"windowDays": 30, "cost": "500"}
    spent = {"spentGpuHours": 7, "spentCost": "17.50", "until": at(0), "days": [a_day(0, 7)]}
    row = the_budget(budget, spent)
    assert (row.gpu_hours, row.left, row.spent_at) == (0, (), None)
    assert not missing(budget_text(row), "7 GPU-hours", "30 days", "17.50 of 500")
    assert "budget-q" not in burn_down("q", row)
