"""What is left of a queue's budget, as `drumline queue`, `why`, `usage` and the page show it."""

from __future__ import annotations

from drumline.overview.row import OverviewRow


class BudgetDay(OverviewRow, frozen=True, kw_only=True):
    """What a queue with a budget has left at a moment.

    Attributes:
        at: the moment.
        left_gpu_hours: of its budget; negative: more than that is spent.
    """

    at: float
    left_gpu_hours: float


class MoneyDay(OverviewRow, frozen=True, kw_only=True):
    """What a queue with a budget in money has left at a moment.

    Attributes:
        at: the moment.
        left: of its cost, to the nearest hundredth; negative: more than that is spent.
    """

    at: float
    left: float


class MoneyOutlook(OverviewRow, frozen=True, kw_only=True):
    """What is left of a budget's cost, and how that goes on if what is held stays at its price.

    Attributes:
        left: at the end of each of its days, and now.
        expected: at the end of the coming days.
        spent_at: when it is spent; absent: not within its days, or it is spent.
        back_at: it is spent: the midnight at which enough flows back; absent: it is not spent, or
            not within its days.
    """

    left: tuple[MoneyDay, ...] = ()
    expected: tuple[MoneyDay, ...] = ()
    spent_at: float | None = None
    back_at: float | None = None


class UserBudgetRow(OverviewRow, frozen=True, kw_only=True):
    """What one user's jobs had, where a budget limits each user's.

    Attributes:
        user: spec.user of the jobs; empty: of those without.
        spent_gpu_hours: what counts, what they hold until now included.
        spent_at: as of the outlook of money, if the user's jobs hold what they hold now.
        back_at: the same.
    """

    user: str
    spent_gpu_hours: float
    spent_at: float | None = None
    back_at: float | None = None


class BudgetRow(OverviewRow, frozen=True, kw_only=True):
    """What the jobs of a queue may have in a time, and what they had.

    Attributes:
        gpu_hours: GPU-hours that they may have; 0: any number, and nothing is said of days.
        window_days: in so many days, today included; 0: it is refilled.
        refill: Weekly or Monthly, by the calendar (UTC); empty: what was had flows back.
        credit_gpu_hours: of the next refill, which they may have before it.
        when_spent: Refuse, Warn or Expire.
        cost: what they may cost, a decimal; empty: any amount.
        spent_cost: what they cost, as the operator last wrote it.
        spent_gpu_hours: whole GPU-hours that they had, as the operator last wrote it.
        left: what was left at the end of each of these days, and now.
        expected: what will be left at the end of the coming days, if the queue holds what it holds
            now.
        spent_at: when it is spent then; absent: not within its days, or it is spent.
        back_at: it is spent: the midnight at which enough flows back then; absent: it is not
            spent, or not within its days.
        money: the same of its cost; absent: it has none, or nothing was counted yet.
        user_gpu_hours: GPU-hours that each user's jobs may have; 0: any number.
        users: of these users, those with most, by name.
    """

    gpu_hours: int
    window_days: int
    spent_gpu_hours: int
    refill: str = ""
    credit_gpu_hours: int = 0
    when_spent: str = "Refuse"
    cost: str = ""
    spent_cost: str = ""
    left: tuple[BudgetDay, ...] = ()
    expected: tuple[BudgetDay, ...] = ()
    spent_at: float | None = None
    back_at: float | None = None
    money: MoneyOutlook | None = None
    user_gpu_hours: int = 0
    users: tuple[UserBudgetRow, ...] = ()
