"""Check whether a configuration fits in memory, and find the smallest change that fits.

A few bills, no search: milliseconds, and bounded whatever is written, so that the operator can ask
before a job waits for its GPUs. Changes are tried in the field's order (`ladder`): what costs time
alone, then sharding, then tensor parallelism, then the host's memory, then more devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from drumline_contract.config import (
    ConfigError,
    DataParallel,
    Family,
    Offload,
    Recompute,
    TrainerConfig,
)
from drumline_contract.hardware import GpuCluster
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import violations
from drumline_planner.auto import goal_of, is_auto, smallest
from drumline_planner.memory import memory_bill
from drumline_planner.setup import TrainingSetup

_MAX_STAGES = 256
_MAX_LAYERS = 1024
_FACTORS = (2, 4, 8, 16)
"""Factors by which the number of ranks is increased in a trial."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryChange:
    """Fields to set, by the trainer's names, and the number of ranks after the change."""

    fields: tuple[tuple[str, str], ...]
    ranks: int
    needed_bytes: float
    """Bytes of the fullest rank after the change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheck:
    """Needed memory of the fullest rank, and the memory of its device."""

    needed_bytes: float
    capacity_bytes: int
    change: MemoryChange | None
    """The smallest change with which it fits. None: it fits already, or no tried change is enough.
    """

    @property
    def fits(self) -> bool:
        """Return whether the device has enough memory."""
        return self.needed_bytes <= self.capacity_bytes


def check_memory(config: TrainerConfig, *, cluster: GpuCluster) -> MemoryCheck | None:
    """Compute the memory of a configuration; None if it cannot be computed.

    The cases without a result are an illegal layout (other checks report it), parameter servers
    that hold the state, more layers or stages than can be computed in milliseconds, and modules of
    transformers, whose shapes are not known here.
    """
    capacity = cluster.gpu.memory_bytes
    needed = _needed(config, cluster)
    if needed is None:
        return None
    change: MemoryChange | None = None
    # Changes are generated lazily: the first that fits ends the work.
    if needed > capacity:
        change = next(
            (change for change in _changes(config, cluster) if change.needed_bytes <= capacity),
            None,
        )
    return MemoryCheck(needed_bytes=needed, capacity_bytes=capacity, change=change)


def fits_in_memory(config: TrainerConfig, *, cluster: GpuCluster) -> bool:
    """Return whether the fullest rank fits in its device, or True if the memory is unknown."""
    needed = _needed(config, cluster)
    return needed is None or needed <= cluster.gpu.memory_bytes


def _needed(config: TrainerConfig, cluster: GpuCluster) -> float | None:
    degrees, model = config.parallelism, config.model
    if model.family is Family.TRANSFORMERS:
        return None
    stages = degrees.pipeline * (degrees.stages_per_rank or 1)
    # Bounds in place of a time limit, so that equal input gives equal output.
    if stages > _MAX_STAGES or model.layers > _MAX_LAYERS:
        return None
    if degrees.data_parallel is DataParallel.PARAMETER_SERVER or degrees.local_sgd is not None:
        return None
    # Automatic layouts fit if the smallest one fits.
    if is_auto(config):
        try:
            return smallest(goal_of(config, cluster)).bill.total
        except ConfigError:
            return None
    if violations(config, world_size=cluster.gpus):
        return None
    layout = Layout.of(degrees, world_size=cluster.gpus)
    setup = TrainingSetup.of(config, layout)
    return memory_bill(setup, capacity=cluster.gpu.memory_bytes).total


def _changes(config: TrainerConfig, cluster: GpuCluster) -> Iterator[MemoryChange]:
    """Yield possible changes, cheapest first, with the memory that they need."""
    # Phase 1: settings at the same number of ranks.
    settings = list(_settings(config, cluster))
    last = settings[-1] if settings else {}
    tries = [(fields, 1) for fields in settings]
    # Phase 2: more ranks, without settings and with all of them.
    tries += [(fields, factor) for factor in _FACTORS for fields in ({}, last)]
    for fields, factor in tries:
        ranks = factor * cluster.gpus
        try:
            changed = _with(config, fields)
        except ConfigError:
            continue
        needed = _needed(changed, replace(cluster, gpus=ranks))
        if needed is not None:
            yield MemoryChange(fields=tuple(fields.items()), ranks=ranks, needed_bytes=needed)


def _settings(config: TrainerConfig, cluster: GpuCluster) -> Iterator[dict[str, str]]:
    """Yield fields by name, one setting for each measure. Cheap earlier settings are kept."""
    # Offloading comes after the settings of the device, since it costs more time.
    offload = {"memory.offload_optimizer": Offload.CPU.value}
    if is_auto(config):
        yield offload
        return
    least: dict[str, str] = {}
    micro = TrainingSetup.of(config, Layout.of(config.parallelism, world_size=cluster.gpus))
    size = micro.micro_batch
    # Smaller micro-batches lower activations only.
    while size > 1:
        size //= 2
        yield {"micro_batch_size": str(size)}
        least["micro_batch_size"] = "1"
    accumulates = (
        config.parallelism.data_parallel is DataParallel.FSDP and micro.layout.pipeline == 1
    )
    slices: dict[str, str] = {}
    # Sharded gradients cost more messages.
    if accumulates and not micro.memory.shard_gradients:
        slices = {"memory.shard_gradients": "true"}
        yield slices
    if config.memory.recompute in (Recompute.NONE, Recompute.SELECTIVE):
        if config.memory.recompute is Recompute.NONE:
            yield {"memory.recompute": Recompute.SELECTIVE.value}
        yield {"memory.recompute": Recompute.FULL.value}
        least["memory.recompute"] = Recompute.FULL.value
        yield least
    if slices:
        yield least | slices
    if config.parallelism.data_parallel is not DataParallel.FSDP:
        sharded = {"parallelism.data_parallel": DataParallel.FSDP.value}
        yield sharded
        least |= sharded
        yield least
    # A tensor degree beyond the domain would cross slow links.
    tensor = 2 * config.parallelism.tensor
    while tensor <= cluster.domain:
        yield {"parallelism.tensor": str(tensor)}
        yield least | {"parallelism.tensor": str(tensor)}
        tensor *= 2
    yield least | offload


def _with(config: TrainerConfig, fields: dict[str, str]) -> TrainerConfig:
    """Return the configuration with these fields set.

    Raises:
        ConfigError: the configuration is invalid.
    """
    memory, degrees, micro_batch = config.memory, config.parallelism, config.micro_batch_size
    for name, value in fields.items():
        match name:
            case "micro_batch_size":
                micro_batch = int(value)
            case "memory.recompute":
                memory = replace(memory, recompute=Recompute(value))
            case "memory.shard_gradients":
                memory = replace(memory, shard_gradients=value == "true")
            case "memory.offload_optimizer":
                memory = replace(memory, offload_optimizer=Offload(value))
            case "parallelism.data_parallel":
                degrees = replace(degrees, data_parallel=DataParallel(value))
            case _:
                degrees = replace(degrees, tensor=int(value))
    return replace(config, memory=memory, parallelism=degrees, micro_batch_size=micro_batch)
