"""Measured step parts beside the predicted ones, since the layout began.

The first window warms up and does not count. Parts of the step timer are phases and collectives of
many axes; here they are the few that the planner predicts (`contract.StepPart`).

Example: forward 2 s, all_gather/fsdp 1 s, recv/pp 1 s, other 0.1 s are compute 2, data 1,
pipeline 1 and rest 0.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from drumline_contract import StepPart

_PHASES = {
    "forward": StepPart.COMPUTE,
    "backward": StepPart.COMPUTE,
    "optimizer": StepPart.OPTIMIZER,
    "data": StepPart.REST,
    "other": StepPart.REST,
    "checkpoint": None,
    "snapshot": None,
}
"""None: counts for no step."""
AXES = {
    "tp": StepPart.TENSOR,
    "cp": StepPart.CONTEXT,
    "ep": StepPart.EXPERT,
    "pp": StepPart.PIPELINE,
}
"""By name of `layout.Axis`, which an agent would import for 50 ms; all other axes are of data
parallelism."""


@dataclass(slots=True, kw_only=True)
class PartComparison:
    """Of one layout of one rank."""

    predicted: Mapping[StepPart, float]
    """Seconds; empty where nothing is predicted."""
    _seconds: dict[StepPart, float] = field(default_factory=dict[StepPart, float])
    _steps: int = 0
    _warm: bool = False

    def add(self, parts: Mapping[str, float], *, steps: int) -> None:
        """Count a window: mean seconds of its steps by part of the step timer."""
        if not self._warm:
            self._warm = True
            return
        self._steps += steps
        for name, seconds in parts.items():
            part = step_part_of(name)
            if part is not None:
                self._seconds[part] = self._seconds.get(part, 0.0) + seconds * steps

    def means(self) -> dict[str, tuple[float, float]] | None:
        """By part: measured and predicted mean seconds of a step; None until both are known."""
        if not self.predicted or not self._steps:
            return None
        return {
            str(part): (self._seconds.get(part, 0.0) / self._steps, self.predicted.get(part, 0.0))
            for part in StepPart
        }


def step_part_of(name: str) -> StepPart | None:
    """The predicted part that a part of the step timer belongs to; None: to none of a step."""
    operation, _, axis = name.partition("/")
    if axis:
        return AXES.get(axis, StepPart.DATA)
    return _PHASES.get(operation, StepPart.REST)
