"""What is done about a gang whose GPUs are idle, by how long it pauses.

The length of the pause is the agents': they count it by a clock that no administrator sets, and
hold it while the operator is away. Only the time that its owner had to react is the operator's own.

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
"""Of the conditions Idle and Suspended."""
AGAIN_SECONDS: Final = 2.0
"""A report may be so old: until the pause that it tells of is as long as is waited for."""


class IdleStage(IntEnum):
    """How far it has come; each stage includes those before."""

    WORKS = 0
    WARNED = 1
    NOTIFIED = 2
    SUSPENDED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleVerdict:
    """What is to be done now."""

    stage: IdleStage
    again_in: float | None = None
    """Seconds until it may be more; None: time alone changes nothing."""


def idle_verdict(
    pause: Pause, rules: IdleRules, *, may_suspend: bool, notified_seconds: float | None
) -> IdleVerdict:
    """How far a pause has come.

    Args:
        pause: of the whole gang, as its agents report it.
        rules: of its queue.
        may_suspend: the job does not refuse to be suspended.
        notified_seconds: since that it has been said; None: it was not, of this pause.
    """
    if not pause.is_idle:
        return IdleVerdict(stage=IdleStage.WORKS)
    if rules.action == "Warn":
        return IdleVerdict(stage=IdleStage.WARNED)
    notify_at = max(pause.idle_after_seconds, float(rules.after_seconds))
    if pause.seconds < notify_at:
        return IdleVerdict(stage=IdleStage.WARNED, again_in=_until(notify_at, pause))
    if rules.action == "Notify" or not may_suspend:
        return IdleVerdict(stage=IdleStage.NOTIFIED)
    suspend_at = notify_at + rules.after_seconds
    left = rules.after_seconds - (notified_seconds or 0.0)
    if notified_seconds is None or pause.seconds < suspend_at or left > 0:
        again_in = max(_until(suspend_at, pause), left)
        return IdleVerdict(stage=IdleStage.NOTIFIED, again_in=again_in)
    return IdleVerdict(stage=IdleStage.SUSPENDED)


def _until(seconds: float, pause: Pause) -> float:
    return max(AGAIN_SECONDS, seconds - pause.seconds)
