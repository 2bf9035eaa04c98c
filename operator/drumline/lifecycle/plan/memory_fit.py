"""Whether a job can fit in its GPUs' memory: said before it waits for them, not after an hour.

The bill is the planner's (`drumline_planner`): bounded, some milliseconds, no search. It
may be some percent off either way, so it warns, and refuses only in pools that ask for that.
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
"""Where a job writes them; all others are overrides."""


def memory_shortage(
    spec: TrainingJobSpec, config: TrainerConfig, hardware: PoolHardware
) -> MemoryShortage | None:
    """What a rank needs of what its GPU has, and what would help; None: it fits, or is not billed.

    Args:
        spec: of the job.
        config: its ranks' configuration.
        hardware: the largest GPUs that it may get.
    """
    cluster = machine(
        hardware.config, gpus=spec.nodes * spec.gpus_per_node, gpus_per_node=spec.gpus_per_node
    )
    check = check_memory(config, cluster=cluster)
    if check is None or check.fits:
        return None
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
    """The fields of the job to set, with their values."""
    words = [
        f"{_FIELDS.get(name, f'trainer.overrides.{name}')}: {value}"
        for name, value in change.fields
    ]
    if change.ranks != spec.nodes * spec.gpus_per_node:
        words.append(f"nodes: {change.ranks // spec.gpus_per_node}")
    return " with ".join(words)
