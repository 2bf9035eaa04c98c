"""A run ends before its last step once the held-out loss no longer falls.

Every rank measures the same loss, bit for bit, so all decide alike. What has been measured is saved
beside the weights: a run that was killed stops where it would have. The checkpoint of the lowest
loss stays, however many newer ones there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from drumline_contract.config import TrainerConfig
from drumline_trainer.checkpoint.errors import CorruptCheckpointError

_KEY = "best"


@dataclass(slots=True, kw_only=True)
class EarlyStopping:
    """State of early stopping of a run. Without patience it never stops and keeps nothing."""

    patience: int
    least_gain: float
    loss: float = math.inf
    """The lowest so far."""
    step: int = 0
    """After which it was measured."""
    in_vain: int = 0
    """Measurements since."""
    last: int = 0
    """The step of the latest."""

    @classmethod
    def of(cls, config: TrainerConfig, saved: Mapping[str, Any]) -> EarlyStopping:
        """Begin or resume from the saved state.

        Raises:
            CorruptCheckpointError: the saved state is malformed.
        """
        evaluation = config.evaluation
        if evaluation is None or not evaluation.patience:
            return cls(patience=0, least_gain=0.0)
        stopping = cls(patience=evaluation.patience, least_gain=evaluation.least_gain)
        # The state comes from a file, so its types are checked.
        match saved.get(_KEY):
            case None:
                pass
            case {
                "loss": float(loss),
                "step": int(step),
                "in_vain": int(in_vain),
                "last": int(last),
            }:
                stopping.loss, stopping.step = loss, step
                stopping.in_vain, stopping.last = in_vain, last
            case other:
                raise CorruptCheckpointError(f"{_KEY} {str(other)[:64]!r} is not a held-out loss")
        return stopping

    def steps(self, steps: range) -> Iterator[int]:
        """Return the steps to run: none once it is over."""
        # `takewhile` tests before each step: a resumed run that was over makes no step.
        return itertools.takewhile(lambda _: not self.is_over, steps)

    def saves_after(self, step: int, loss: float | None) -> bool:
        """Note the loss after `step` finished steps. None: it was not measured.

        Return whether this state must be saved whatever the interval, because it is the best or the
        last.
        """
        # Without a measurement nothing changes, and no rank asks for a save.
        if loss is None or not self.patience:
            return False
        self.last = step
        # A gain must exceed the threshold. NaN is never a gain.
        if loss < self.loss - self.least_gain:
            self.loss, self.step, self.in_vain = loss, step, 0
        else:
            self.in_vain += 1
        # The initial weights need no checkpoint, because they can be made again.
        return step > 0 and (self.is_over or self.step == step)

    @property
    def is_over(self) -> bool:
        """True if no further step is to be made."""
        # `patience` 0 means off, hence the lower bound.
        return 0 < self.patience <= self.in_vain

    def state(self) -> dict[str, Any]:
        """Return the best loss, and the step whose checkpoint stays, for the trainer's state."""
        # The best loss exists after the first measurement only.
        if not self.patience or math.isinf(self.loss):
            return {}
        best = {
            "loss": self.loss,
            "step": self.step,
            "in_vain": self.in_vain,
            "last": self.last,
        }
        return {_KEY: best, "kept_step": self.step}

    def report(self, *, print_line: Callable[[str], None]) -> None:
        """Say why the run has ended, if it has."""
        if not self.is_over:
            return
        which = "of the weights it began with"
        if self.step:
            which = f"of step {self.step}, whose checkpoint is kept"
        print_line(
            f"stopped after step {self.last}: in {self.in_vain} measurements the held-out loss was"
            f" never below the {self.loss:.4f} {which}"
        )
