"""The optimizer of a configuration.

Whatever its rule, an optimizer updates this rank's slices in place from their summed gradients, and
its whole state is slices of tensors that have the weights' shapes, and the number of its steps: so
checkpoints of one layout are restored into any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from drumline_trainer.config import OptimizerConfig, OptimizerKind
from drumline_trainer.optimization.adamw import ShardedAdamW
from drumline_trainer.parallelism.slices import Slice
from drumline_trainer.parallelism.world import World


class Optimizer(Protocol):
    """What the training loop needs of it."""

    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """One step at this learning rate with the gradients of the slices, in their order."""
        ...

    def set_finished_steps(self, steps: int) -> None:
        """How many updates the state has seen."""
        ...

    def slices(self) -> list[Slice]:
        """Weights and state by their names in a checkpoint."""
        ...


def build_optimizer(slices: Sequence[Slice], config: OptimizerConfig, world: World) -> Optimizer:
    """Over this rank's slices, whose storage it shares. Collective."""
    match config.kind:
        case OptimizerKind.ADAMW:
            return ShardedAdamW(slices, config)
        case OptimizerKind.SGD:
            from drumline_trainer.optimization.sgd import ShardedSGD  # noqa: PLC0415 - one of them

            return ShardedSGD(slices, config)
        case OptimizerKind.MUON:
            from drumline_trainer.optimization.muon import Muon  # noqa: PLC0415 - one of them

            return Muon(slices, config, world)
