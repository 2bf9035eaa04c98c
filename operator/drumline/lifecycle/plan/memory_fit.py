"""Check whether a job fits in its GPUs' memory before it waits for them.

The estimate is the planner's (`drumline_planner`): bounded, some milliseconds, without a search. It
may be some percent off either way, so it warns, and refuses only in pools that require it.
"""

from __future__ import annotations

from drumline.lifecycle.model.hardware import PoolHardware
from drumline.lifecycle.model.verdict import MemoryShortage
from drumline_api.trainingjob import TrainingJobSpec
from drumline_contract.config import TrainerConfig
from drumline_planner.machine import machine
from drumline_planner.memory_check import MemoryChange, check_memory

_GIB = 1 << 30
_FIELDS = {
    "micro_batch_size": "trainer.microBatchSize",
    "parallelism.tensor": "trainer.parallelism.tensor",
    "parallelism.data_parallel": "trainer.parallelism.dataParallel",
}
"""Fields of a job for these settings. All others are overrides."""


def memory_shortage(
    spec: TrainingJobSpec, config: TrainerConfig, hardware: PoolHardware
) -> MemoryShortage | None:
    """Return the memory that a rank lacks, and a remedy. None if it fits or is not estimated.

    Args:
        spec: spec of the job.
        config: configuration of its ranks.
        hardware: the largest GPUs that it may get.
    """
    # Phase 1: the estimate for the whole gang.
    cluster = machine(
        hardware.config, gpus=spec.nodes * spec.gpus_per_node, gpus_per_node=spec.gpus_per_node
    )
    check = check_memory(config, cluster=cluster)
    if check is None or check.fits:
        return None
    # Phase 2: the message, with the smallest change that fits.
    needs = (
        f"trainer: a rank needs {check.needed_bytes / _GIB:.1f} GiB of the"
        f" {check.capacity_bytes / _GIB:.1f} GiB of an {cluster.gpu.name} (GpuPool"
        f" {hardware.pool}), by the planner's estimate"
    )
    if check.change is None:
        return MemoryShortage(
            message=f"{needs}; no small change helps: use more or larger GPUs, or let `drumline"
            " plan` search"
        )
    after = check.change.needed_bytes / _GIB
    return MemoryShortage(message=f"{needs}; {worded_change(check.change, spec)} needs {after:.1f}")


def worded_change(change: MemoryChange, spec: TrainingJobSpec) -> str:
    """Return the fields of the job to set, with their values."""
    words = [
        f"{_FIELDS.get(name, f'trainer.overrides.{name}')}: {value}"
        for name, value in change.fields
    ]
    if change.ranks != spec.nodes * spec.gpus_per_node:
        words.append(f"nodes: {change.ranks // spec.gpus_per_node}")
    return " with ".join(words)
