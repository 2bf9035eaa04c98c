"""Interface of every optimizer to the rest of the trainer.

An optimizer updates this rank's slices in place from their summed gradients. Its whole state is
slices of tensors that have the weights' shapes, and the number of its steps. So checkpoints of one
layout can be restored into any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from drumline_trainer.sharding.slices import TensorSlice


class Optimizer(Protocol):
    """Operations of an optimizer that the training loop uses."""

    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """Do one step at this learning rate; gradients have the slices' order and shapes."""
        ...

    def set_finished_steps(self, steps: int) -> None:
        """Set the number of updates that the state has seen."""
        ...

    def slices(self) -> list[TensorSlice]:
        """Return weights and state by their names in a checkpoint."""
        ...


BuildOptimizer = Callable[[Sequence[TensorSlice]], Optimizer]
"""Makes the optimizer of some slices, whose storage it shares. Collective."""
