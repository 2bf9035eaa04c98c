"""Data parallelism: one interface to its five kinds.

    ddp     all ranks hold and update everything                              `ddp`
    zero1   all ranks hold everything, each updates its rows                  `zero`
    zero2   the same, and gradients are shared out as they come               `zero`
    fsdp    nobody holds everything: layers are gathered when they are used   `fsdp`
    hsdp    fsdp with `replicate` above 1: copies of such groups              `fsdp`

Whatever the kind, the rest of the trainer sees fp32 `Slice`s to be updated in place and their
gradients, SUMMED over the ranks that saw other samples, in this order:

    model = data_parallel(...)              meta in, storage out
    fill model.slices and .frozen; model.publish()
    every step: forward and backward, `backwards` times
                update model.slices with model.gradients(); model.zero(); model.publish()

Backward passes are counted, and sums travel during the last one. Experts' weights are summed over
the ranks that hold the same experts only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from drumline_trainer.config import DataParallel, MemoryConfig, Offload, Precision
from drumline_trainer.layout import Axis
from drumline_trainer.parallelism.data_parallel.buckets import BUCKET_BYTES
from drumline_trainer.parallelism.data_parallel.ddp import Replicas
from drumline_trainer.parallelism.data_parallel.precision import (
    accumulate_in_fp32,
    copy_on_use,
    frozen_to_compute_type,
    to_compute_type,
)
from drumline_trainer.parallelism.data_parallel.weights import MasterHome, Weight, weights_of
from drumline_trainer.parallelism.data_parallel.zero import SharedUpdates
from drumline_trainer.sharding.device import give_storage
from drumline_trainer.sharding.slices import Cut, Slice
from drumline_trainer.sharding.world import World


class DataParallelModel(Protocol):
    """What this rank holds and updates of the model."""

    slices: tuple[Slice, ...]
    """fp32 weights that this rank updates, in place."""
    frozen: tuple[Slice, ...]
    """Weights that nobody updates (`requires_grad` is off), in the type they are kept in."""

    @property
    def stage_done(self) -> Callable[[nn.Module], None] | None:
        """For a pipeline to call when all gradients are in a stage; None where it has no use.

        Where backward passes are split, torch adds up weights' gradients past all hooks.
        """
        ...

    def gradients(self) -> list[Tensor]:
        """One fp32 sum for each slice, zeros where there was none.

        Once a step, after the last backward pass; waits for what is on its way.
        """
        ...

    def publish(self) -> None:
        """Let the next forward use what has been written into the slices. Collective."""
        ...

    def zero(self) -> None:
        """Drop the gradients."""
        ...


class Together:
    """Several models as one: ordinary weights and experts, which are summed over other ranks."""

    def __init__(
        self, parts: Sequence[Replicas | SharedUpdates], *, frozen: tuple[Slice, ...]
    ) -> None:
        self._parts = parts
        self.slices = tuple(weight for part in parts for weight in part.slices)
        self.frozen = frozen

    def gradients(self) -> list[Tensor]:
        """Of all parts."""
        return [gradient for part in self._parts for gradient in part.gradients()]

    def publish(self) -> None:
        """All parts."""
        for part in self._parts:
            part.publish()

    def stage_done(self, stage: nn.Module) -> None:
        """All parts."""
        for part in self._parts:
            part.stage_done(stage)

    def zero(self) -> None:
        """All parts."""
        for part in self._parts:
            part.zero()


def data_parallel(
    stages: Sequence[nn.Module],
    *,
    world: World,
    cuts: Mapping[str, Cut],
    precision: Precision,
    backwards: int,
    experts: Collection[str] = (),
    bucket_bytes: int = BUCKET_BYTES,
    memory: MemoryConfig | None = None,
) -> DataParallelModel:
    """Share stages out among the ranks that see other samples; they compute in place as before.

    Args:
        stages: this rank's parts of the model on the meta device, cut by all other axes. They get
            storage on the world's device; its contents are undefined.
        world: the ranks; its layout says which kind.
        cuts: what the tensor and expert axes left of parameters; a parameter without one is whole
            on every rank of the tensor axis.
        precision: what the stages compute in.
        backwards: how many backward passes a step makes through each stage: the micro-batches.
        experts: names of the parameters that are summed over the ranks with the same experts.
        bucket_bytes: of the gradients that ddp and zero send at once.
        memory: what is offloaded; None for nothing.

    Raises:
        ConfigError: weights are to be offloaded to a folder that has too little room.
    """
    memory = memory or MemoryConfig()
    layout = world.layout
    away = memory.offload_parameters is not Offload.NONE
    if layout.data_parallel is DataParallel.FSDP and (away or world.size(Axis.FSDP) > 1):
        from drumline_trainer.parallelism.data_parallel.fsdp import ShardedStages  # noqa: PLC0415 - heavy

        return ShardedStages(
            stages,
            world=world,
            cuts=cuts,
            precision=precision,
            backwards=backwards,
            experts=experts,
            memory=memory,
        )
    for stage in stages:
        if layout.data_parallel is DataParallel.FSDP and precision is not Precision.FP32:
            frozen_to_compute_type(stage, precision)
            copy_on_use(stage, precision)
        else:
            to_compute_type(stage, precision)
        give_storage(stage, world.device)
        accumulate_in_fp32(stage)
    weights = weights_of(stages, cuts=cuts, experts=experts, world=world)
    parts: list[Replicas | SharedUpdates] = []
    for axis in (Axis.DATA, Axis.EXPERT_DATA):
        trained = [w for w in weights if w.parameter.requires_grad and w.axis is axis]
        if trained:
            part = _shared_out(
                trained,
                axis=axis,
                world=world,
                backwards=backwards,
                bucket_bytes=bucket_bytes,
                home=_master_home(memory, device=world.device),
            )
            parts.append(part)
    frozen = tuple(
        w.part(w.parameter.detach(), copies=world.size(w.axis), copy=world.index(w.axis))
        for w in weights
        if not w.parameter.requires_grad
    )
    return Together(parts, frozen=frozen)


def _master_home(memory: MemoryConfig, *, device: torch.device) -> MasterHome | None:
    """Of fp32 weights beside the model's own: they are where the optimizer's state is."""
    if memory.offload_optimizer is Offload.NONE:
        return None
    from drumline_trainer.memory.offload_store import home  # noqa: PLC0415 - seldom

    return lambda sizes: home(memory.offload_optimizer, memory, sizes=sizes, device=device)


def _shared_out(
    weights: Sequence[Weight],
    *,
    axis: Axis,
    world: World,
    backwards: int,
    bucket_bytes: int,
    home: MasterHome | None,
) -> Replicas | SharedUpdates:
    """These weights by the layout's kind; replicas of one where the axis has one rank."""
    kind, group = world.layout.data_parallel, world.group(axis)
    if group is None or kind not in (DataParallel.ZERO1, DataParallel.ZERO2):
        return Replicas(
            weights, group=group, backwards=backwards, bucket_bytes=bucket_bytes, home=home
        )
    return SharedUpdates(
        weights,
        group=group,
        backwards=backwards,
        every_backward=kind is DataParallel.ZERO2 and world.layout.pipeline == 1,
        bucket_bytes=bucket_bytes,
        home=home,
    )
