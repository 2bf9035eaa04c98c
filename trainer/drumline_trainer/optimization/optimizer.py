"""What every optimizer is to the rest of the trainer.

Whatever its rule, an optimizer updates this rank's slices in place from their summed gradients. Its
whole state is slices of tensors that have the weights' shapes, and the number of its steps: so
checkpoints of one layout are restored into any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from drumline_trainer.sharding.slices import TensorSlice


class Optimizer(Protocol):
    """What the training loop needs of an optimizer."""

    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """One step at this learning rate with the gradients of the slices, in their order."""
        ...

    def set_finished_steps(self, steps: int) -> None:
        """How many updates the state has seen."""
        ...

    def slices(self) -> list[TensorSlice]:
        """Weights and state by their names in a checkpoint."""
        ...


BuildOptimizer = Callable[[Sequence[TensorSlice]], Optimizer]
"""Makes the optimizer of some slices, whose storage it shares. Collective."""
