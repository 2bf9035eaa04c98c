"""Time for which all ranks of a gang have shown no work; pure.

The gang's pause is that of the rank that paused last. Its usual pause is the longest of its ranks'.
It is known only while each rank's pause is known. A rank that starts or a silent member makes it
unknown, and it then restarts from zero. Only watched time counts: an agent that was frozen together
with its ranks has not watched.

    rank 0 prints steps and does nothing for 90 s    usual pause 10 s
    rank 1 prints none and is inactive for 85 s      -> the gang pauses for 85 s; idle after 80 s
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline_agent.protocol.member_reports import RankView
from drumline_contract import Pause

LONGEST_LOOK_SECONDS: Final = 5.0
"""Longest time between two looks that counts as watched."""


class IdleWatch:
    """The watch over one gang."""

    def __init__(self) -> None:
        self._watched: float | None = None
        """Seconds of this pause; None while it is not known."""
        self._looked_at = 0.0

    def look(self, views: Sequence[RankView], *, now: float) -> Pause | None:
        """Return the pause of the gang. None: it is unknown.

        Args:
            views: all its ranks as of now; empty if they are unknown or not expected to move.
            now: monotonic seconds.
        """
        passed, self._looked_at = now - self._looked_at, now
        pause = pause_of(views)
        # Restart from zero, because ranks may have worked while nothing was known of them.
        if pause is None:
            self._watched = None
            return None
        watched = 0.0
        # Bounded per look: a frozen agent must not count its own absence as idle time.
        if self._watched is not None:
            watched = self._watched + min(max(passed, 0.0), LONGEST_LOOK_SECONDS)
        self._watched = min(watched, pause.seconds)
        return Pause(seconds=self._watched, usual_seconds=pause.usual_seconds)


def pause_of(views: Sequence[RankView]) -> Pause | None:
    """Return the common pause of these ranks. None: one is unknown, or no step is known."""
    pauses = [view.pause for view in views if not view.done]
    known = [pause for pause in pauses if pause is not None]
    usual = max((pause.usual_seconds for pause in known), default=0.0)
    # One unknown rank may be the one that works.
    if len(known) < len(pauses) or usual <= 0:
        return None
    return Pause(seconds=min(pause.seconds for pause in known), usual_seconds=usual)
