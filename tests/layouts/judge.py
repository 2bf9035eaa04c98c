"""Whether a layout trained the same model: losses of every step, and the weights at the end.

A difference above `NOT_QUESTIONED` is compared with rounding, which is measured. The one process
trains again with one sequence in each micro-batch, so that its gradients are summed in another
order. A layout may differ by `ROUNDINGS` times what this changes.

Example: `whole packing · hsdp · tp1 · 1f1b · cp1 · ep1 · none · x4 · deepseek`, whose ranks train
one sequence at a time. The weights of `layers.1.attention.output` differ from those of one process
by 2.5e-5. One process that trains one sequence at a time differs from itself by 2.5e-5 too, and
from the layout by 3e-7. (AVX2; without vector instructions 2.7e-5 and 2e-6. Losses differ by 2e-7.)
So the difference is the order of summation, and not a fault of the layout.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from drumline_trainer.metrics.losses import LOSSES_FILE, read_losses
from drumline_trainer.metrics.sinks import EVALUATIONS_FILE
from tests.gloo.stored import whole_tensors
from tests.layouts.cases import STEPS

LOSS_TOLERANCE = 1e-6
NOT_QUESTIONED = {"loss": LOSS_TOLERANCE, "weights": 1e-5, "held-out loss": LOSS_TOLERANCE}
"""Smaller differences pass without a measurement."""
ROUNDINGS = 4.0
MOST = 1e-3
"""Larger differences never pass: faults change weights by 1e-2 in so many steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run came to."""

    folder: Path
    """Its checkpoints."""
    losses: Mapping[int, float]
    tensors: Mapping[str, npt.NDArray[np.float32]]
    """Weights and moments after the last step."""
    held_out: Mapping[int, float]
    """Losses on what is not trained on, by step; none without `evaluation`."""
    reordered: Callable[[], Outcome] | None = None
    """Trains the same with other sums; None of a layout."""

    @classmethod
    def of(cls, folder: Path, *, reordered: Callable[[], Outcome] | None = None) -> Outcome:
        """Read from the checkpoint folder."""
        return cls(
            folder=folder,
            losses={
                step: math.nan if loss is None else loss
                for step, loss in read_losses(folder / LOSSES_FILE).items()
            },
            tensors=whole_tensors(folder / f"step-{STEPS:08d}"),
            held_out=_evaluations(folder / "metrics" / EVALUATIONS_FILE),
            reordered=reordered,
        )

    def differences(self, other: Outcome) -> dict[str, float]:
        """Return the largest relative difference by the name of what differs."""
        output = {"loss": self.loss_error(other), "weights": self.weight_error(other)[0]}
        return output | ({"held-out loss": self.held_out_error(other)} if self.held_out else {})

    def loss_error(self, other: Outcome) -> float:
        """Largest relative difference of a step's loss; infinite where steps are missing."""
        return _loss_error(self.losses, other.losses)

    def held_out_error(self, other: Outcome) -> float:
        """The same of what is not trained on."""
        return _loss_error(self.held_out, other.held_out)

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


def failings(got: Outcome, expected: Outcome) -> list[str]:
    """Return what differs from the one process by more than rounding."""
    questioned = {
        name: off
        for name, off in got.differences(expected).items()
        if not off <= NOT_QUESTIONED[name]
    }
    if not questioned:
        return []
    rounding = expected.reordered().differences(expected) if expected.reordered else {}
    return [
        f"{name} off by {off:.1e}, rounding is {rounding.get(name, 0.0):.1e}"
        for name, off in questioned.items()
        if not off <= min(MOST, ROUNDINGS * rounding.get(name, 0.0))
    ]


def _loss_error(mine: Mapping[int, float], theirs: Mapping[int, float]) -> float:
    if mine.keys() != theirs.keys():
        return float("inf")
    return max(abs(mine[step] - theirs[step]) / theirs[step] for step in mine)


def _evaluations(file: Path) -> dict[int, float]:
    if not file.exists():
        return {}
    return {row["step"]: row["loss"] for row in map(json.loads, file.read_text().splitlines())}


def _matters(name: str) -> bool:
    """All but biases of keys: softmax is blind to them, their gradient is nothing but rounding."""
    return not name.endswith("key.bias")


def _distance(mine: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> float:
    size = float(np.linalg.norm(theirs))  # 0 of corrections that nothing has moved
    return float(np.linalg.norm(mine - theirs)) / (size or 1.0)
