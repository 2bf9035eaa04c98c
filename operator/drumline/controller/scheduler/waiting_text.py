"""Text of a waiting job by its position: full text near the head, a stable one behind.

Thousands of jobs may wait for the same few GPUs, and the figures change with every job that starts.
Writing them to each job would cost the API server more than the running jobs. Figures that are
written rarely would contradict the figures beside them. So only the next jobs of a queue get
figures. A job behind them gets its reason. A problem of the job itself (an unknown queue, a gang
larger than the pool) is reported in full at any position.

    position   text                     a message of the same meaning is refreshed after
    0-9        full                     a minute
    10-        reason, without figures  never: it does not change
"""

from __future__ import annotations

import re
from typing import Final

from drumline_scheduler.decisions import Blocked, BlockReason, RemedyKind

NEXT: Final = 10
HEAD: Final = 100
NEXT_SECONDS: Final = 60.0
HEAD_SECONDS: Final = 600.0

_FOR_OTHERS: Final = frozenset(
    {
        BlockReason.QUOTA_EXHAUSTED,
        BlockReason.INSUFFICIENT_GPUS,
        BlockReason.INSUFFICIENT_RESOURCES,
        BlockReason.TOPOLOGY_DOES_NOT_FIT,
        BlockReason.BEHIND_HIGHER_PRIORITY,
        BlockReason.WOULD_DELAY_RESERVATION,
        BlockReason.USER_LIMIT,
        BlockReason.SWEEP_LIMIT,
        BlockReason.BUDGET_SPENT,
    }
)
"""Reasons that pass when other jobs end, or with time."""
_SAID: Final = frozenset(
    {
        BlockReason.NAMESPACE_NOT_ALLOWED,
        BlockReason.NAMESPACE_TERMINATING,
        BlockReason.CLAIM_IN_USE,
        BlockReason.PRIORITY_TOO_HIGH,
    }
)
"""Reasons whose message already contains the remedy."""
_FIGURES: Final = re.compile(r"[0-9][0-9.,:]*")


def is_far(blocked: Blocked, *, position: int) -> bool:
    """Return whether a job only waits for others, with many of its queue before it."""
    return position >= NEXT and blocked.reason in _FOR_OTHERS


def text_of(blocked: Blocked, *, position: int, autoscaler: str = "") -> str:
    """Return why a job waits, and what would let it start.

    Args:
        blocked: the scheduler's answer.
        position: number of waiting jobs of its queue before it.
        autoscaler: the autoscaler's last message about nodes that the job waits for.
    """
    if blocked.reason is BlockReason.WAITING_FOR_NODES and autoscaler:
        return f"{blocked.message}; it says: {autoscaler}"
    if is_far(blocked, position=position):
        return f"at least {NEXT} jobs of its queue are before it; figures follow nearer the head"
    remedy = blocked.remedy
    if (
        blocked.reason in _SAID
        or remedy is None
        or remedy.kind in {RemedyKind.WAIT, RemedyKind.WAIT_FOR}
    ):
        return blocked.message
    return f"{blocked.message}; to start it now: {remedy}"


def refresh_seconds(before: str, after: str, *, position: int) -> float:
    """Return the least seconds between two writes of a message with the same reason.

    Args:
        before: the stored message.
        after: the new message.
        position: place of the job in the line, from 1.
    """
    same_meaning = _FIGURES.sub("#", before) == _FIGURES.sub("#", after)
    return HEAD_SECONDS if same_meaning and position >= NEXT else NEXT_SECONDS
