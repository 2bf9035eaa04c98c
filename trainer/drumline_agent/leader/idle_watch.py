"""How long all ranks of a gang have shown no work; pure.

The gang pauses for as long as the rank that paused last, and its usual pause is the longest of its
ranks'. It is judged only where each rank can be: one that starts, or a member that is not heard,
makes the pause unknown, and it is counted from zero again. So is no more than what was watched: an
agent that was frozen together with its ranks has seen nothing of that time.

    rank 0 prints steps and does nothing for 90 s    usual pause 10 s
    rank 1 prints none and is inactive for 85 s      -> the gang pauses for 85 s; idle after 80 s
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline_agent.protocol.member_reports import RankView
from drumline_contract import Pause

LONGEST_LOOK_SECONDS: Final = 5.0
"""Between two looks more is not counted as watched: nobody looked."""


class IdleWatch:
    """Of one gang."""

    def __init__(self) -> None:
        self._watched: float | None = None
        """Seconds of this pause; None while it is not known."""
        self._looked_at = 0.0

    def look(self, views: Sequence[RankView], *, now: float) -> Pause | None:
        """The pause of the gang; None where it cannot be told.

        Args:
            views: all its ranks as of now; none where they are not known, or are not to move.
            now: monotonic seconds.
        """
        passed, self._looked_at = now - self._looked_at, now
        pause = pause_of(views)
        if pause is None:
            self._watched = None
            return None
        watched = 0.0
        if self._watched is not None:
            watched = self._watched + min(max(passed, 0.0), LONGEST_LOOK_SECONDS)
        self._watched = min(watched, pause.seconds)
        return Pause(seconds=self._watched, usual_seconds=pause.usual_seconds)


def pause_of(views: Sequence[RankView]) -> Pause | None:
    """The pause of these ranks together; None where one cannot be judged, or no step is known."""
    pauses = [view.pause for view in views if not view.done]
    known = [pause for pause in pauses if pause is not None]
    usual = max((pause.usual_seconds for pause in known), default=0.0)
    if len(known) < len(pauses) or usual <= 0:
        return None
    return Pause(seconds=min(pause.seconds for pause in known), usual_seconds=usual)
