"""Time for which a rank shows no sign of work, and the length of its usual pauses; pure.

A heartbeat is a sign of work: a step, another phase, a printed line. Long phases do not count as
pauses. Nothing is judged before an attempt has shown a few steps, because the first ones compile
and fill caches.

    signs at 0, 2, 4, 34 (a slow batch), 36 s     usual: 30 s, because that ended by itself
"""

from __future__ import annotations

from collections import deque
from typing import Final

from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_contract import Pause

STEPS_TO_LEARN: Final = 2
"""Number of steps of an attempt after its first visible one before pauses are judged."""
REMEMBERED: Final = 512
"""Number of remembered pauses. A long and rare pause is forgotten after this many others."""
LONG_PHASES: Final = frozenset(
    (Phase.STARTING, Phase.RESTORING, Phase.EVALUATION, Phase.SNAPSHOT, Phase.CHECKPOINT)
)
"""Their lengths say nothing of a rank's work."""


class WorkPace:
    """Pace of one local rank, over all its attempts in this pod."""

    def __init__(self) -> None:
        self._pauses: deque[float] = deque(maxlen=REMEMBERED)
        self._newest: Heartbeat | None = None
        self._first_step: int | None = None

    def begin_attempt(self) -> None:
        """Begin an attempt. The usual pause stays known."""
        self._newest, self._first_step = None, None

    def note(self, heartbeat: Heartbeat) -> None:
        """Take in the newest heartbeat, or the same again."""
        before, self._newest = self._newest, heartbeat
        if heartbeat.phase is Phase.RUNNING or heartbeat.position[0] < 0:
            return
        if self._first_step is None:
            self._first_step = heartbeat.step
        elif before is not None and before.phase not in LONG_PHASES:
            pause = heartbeat.time_seconds - before.time_seconds
            if before.step > self._first_step and pause > 0:  # the same again is no sign
                self._pauses.append(pause)

    @property
    def usual_seconds(self) -> float:
        """Longest recent pause, in seconds. 0: no pause is known."""
        return max(self._pauses, default=0.0)

    def pause(self, *, now: float) -> Pause | None:
        """Return the pause since the newest sign of work, on the monotonic clock.

        It is None until enough steps have passed to know how long they usually take.
        """
        newest = self._newest
        if newest is None or self._steps < STEPS_TO_LEARN:
            return None
        seconds = 0.0 if newest.phase in LONG_PHASES else max(0.0, now - newest.time_seconds)
        return Pause(seconds=seconds, usual_seconds=self.usual_seconds)

    @property
    def _steps(self) -> int:
        """Finished in this attempt, after the first that it has shown."""
        if self._newest is None or self._first_step is None:
            return 0
        return self._newest.step - self._first_step
