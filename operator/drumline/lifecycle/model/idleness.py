"""Verdict on a gang whose GPUs are idle, by the length of its pause.

The agents report the length of the pause. They use a monotonic clock, and count on while the
operator is away. Only the time for the owner's reaction is measured by the operator.

    usual pause 2 s, afterSeconds 240    64 s WARNED    240 s NOTIFIED    480 s SUSPENDED
    usual pause 300 s                   660 s WARNED and NOTIFIED         900 s SUSPENDED
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from drumline_api.conditions import Reason
from drumline_api.trainingqueue import IdleRules
from drumline_contract import Pause

IDLE_REASONS: Final = frozenset({Reason.NO_STEPS, Reason.STAYS_IDLE, Reason.IDLE_GPUS})
"""Reasons of the conditions Idle and Suspended."""
AGAIN_SECONDS: Final = 2.0
"""Least time until the next look, because a report may be this old."""


class IdleStage(IntEnum):
    """Stage of a pause. Each stage includes the stages before."""

    WORKS = 0
    WARNED = 1
    NOTIFIED = 2
    SUSPENDED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleVerdict:
    """Action for the present pause."""

    stage: IdleStage
    again_in: float | None = None
    """Seconds until the next stage may be reached. None if time alone changes nothing."""


def idle_verdict(
    pause: Pause, rules: IdleRules, *, may_suspend: bool, notified_seconds: float | None
) -> IdleVerdict:
    """Return the stage of a pause.

    Args:
        pause: pause of the whole gang, as its agents report it.
        rules: rules of its queue.
        may_suspend: whether the job allows its suspension.
        notified_seconds: seconds since the notification about this pause, or None without one.
    """
    # Phase 1: a short pause, or a queue that only warns.
    if not pause.is_idle:
        return IdleVerdict(stage=IdleStage.WORKS)
    if rules.action == "Warn":
        return IdleVerdict(stage=IdleStage.WARNED)
    # Phase 2: a job with long usual pauses is notified later.
    notify_at = max(pause.idle_after_seconds, float(rules.after_seconds))
    if pause.seconds < notify_at:
        return IdleVerdict(stage=IdleStage.WARNED, again_in=_until(notify_at, pause))
    if rules.action == "Notify" or not may_suspend:
        return IdleVerdict(stage=IdleStage.NOTIFIED)
    # Phase 3: suspend only after the owner had the whole time to react.
    suspend_at = notify_at + rules.after_seconds
    left = rules.after_seconds - (notified_seconds or 0.0)
    if notified_seconds is None or pause.seconds < suspend_at or left > 0:
        again_in = max(_until(suspend_at, pause), left)
        return IdleVerdict(stage=IdleStage.NOTIFIED, again_in=again_in)
    return IdleVerdict(stage=IdleStage.SUSPENDED)


def _until(seconds: float, pause: Pause) -> float:
    return max(AGAIN_SECONDS, seconds - pause.seconds)
