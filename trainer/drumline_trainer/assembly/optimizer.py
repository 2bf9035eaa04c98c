"""The optimizer of a configuration.

Whatever its rule, an optimizer updates this rank's slices in place from their summed gradients, and
its whole state is slices of tensors that have the weights' shapes, and the number of its steps: so
checkpoints of one layout are restored into any other.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from drumline_trainer.config import MemoryConfig, Offload, OptimizerConfig, OptimizerKind
from drumline_trainer.optimization.adamw import ShardedAdamW
from drumline_trainer.sharding.slices import Slice
from drumline_trainer.sharding.world import World


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


def build_optimizer(
    slices: Sequence[Slice],
    config: OptimizerConfig,
    world: World,
    *,
    memory: MemoryConfig | None = None,
) -> Optimizer:
    """Over this rank's slices, whose storage it shares. Collective.

    Raises:
        ConfigError: its state is to be offloaded to a folder that has too little room.
    """
    build = functools.partial(_of_kind, config=config, world=world)
    if memory is None or memory.offload_optimizer is Offload.NONE:
        return build(slices)
    if memory.offload_optimizer is Offload.CPU and memory.offload_parameters is not Offload.NONE:
        return build(slices)  # beside the weights, which are there
    from drumline_trainer.memory import offload_store as home  # noqa: PLC0415 - seldom
    from drumline_trainer.memory import offloaded_optimizer as optimizer  # noqa: PLC0415 - seldom

    return optimizer.OffloadedOptimizer(
        slices,
        build=build,
        home=lambda sizes: home.home(
            memory.offload_optimizer, memory, sizes=sizes, device=world.device
        ),
        world=world,
    )


def _of_kind(slices: Sequence[Slice], *, config: OptimizerConfig, world: World) -> Optimizer:
    match config.kind:
        case OptimizerKind.ADAMW:
            return ShardedAdamW(slices, config)
        case OptimizerKind.SGD:
            from drumline_trainer.optimization.sgd import ShardedSGD  # noqa: PLC0415 - one of them

            return ShardedSGD(slices, config)
        case OptimizerKind.MUON:
            from drumline_trainer.optimization.muon import Muon  # noqa: PLC0415 - one of them

            return Muon(slices, config, world)
