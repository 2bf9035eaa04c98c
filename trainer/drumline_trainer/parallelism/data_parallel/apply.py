"""Data parallelism: one interface to its five kinds.

    ddp     all ranks hold and update everything                              `ddp`
    zero1   all ranks hold everything, each updates its rows                  `zero`
    zero2   the same, and gradients are reduce-scattered as they come         `zero`
    fsdp    weights are sharded, and gathered unit by unit when used          `fsdp`
    hsdp    fsdp with `replicate` above 1: copies of such groups              `fsdp`

Whatever the kind, the rest of the trainer sees fp32 `TensorSlice`s to be updated in place and their
gradients, SUMMED over the ranks that saw other samples (`model.DataParallelModel`):

    model = data_parallel(...)              from the meta device to allocated storage
    fill model.slices and .frozen; model.refresh_copies()
    every step: forward and backward, `backwards` times
                update model.slices with model.gradients(); model.zero(); model.refresh_copies()

Backward passes are counted, and gradients are summed during the last one. Experts' weights are
summed over the ranks that hold the same experts only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from drumline_contract.config import DataParallel, MemoryConfig, Offload, Precision
from drumline_contract.layout import Axis
from drumline_trainer.memory.offload_store import open_store
from drumline_trainer.models.transformers.module import settle
from drumline_trainer.parallelism.data_parallel.buckets import BUCKET_BYTES
from drumline_trainer.parallelism.data_parallel.constants import with_constants
from drumline_trainer.parallelism.data_parallel.ddp import DdpModel
from drumline_trainer.parallelism.data_parallel.model import CombinedModel, DataParallelModel
from drumline_trainer.parallelism.data_parallel.precision import (
    accumulate_in_fp32,
    copy_on_use,
    frozen_to_compute_type,
    to_compute_type,
)
from drumline_trainer.parallelism.data_parallel.weights import CutStages, ModelWeight, weights_of
from drumline_trainer.parallelism.data_parallel.zero import ZeroModel, wait_for_weights
from drumline_trainer.sharding.device import give_storage
from drumline_trainer.sharding.storage import OpenStore
from drumline_trainer.sharding.world import World


def data_parallel(
    model: CutStages,
    *,
    world: World,
    precision: Precision,
    backwards: int,
    bucket_bytes: int = BUCKET_BYTES,
    memory: MemoryConfig | None = None,
) -> DataParallelModel:
    """Make stages data parallel, in place; they compute as before.

    Args:
        model: this rank's stages. They get storage on the world's device; contents are undefined.
        world: the ranks; its layout says which kind.
        precision: what the stages compute in.
        backwards: how many backward passes a step makes through each stage: the micro-batches.
        bucket_bytes: bytes of the gradients that ddp and zero send at once.
        memory: what is offloaded; None for nothing.

    Raises:
        ConfigError: weights are to be offloaded to a folder that has too little room.
    """
    parallel = _parallel_weights(
        model,
        world=world,
        precision=precision,
        backwards=backwards,
        bucket_bytes=bucket_bytes,
        memory=memory or MemoryConfig(),
    )
    return with_constants(parallel, model.stages, world=world)


def _parallel_weights(
    model: CutStages,
    *,
    world: World,
    precision: Precision,
    backwards: int,
    bucket_bytes: int,
    memory: MemoryConfig,
) -> DataParallelModel:
    """Apply data parallelism to all trained weights.

    Args:
        model: this rank's stages.
        world: process groups by axis.
        precision: type of the forward and backward passes.
        backwards: backward passes per step.
        bucket_bytes: size of a bucket of gradients.
        memory: offload of weights and optimizer state.
    """
    # 1. FSDP2 handles all weights, experts included, in one model.
    fsdp = world.layout.data_parallel is DataParallel.FSDP
    if fsdp and (memory.offload_parameters is not Offload.NONE or world.size(Axis.FSDP) > 1):
        from drumline_trainer.parallelism.data_parallel.fsdp import (  # noqa: PLC0415 - imports torch's compiler and DTensor, 2 s that ddp, zero and one rank do without
            FsdpModel,
        )

        return FsdpModel(
            model, world=world, precision=precision, backwards=backwards, memory=memory
        )
    # 2. Otherwise each axis has its own groups: experts are summed over fewer ranks.
    _allocate(model, world=world, precision=precision)
    weights = weights_of(model, world=world)
    parts: list[DdpModel | ZeroModel] = []
    for axis in (Axis.DATA, Axis.EXPERT_DATA):
        trained = [w for w in weights if w.parameter.requires_grad and w.axis is axis]
        if trained:
            part = _ddp_or_zero(
                trained,
                world=world,
                backwards=backwards,
                bucket_bytes=bucket_bytes,
                open_store=_master_store(memory, device=world.device),
            )
            parts.append(part)
    # 3. ZeRO's weights arrive late, so forward passes wait for them.
    sharded = [part for part in parts if isinstance(part, ZeroModel)]
    for stage in model.stages if sharded else ():
        wait_for_weights(stage, sharded)
    # 4. Frozen weights have no gradients, but checkpoints and norms know them.
    frozen = tuple(
        w.part(w.parameter.detach(), copies=world.size(w.axis), copy=world.index(w.axis))
        for w in weights
        if not w.parameter.requires_grad
    )
    return CombinedModel(parts, frozen=frozen)


def _allocate(model: CutStages, *, world: World, precision: Precision) -> None:
    """Give stages storage, in the type they compute in; with fsdp of one rank it copies on use."""
    copies = world.layout.data_parallel is DataParallel.FSDP and precision is not Precision.FP32
    for stage in model.stages:
        # One rank of FSDP: fp32 weights are updated in place, and layers compute with copies.
        if copies:
            frozen_to_compute_type(stage, precision)
            copy_on_use(stage, precision)
        else:
            to_compute_type(stage, precision)
        give_storage(stage, world.device)
        settle(stage, world.device)
        accumulate_in_fp32(stage)


def _master_store(memory: MemoryConfig, *, device: torch.device) -> OpenStore | None:
    """Return the store of fp32 master weights, which is that of the optimizer's state.

    None: device.
    """
    if memory.offload_optimizer is Offload.NONE:
        return None
    return lambda sizes: open_store(memory.offload_optimizer, memory, sizes=sizes, device=device)


def _ddp_or_zero(
    weights: Sequence[ModelWeight],
    *,
    world: World,
    backwards: int,
    bucket_bytes: int,
    open_store: OpenStore | None,
) -> DdpModel | ZeroModel:
    """Apply the layout's kind to these weights of one axis. An axis of one rank uses DDP."""
    kind, group = world.layout.data_parallel, world.group(weights[0].axis)
    if group is None or kind not in (DataParallel.ZERO1, DataParallel.ZERO2):
        return DdpModel(
            weights,
            group=group,
            backwards=backwards,
            bucket_bytes=bucket_bytes,
            open_store=open_store,
        )
    return ZeroModel(
        weights,
        group=group,
        backwards=backwards,
        # ZeRO-2 drops gradients after each backward pass. A pipeline interleaves those passes.
        every_backward=kind is DataParallel.ZERO2 and world.layout.pipeline == 1,
        bucket_bytes=bucket_bytes,
        open_store=open_store,
    )
