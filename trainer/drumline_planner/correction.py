"""What a rehearsal measured over what was predicted for it: corrects the bills of whole runs."""

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
"""What no rehearsal measures; all other lines come and go in a step."""

_SAID = 0.005
"""What differs by less is not worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCorrection:
    """Factors; 1 where nothing was measured."""

    state: float = 1.0
    """Of weights, gradients and optimizer state."""
    moving: float = 1.0
    """Of what comes and goes in a step: activations, gathered weights, logits."""

    @property
    def least(self) -> float:
        """What no bill is multiplied by less than."""
        return min(1.0, self.state, self.moving)

    def of(self, bill: Bill) -> Bill:
        """The bill, corrected line by line."""
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
    """Whether it stays from step to step."""
    return line.name in _STATE


def is_moving(line: Line) -> bool:
    """Whether it comes and goes in a step."""
    return line.name not in _STATE | _FIXED
