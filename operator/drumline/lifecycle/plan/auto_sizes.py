"""The sizes of an elastic gang whose ranks choose their layout.

A size is legal where some layout can train on it, as with globalBatchSize for a layout that is
written, and it cuts no slice of the topology. Where the pool says what its GPUs are, it has to fit
in their memory by the planner's bill: a gang that shrinks waits for more GPUs rather than run out
of memory. Where the whole gang does not fit either, the job was warned, and only legality counts.

Bounded whatever is written: `_EXAMINED` legality checks and the logarithm of `_MOST` bills, as a
rank needs more memory the fewer there are.
"""

from __future__ import annotations

import math
from dataclasses import replace

from drumline.lifecycle.model.hardware import PoolHardware
from drumline_api.trainingjob import TrainingJobSpec
from drumline_contract.config import ConfigError, TrainerConfig
from drumline_planner.auto import check_choosable
from drumline_planner.machine import machine
from drumline_planner.memory_check import fits_in_memory

_EXAMINED = 24
_MOST = 16
"""Sizes, `nodes` among them: those that split the batch with least model parallelism, then the
larger ones."""


def auto_sizes(
    spec: TrainingJobSpec, config: TrainerConfig, hardware: PoolHardware | None
) -> tuple[int, ...]:
    """Numbers of pods that the gang may have, ascending; the last is spec.nodes.

    Args:
        spec: of an elastic job.
        config: its ranks' configuration, whose layout is to be chosen.
        hardware: the largest GPUs that it may get; None: nobody says, and no bill is looked at.
    """
    if spec.min_nodes is None:
        return (spec.nodes,)
    batch, gpus = config.global_batch_size, spec.gpus_per_node

    def together(size: int) -> int:
        """So many ranks have to work on the same samples, or a multiple of it."""
        return size * gpus // math.gcd(size * gpus, batch)

    slices = (spec.topology.slices if spec.topology else None) or []
    whole = max((request.nodes for request in slices), default=1)
    smaller = range(-(-spec.min_nodes // whole) * whole, spec.nodes, whole)
    likely = sorted(smaller, key=lambda size: (together(size), -size))[:_EXAMINED]
    legal = [size for size in likely if _is_legal(config, ranks=size * gpus)][: _MOST - 1]
    sizes = (*sorted(legal), spec.nodes)
    return sizes if hardware is None else _fitting(spec, config, hardware, sizes=sizes)


def _is_legal(config: TrainerConfig, *, ranks: int) -> bool:
    try:
        check_choosable(config, world_size=ranks)
    except ConfigError:
        return False
    return True


def _fitting(
    spec: TrainingJobSpec,
    config: TrainerConfig,
    hardware: PoolHardware,
    *,
    sizes: tuple[int, ...],
) -> tuple[int, ...]:
    """From the smallest size that fits, by bisection; all where none does, or none is billed."""
    gpus = spec.gpus_per_node
    cluster = machine(hardware.config, gpus=spec.nodes * gpus, gpus_per_node=gpus)

    def fits(size: int) -> bool:
        return fits_in_memory(config, cluster=replace(cluster, gpus=size * gpus))

    if not fits(spec.nodes):
        return sizes
    low, high = 0, len(sizes) - 1
    while low < high:
        middle = (low + high) // 2
        if fits(sizes[middle]):
            high = middle
        else:
            low = middle + 1
    return sizes[low:]
