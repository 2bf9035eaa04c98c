"""Build the optimizer of a configuration: its rule, an average of the weights, and offloading.

The average and offloading are optional.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from drumline_contract.config import MemoryConfig, Offload, OptimizerConfig, OptimizerKind
from drumline_trainer.memory.offload_store import open_store
from drumline_trainer.memory.offloaded_optimizer import OffloadedOptimizer
from drumline_trainer.optimization.adamw import ShardedAdamW
from drumline_trainer.optimization.average import WeightAverage
from drumline_trainer.optimization.muon import Muon
from drumline_trainer.optimization.optimizer import Optimizer
from drumline_trainer.optimization.sgd import ShardedSGD
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World


def build_optimizer(
    slices: Sequence[TensorSlice],
    config: OptimizerConfig,
    world: World,
    *,
    memory: MemoryConfig | None = None,
) -> Optimizer:
    """Return the optimizer of this rank's slices, whose storage it shares. Collective.

    Args:
        slices: this rank's parts of the weights.
        config: kind and settings of the optimizer.
        world: process groups of this rank.
        memory: offload settings.

    Raises:
        ConfigError: its state is to be offloaded to a folder with too little space.
    """
    # The state is built by a function, because an offloading optimizer builds it for slices of its
    # own.
    build = functools.partial(_averaged, config=config, world=world)
    if memory is None or memory.offload_optimizer is Offload.NONE:
        return build(slices)
    if memory.offload_optimizer is Offload.CPU and memory.offload_parameters is not Offload.NONE:
        return build(slices)  # on the host already, beside the weights
    return OffloadedOptimizer(
        slices,
        build=build,
        open_store=lambda sizes: open_store(
            memory.offload_optimizer, memory, sizes=sizes, device=world.device
        ),
        world=world,
    )


def _averaged(slices: Sequence[TensorSlice], *, config: OptimizerConfig, world: World) -> Optimizer:
    inner = _of_kind(slices, config=config, world=world)
    # A decay of 0 keeps no average, which saves 4 bytes for each weight.
    if not config.average_decay:
        return inner
    return WeightAverage(inner, slices, decay=config.average_decay)


def _of_kind(slices: Sequence[TensorSlice], *, config: OptimizerConfig, world: World) -> Optimizer:
    match config.kind:
        case OptimizerKind.ADAMW:
            return ShardedAdamW(slices, config)
        case OptimizerKind.SGD:
            return ShardedSGD(slices, config)
        case OptimizerKind.MUON:
            return Muon(slices, config, world)
