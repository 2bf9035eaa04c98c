"""Compare measured step parts with predicted ones, since the layout began.

The first window is a warm-up and does not count. The step timer has phases and collectives of many
axes. They are summed into the parts that the planner predicts (`contract.StepPart`).

Example: forward 2 s, all_gather/fsdp 1 s, recv/pp 1 s and other 0.1 s become compute 2, data 1,
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
"""Step part by phase of the step timer. None: the phase is not a part of a step."""
AXES = {
    "tp": StepPart.TENSOR,
    "cp": StepPart.CONTEXT,
    "ep": StepPart.EXPERT,
    "pp": StepPart.PIPELINE,
}
"""Step part by name of `layout.Axis`, whose import would cost an agent 50 ms. All other axes belong
to data parallelism."""


@dataclass(slots=True, kw_only=True)
class PartComparison:
    """Measured and predicted step parts of one layout, on one rank."""

    predicted: Mapping[StepPart, float]
    """Predicted seconds by part. Empty without a prediction."""
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
        """Return the measured and the predicted mean seconds per step, by part.

        None: the prediction or the first measurement is missing.
        """
        if not self.predicted or not self._steps:
            return None
        return {
            str(part): (self._seconds.get(part, 0.0) / self._steps, self.predicted.get(part, 0.0))
            for part in StepPart
        }


def step_part_of(name: str) -> StepPart | None:
    """Return the predicted part that a part of the step timer belongs to. None: no part."""
    operation, _, axis = name.partition("/")
    if axis:
        return AXES.get(axis, StepPart.DATA)
    return _PHASES.get(operation, StepPart.REST)
