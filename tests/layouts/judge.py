"""Whether a layout trained the same model: losses of every step, and the weights at the end."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drumline_trainer.metrics.losses import LOSSES_FILE, read_losses
from tests.gloo.stored import whole_tensors
from tests.layouts.cases import STEPS

LOSS_TOLERANCE = 1e-6
WEIGHT_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    folder: Path
    """Its checkpoints."""
    losses: Mapping[int, float]
    tensors: Mapping[str, npt.NDArray[np.float32]]
    """Weights and moments after the last step."""

    @classmethod
    def of(cls, folder: Path) -> Outcome:
        """Read from the checkpoint folder."""
        return cls(
            folder=folder,
            losses={
                step: math.nan if loss is None else loss
                for step, loss in read_losses(folder / LOSSES_FILE).items()
            },
            tensors=whole_tensors(folder / f"step-{STEPS:08d}"),
        )

    def loss_error(self, other: Outcome) -> float:
        """Largest relative difference of a step's loss; infinite where steps are missing."""
        if self.losses.keys() != other.losses.keys():
            return float("inf")
        return max(abs(self.losses[s] - other.losses[s]) / other.losses[s] for s in self.losses)

    def weight_error(self, other: Outcome) -> tuple[float, str]:
        """Largest ‖difference‖ / ‖weight‖ of a weight, and whose it is."""
        names = [name for name in other.tensors if name.startswith("model.") and _matters(name)]
        if self.tensors.keys() != other.tensors.keys():
            return float("inf"), str(sorted(self.tensors.keys() ^ other.tensors.keys())[:3])
        return max((_distance(self.tensors[n], other.tensors[n]), n) for n in names)

    def same_bits(self, other: Outcome) -> bool:
        """Losses and all tensors, to the last bit."""
        return self.losses == other.losses and all(
            self.tensors[name].tobytes() == other.tensors[name].tobytes() for name in other.tensors
        )


def _matters(name: str) -> bool:
    """All but biases of keys: softmax is blind to them, their gradient is nothing but rounding."""
    return not name.endswith("key.bias")


def _distance(mine: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> float:
    return float(np.linalg.norm(mine - theirs) / np.linalg.norm(theirs))
