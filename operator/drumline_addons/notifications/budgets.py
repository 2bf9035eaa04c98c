"""Detect queues that used 80 % of their budget, and users who used 80 % of their limit.

Each is reported once whenever it reaches this share. Pure.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from drumline.kube.codec import decoded
from drumline.overview.budgets import spent_by_user
from drumline_addons.notifications.events import NewsKind, OutlookChange, change_id
from drumline_api.money import amount, money_text
from drumline_api.objects.base import Metadata
from drumline_api.objects.custom import StoredBudgetUse, StoredQueueBudget, StoredTrainingQueue
from drumline_contract import plain

# Early enough to act: a fifth of a monthly budget is about six days.
SHARE: Final = 0.8
NO_USER: Final = "(none)"
"""Stands for all jobs without a user."""
_THEN: Final = {
    "Refuse": "When the budget is used up, none of its pending jobs starts. Running jobs continue.",
    "Warn": "When the budget is used up, its jobs still start and continue.",
    "Expire": "When the budget is used up, none of its pending jobs starts. Its running jobs"
    " save and wait.",
}
_THEN_OF_USER: Final = {
    "Refuse": "When their budget is used up, none of their pending jobs starts. Their running"
    " jobs continue, and jobs of other users start.",
    "Warn": _THEN["Warn"],
    "Expire": "When their budget is used up, none of their pending jobs starts. Their running"
    " jobs save and wait. Jobs of other users continue.",
}
_MOST_NAME_CHARACTERS: Final = 253
_MOST_USERS: Final = 64
"""Maximum number of users in the status of a queue."""


class UserSpent(NamedTuple):
    """Usage of a user who used most of the limit per user."""

    user: str
    gpu_hours: float


class NotifiableQueue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """View of a TrainingQueue in the notifier's informer.

    Attributes:
        gpu_hours: limit of its budget. 0: no limit.
        cost: cost limit of its budget, in millionths. 0: no limit.
        user_gpu_hours: limit per user. 0: no limit.
        low_users: users who used 80 % of it.
        until: time up to which usage was counted (RFC 3339). Empty: not counted.
    """

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    gpu_hours: int = 0
    window_days: int = 0
    refill: str = ""
    when_spent: str = ""
    spent_gpu_hours: int = 0
    cost: int = 0
    spent_cost: int = 0
    user_gpu_hours: int = 0
    low_users: tuple[UserSpent, ...] = ()
    until: str = ""

    @property
    def is_low(self) -> bool:
        """Return whether the budget is nearly used up."""
        # The limit with the highest usage decides, because it stops the jobs first.
        spent = _most_spent(self)
        return spent is not None and spent.share >= SHARE

    @property
    def low(self) -> dict[str, UserSpent | None]:
        """Return nearly used budgets by a stable key: the queue's (None) and those of users."""
        # The queue's own key has no user, so it cannot equal the key of a user.
        own = {self.uid: None} if self.is_low else {}
        return {**own, **{f"{self.uid}/{each.user}": each for each in self.low_users}}


class _Spent(NamedTuple):
    """Usage of one limit of a budget."""

    share: float
    bound: int
    words: str


def _most_spent(queue: NotifiableQueue) -> _Spent | None:
    """Return the limit with the highest usage, or None if no limit covers all jobs of the queue."""
    bounds: list[_Spent] = []
    if queue.gpu_hours > 0:
        words = f"{queue.spent_gpu_hours:,} of {queue.gpu_hours:,} GPU-hours"
        bounds.append(_Spent(queue.spent_gpu_hours / queue.gpu_hours, queue.gpu_hours, words))
    if queue.cost > 0:
        words = f"a cost of {money_text(queue.spent_cost)} of {money_text(queue.cost)}"
        bounds.append(_Spent(queue.spent_cost / queue.cost, queue.cost, words))
    return max(bounds, key=lambda spent: spent.share, default=None)


class _SeenQueue(StoredTrainingQueue, frozen=True):
    metadata: Metadata


