"""The sizes of an elastic gang whose ranks choose their layout.

A size is legal if some layout can train on it and it cuts no slice of the topology. globalBatchSize
limits it as for a fixed layout. If the pool declares its GPUs, the job must also fit in their
memory by the planner's estimate: a gang that shrinks waits for more GPUs instead of running out of
memory. If the whole gang does not fit either, the job was warned, and only legality counts.

The work is bounded for any spec: `_EXAMINED` legality checks and the logarithm of `_MOST` memory
estimates. Bisection works because a rank needs more memory the fewer ranks there are.
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
"""Most sizes, including `nodes`.

Sizes that split the batch with the least model parallelism come first, then larger ones.
"""


def auto_sizes(
    spec: TrainingJobSpec, config: TrainerConfig, hardware: PoolHardware | None
) -> tuple[int, ...]:
    """Return the numbers of pods that the gang may have, ascending. The last is spec.nodes.

    Args:
        spec: spec of an elastic job.
        config: configuration of its ranks, without a layout.
        hardware: the largest GPUs that it may get. None if not declared: memory is not checked.
    """
    if spec.min_nodes is None:
        return (spec.nodes,)
    batch, gpus = config.global_batch_size, spec.gpus_per_node

    def together(size: int) -> int:
        """Return the number of ranks that must work on the same samples, or a divisor of it."""
        return size * gpus // math.gcd(size * gpus, batch)

    # Phase 1: candidates that cut no slice, the most useful ones first.
    slices = (spec.topology.slices if spec.topology else None) or []
    whole = max((request.nodes for request in slices), default=1)
    smaller = range(-(-spec.min_nodes // whole) * whole, spec.nodes, whole)
    likely = sorted(smaller, key=lambda size: (together(size), -size))[:_EXAMINED]
    # Phase 2: keep the legal ones, at most `_MOST`.
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
    """Return the sizes from the smallest one that fits, found by bisection.

    All of them if none fits, or if memory cannot be estimated.
    """
    gpus = spec.gpus_per_node
    cluster = machine(hardware.config, gpus=spec.nodes * gpus, gpus_per_node=gpus)

    def fits(size: int) -> bool:
        return fits_in_memory(config, cluster=replace(cluster, gpus=size * gpus))

    # The whole gang does not fit: the job was warned, so memory decides nothing here.
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
