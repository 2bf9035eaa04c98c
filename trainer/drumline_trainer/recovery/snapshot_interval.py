"""The interval between snapshots, by their measured cost. No torch.

Two costs bound the interval from below: the time that training stands still for a snapshot, at most
`MAX_COST` of the steps between two snapshots; and the time until its copy has reached a peer, which
must be over before the next snapshot is taken. The interval starts at one step and at most doubles
each time, so that one slow measurement cannot stop snapshots for long. Example:

    step 0.1 s, snapshot costs 0.012 s, copied after 0.3 s
    -> max(0.012 / 0.03, 0.3) / 0.1 = 4 steps
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

MAX_COST: Final = 0.03
"""Share of the training time that snapshots may take."""
_WEIGHT = 0.3
"""Weight of the newest measurement in the running mean of step times."""


@dataclass(slots=True, kw_only=True)
class SnapshotInterval:
    """Each rank proposes an interval by its own measurements; all adopt the longest."""

    fixed: int | None = None
    """An interval by configuration, which is not measured."""
    every_steps: int = 1
    """Steps from one snapshot to the next, the same on every rank."""
    next_step: int = 0
    _step: int = 0
    """The newest one that was measured."""
    _step_seconds: float = 0.0

    def begin(self, step: int) -> None:
        """Start after `step` finished steps, with the fixed interval or at first with one step."""
        self.every_steps = self.fixed or 1
        self.next_step = step + self.every_steps
        self._step = step

    def measure_step(self, seconds: float, *, to: int) -> None:
        """Measure all steps since the last call, up to this one, without the time of saving."""
        each, before = seconds / (to - self._step), self._step_seconds
        self._step_seconds = before + _WEIGHT * (each - before) if before else each
        self._step = to

    def propose(self, *, cost_seconds: float, copy_seconds: float) -> int:
        """Return this rank's interval in steps.

        Args:
            cost_seconds: training time lost to the newest snapshot.
            copy_seconds: time until a peer had its copy.
        """
        if self.fixed is not None:
            return self.fixed
        step_seconds = max(self._step_seconds, 1e-9)
        wanted = max(cost_seconds / MAX_COST, copy_seconds) / step_seconds
        return min(2 * self.every_steps, max(1, math.ceil(wanted)))

    def adopt(self, every_steps: int, *, at: int) -> None:
        """Take the next snapshot this long after step `at`, as all ranks do."""
        self.every_steps = every_steps
        self.next_step = at + every_steps
