"""A queue that has spent four fifths of its budget: once each time that it comes there. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from drumline.kube.codec import decoded
from drumline.notifications.events import NewsKind, OutlookChange, change_id
from drumline_trainer.contract import plain

SHARE: Final = 0.8
_THEN: Final = {
    "Refuse": "Once they are spent none of its waiting jobs starts; what runs goes on.",
    "Warn": "Once they are spent its jobs go on all the same.",
    "Expire": "Once they are spent none of its waiting jobs starts, and what runs is saved and"
    " waits.",
}
_MOST_NAME_CHARACTERS: Final = 253


class NotifiableQueue(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The view of the notifier's informer of TrainingQueues.

    Attributes:
        gpu_hours: of its budget; 0: it has none.
        until: up to when was counted (RFC 3339); empty: nothing was.
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
    until: str = ""

    @property
    def is_low(self) -> bool:
        """Whether its budget is nearly spent."""
        return self.gpu_hours > 0 and self.spent_gpu_hours >= SHARE * self.gpu_hours


class _QueuePart(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the object; unknown fields are skipped."""


class _QueueMetadata(_QueuePart, frozen=True, rename="camel"):
    name: str
    uid: str
    resource_version: str = ""


class _SeenBudget(_QueuePart, frozen=True, rename="camel"):
    gpu_hours: int = 0
    window_days: int = 0
    refill: str = ""
    when_spent: str = ""


class _SeenUse(_QueuePart, frozen=True, rename="camel"):
    spent_gpu_hours: int = 0
    until: str = ""


class _QueueSpec(_QueuePart, frozen=True, rename="camel"):
    budget: _SeenBudget | None = None


class _QueueStatus(_QueuePart, frozen=True, rename="camel"):
    budget: _SeenUse | None = None


class _SeenQueue(_QueuePart, frozen=True, rename="camel"):
    metadata: _QueueMetadata
    spec: _QueueSpec = _QueueSpec()
    status: _QueueStatus = _QueueStatus()


_DECODER: Final = msgspec.json.Decoder(_SeenQueue)


def notifiable_queue(raw: bytes | msgspec.Raw) -> NotifiableQueue:
    """The view of one TrainingQueue.

    Raises:
        Undecodable: it is not one.
    """
    queue = decoded(_DECODER, raw)
    budget, use = queue.spec.budget or _SeenBudget(), queue.status.budget or _SeenUse()
    return NotifiableQueue(
        name=plain(queue.metadata.name)[:_MOST_NAME_CHARACTERS],
        uid=queue.metadata.uid,
        resource_version=queue.metadata.resource_version,
        gpu_hours=budget.gpu_hours,
        window_days=budget.window_days,
        refill=budget.refill,
        when_spent=budget.when_spent,
        spent_gpu_hours=use.spent_gpu_hours,
        until=use.until,
    )


def budget_change(queue: NotifiableQueue, *, now: float) -> OutlookChange:
    """The message about a queue whose budget is low now.

    Its id has the day up to which is counted: a budget comes there once a day at most, as what
    flows back does so at midnight.
    """
    share = queue.spent_gpu_hours / queue.gpu_hours
    return OutlookChange(
        id=change_id(queue.uid, NewsKind.BUDGET, key=f"{queue.until[:10]}/{queue.gpu_hours}"),
        kind=NewsKind.BUDGET,
        at=now,  # a budget that was lowered is low before anything is counted anew
        namespace="",
        name=queue.name,
        uid=queue.uid,
        queue=queue.name,
        message=f"It has had {queue.spent_gpu_hours:,} of {queue.gpu_hours:,} GPU-hours"
        f" {_time(queue)} ({share:.0%}). {_THEN.get(queue.when_spent, _THEN['Refuse'])}",
    )


def _time(queue: NotifiableQueue) -> str:
    match queue.refill:
        case "Weekly":
            return "of this week"
        case "Monthly":
            return "of this month"
        case _:
            return f"in {queue.window_days} days"
