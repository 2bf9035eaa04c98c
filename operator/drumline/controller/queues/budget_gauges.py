"""Budgets of queues and their spent amounts, as gauges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from drumline.controller.queues.budgets import QueueBudgets
from drumline.telemetry.metrics import BudgetMetrics
from drumline_api.money import MILLIONTHS
from drumline_scheduler.model import HOUR_SECONDS, Budget
from drumline_scheduler.quota.usage_budgets import window_amount, window_gpu_seconds

MOST_USERS: Final = 16
"""Most users with a series in each queue, by use. Jobs may name any number of users."""


def show_budgets(
    gauges: BudgetMetrics, budgets: QueueBudgets, *, names_users: bool, now: float
) -> None:
    """Set the gauges of all queues that have a budget, and remove those of other queues.

    Args:
        gauges: gauges to set.
        budgets: budgets of the queues and their spent amounts.
        names_users: whether the readers may see the users' names.
        now: seconds since the epoch.
    """
    # Clear first: a queue that was deleted or lost its budget must not keep its series.
    gauges.clear()
    spent, prices, users = (
        budgets.spent(now),
        budgets.spent_prices(now),
        budgets.spent_by_user(now),
    )
    # One block for each kind of limit: GPU-hours, money, and GPU-hours of each user.
    for queue, budget in budgets.budgets().items():
        had = window_gpu_seconds(spent[queue], budget=budget, now=now)
        gauges.spent_gpu_seconds.labels(queue=queue).set(had)
        if budget.gpu_hours is not None:
            gauges.gpu_seconds.labels(queue=queue).set(budget.gpu_hours * HOUR_SECONDS)
            credit = budget.credit_gpu_hours * HOUR_SECONDS
            gauges.credit_gpu_seconds.labels(queue=queue).set(credit)
        if budget.cost is not None:
            whole = budget.cost * HOUR_SECONDS
            had = window_amount(prices.get(queue, {}), whole=whole, budget=budget, now=now)
            gauges.cost.labels(queue=queue).set(budget.cost / MILLIONTHS)
            gauges.spent_cost.labels(queue=queue).set(had / HOUR_SECONDS / MILLIONTHS)
        if budget.user_gpu_hours is not None:
            of_queue = users.get(queue) if names_users else None
            _show_users(gauges, queue, of_queue or {}, budget=budget, now=now)


def _show_users(
    gauges: BudgetMetrics,
    queue: str,
    users: Mapping[str, Mapping[int, int]],
    *,
    budget: Budget,
    now: float,
) -> None:
    whole = (budget.user_gpu_hours or 0) * HOUR_SECONDS
    gauges.user_gpu_seconds.labels(queue=queue).set(whole)
    had = {
        user: window_amount(days, whole=whole, budget=budget, now=now)
        for user, days in users.items()
    }
    # Highest use first, then by name, so that the chosen users do not change at random.
    for user in sorted(had, key=lambda user: (-had[user], user))[:MOST_USERS]:
        gauges.user_spent_gpu_seconds.labels(queue=queue, user=user).set(had[user])