_DECODER: Final = msgspec.json.Decoder(_SeenQueue)
_UNLIMITED: Final = StoredQueueBudget(when_spent="")


def notifiable_queue(raw: bytes | msgspec.Raw) -> NotifiableQueue:
    """Return the view of one TrainingQueue.

    Raises:
        Undecodable: the object is not a TrainingQueue.
    """
    queue = decoded(_DECODER, raw)
    # Absent objects stand for no limit, so the comparisons below need no case for them.
    budget, use = queue.spec.budget or _UNLIMITED, queue.status.budget or StoredBudgetUse()
    user_gpu_hours = budget.user_gpu_hours or 0
    low = [
        UserSpent(user[:_MOST_NAME_CHARACTERS], had)
        for user, had in spent_by_user(queue).items()
        # The status names only the users with the highest usage.
        if had >= SHARE * user_gpu_hours
    ]
    return NotifiableQueue(
        name=plain(queue.metadata.name)[:_MOST_NAME_CHARACTERS],
        uid=queue.metadata.uid,
        resource_version=queue.metadata.resource_version,
        gpu_hours=budget.gpu_hours or 0,
        window_days=budget.window_days or 0,
        refill=budget.refill or "",
        when_spent=budget.when_spent,
        spent_gpu_hours=use.spent_gpu_hours,
        cost=_millionths(budget.cost or ""),
        spent_cost=_millionths(use.spent_cost or ""),
        user_gpu_hours=user_gpu_hours,
        low_users=tuple(low[:_MOST_USERS]),
        until=use.until,
    )


def user_change(queue: NotifiableQueue, spent: UserSpent, *, now: float) -> OutlookChange:
    """Return the message about a user who used most of the limit. IDs are those of a queue.

    Args:
        queue: the queue with its budget.
        spent: the user's use and limit.
        now: Unix time in seconds.
    """
    share = spent.gpu_hours / max(1, queue.user_gpu_hours)
    # Day, limit and user: a raised limit that is nearly used again is news.
    key = f"{queue.until[:10]}/{queue.user_gpu_hours}/{spent.user}"
    then = _THEN_OF_USER.get(queue.when_spent, _THEN_OF_USER["Refuse"])
    return OutlookChange(
        id=change_id(queue.uid, NewsKind.BUDGET, key=key),
        kind=NewsKind.BUDGET,
        at=now,
        namespace="",
        name=queue.name,
        uid=queue.uid,
        queue=queue.name,
        user=spent.user or NO_USER,
        message=f"Their jobs have used {spent.gpu_hours:,.0f} of {queue.user_gpu_hours:,}"
        f" GPU-hours {_time(queue)} ({share:.0%}). {then}",
    )


def budget_change(queue: NotifiableQueue, *, now: float) -> OutlookChange:
    """Return the message about a queue whose budget is low, by its most used limit.

    The ID contains the day up to which usage is counted. A budget becomes low at most once a day,
    because usage becomes available again at midnight.
    """
    spent = _most_spent(queue) or _Spent(0.0, 0, "nothing")
    return OutlookChange(
        id=change_id(queue.uid, NewsKind.BUDGET, key=f"{queue.until[:10]}/{spent.bound}"),
        kind=NewsKind.BUDGET,
        at=now,  # a budget that was lowered is low before anything is counted anew
        namespace="",
        name=queue.name,
        uid=queue.uid,
        queue=queue.name,
        message=f"It has used {spent.words} {_time(queue)} ({spent.share:.0%})."
        f" {_THEN.get(queue.when_spent, _THEN['Refuse'])}",
    )


def _time(queue: NotifiableQueue) -> str:
    match queue.refill:
        case "Weekly":
            return "of this week"
        case "Monthly":
            return "of this month"
        case _:
            return f"in {queue.window_days} days"


def _millionths(text: str) -> int:
    """Return an amount of money in millionths, or 0 if it is not readable."""
    try:
        return amount(text)
    except ValueError:
        return 0
