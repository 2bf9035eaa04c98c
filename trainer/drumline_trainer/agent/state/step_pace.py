"""How long the steps of an attempt still take; pure.

The mean over the whole attempt, evaluations and checkpoints included: they come again. Its first
step does not count, which compiles and fills caches.

    step 101 at 60 s, step 201 at 260 s, of 1,001: 2 s a step, 1,600 s are left
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StepPace:
    """Of one attempt."""

    _first: tuple[int, float] | None = None
    _newest: tuple[int, float] | None = None

    def note(self, step: int, *, at: float) -> None:
        """This many steps are finished at this time; a step that was known is no news."""
        if self._first is None or self._newest is None or step < self._first[0]:
            self._first = self._newest = (step, at)
        elif step > self._newest[0]:
            self._newest = (step, at)

    def seconds_left(self, total_steps: int, *, now: float) -> float | None:
        """Until the last step ends; None where the pace or the number of steps is not known."""
        if self._first is None or self._newest is None or total_steps <= 0:
            return None
        (begin, since), (step, at) = self._first, self._newest
        if step >= total_steps:
            return 0.0
        if step == begin:
            return None
        return max(0.0, (total_steps - step) * (at - since) / (step - begin) - (now - at))
