"""Define alerts about the budgets of queues: nearly used up, and used up."""

from __future__ import annotations

from typing import Final

from tools.monitoring.model import Alert

_COMMAND: Final = "drumline queue {{ $labels.queue }}"
_GPU_HOURS: Final = "max by (queue) (drumline_queue_budget_spent_gpu_seconds)"
_OF_GPU_HOURS: Final = "max by (queue) (drumline_queue_budget_gpu_seconds)"
_CREDIT: Final = "max by (queue) (drumline_queue_budget_credit_gpu_seconds)"
_MONEY: Final = (
    "max by (queue) (drumline_queue_budget_spent_cost)"
    " / max by (queue) (drumline_queue_budget_cost)"
)
_USER: Final = (
    "max by (queue, user) (drumline_queue_budget_user_spent_gpu_seconds)"
    " / on (queue) group_left () max by (queue) (drumline_queue_budget_user_gpu_seconds)"
)


def _low(name: str, expression: str, *, summary: str) -> Alert:
    return Alert(
        name=name,
        expression=f"{expression} >= 0.8",
        minutes=15,
        severity="info",
        summary=summary,
        command=_COMMAND,
    )


def _spent(name: str, expression: str, *, summary: str) -> Alert:
    return Alert(
        name=name,
        expression=f"{expression} >= 1",
        minutes=0,
        severity="warning",
        summary=summary,
        command=_COMMAND,
    )


BUDGETS: Final = (
    _low(
        "DrumlineQueueBudgetLow",
        f"{_GPU_HOURS} / {_OF_GPU_HOURS}",
        summary="Queue {{ $labels.queue }} has used {{ $value | humanizePercentage }} of its"
        " GPU-hours. None of its jobs starts when all are used up.",
    ),
    _spent(
        "DrumlineQueueBudgetSpent",
        f"{_GPU_HOURS} / ({_OF_GPU_HOURS} + {_CREDIT})",
        summary="Queue {{ $labels.queue }} has used {{ $value | humanizePercentage }} of its"
        " GPU-hours, including credit.",
    ),
    _low(
        "DrumlineQueueMoneyLow",
        _MONEY,
        summary="Queue {{ $labels.queue }} has used {{ $value | humanizePercentage }} of its"
        " cost budget. None of its jobs starts when it is used up.",
    ),
    _spent(
        "DrumlineQueueMoneySpent",
        _MONEY,
        summary="Queue {{ $labels.queue }} has used {{ $value | humanizePercentage }} of its"
        " cost budget.",
    ),
    _low(
        "DrumlineUserBudgetLow",
        _USER,
        summary="User {{ $labels.user }} of queue {{ $labels.queue }} has used {{ $value |"
        " humanizePercentage }} of the GPU-hours per user. None of their jobs starts"
        " when all are used up.",
    ),
    _spent(
        "DrumlineUserBudgetSpent",
        _USER,
        summary="User {{ $labels.user }} of queue {{ $labels.queue }} has used {{ $value |"
        " humanizePercentage }} of the GPU-hours per user.",
    ),
)
