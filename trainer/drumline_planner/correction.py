"""Correct the memory estimates of whole runs by the results of a rehearsal."""

from __future__ import annotations

from dataclasses import dataclass, replace

from drumline_planner.memory import Bill, Line

_STATE = frozenset(
    {
        *("parameters", "packed parameters", "adapters", "gradients", "reference"),
        *("optimizer state", "average of weights"),
    }
)
_FIXED = frozenset({"CUDA context", "communication buffers"})
"""Lines that no rehearsal measures. All other lines are temporary within a step."""

_SAID = 0.005
"""Minimum relative difference that is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCorrection:
    """Factors on the memory estimate. 1 if nothing was measured."""

    state: float = 1.0
    """Factor for weights, gradients and optimizer state."""
    moving: float = 1.0
    """Factor for temporary memory of a step: activations, gathered weights, logits."""

    @property
    def least(self) -> float:
        """Return the lower bound of the factors."""
        return min(1.0, self.state, self.moving)

    def of(self, bill: Bill) -> Bill:
        """Return the memory estimate, corrected line by line."""
        if self == UNCORRECTED:
            return bill
        return replace(bill, lines=tuple(self._line(line) for line in bill.lines))

    def _line(self, line: Line) -> Line:
        if line.name in _FIXED:
            return line
        factor = self.state if is_state(line) else self.moving
        note = line.note if abs(factor - 1) < _SAID else f"{line.note}; x {factor:.2f} as rehearsed"
        return replace(line, size=factor * line.size, note=note)


UNCORRECTED = MemoryCorrection()


def is_state(line: Line) -> bool:
    """Return whether the line stays from step to step."""
    return line.name in _STATE


def is_moving(line: Line) -> bool:
    """Return whether the line is temporary within a step."""
    return line.name not in _STATE | _FIXED
