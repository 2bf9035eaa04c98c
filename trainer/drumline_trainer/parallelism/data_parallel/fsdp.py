"""Fully sharded data parallelism (FSDP2, ZeRO-3): no rank holds all weights.

Every layer is one unit, the embedding is one, and so are the last norm with the head: vocabularies
are large, and these two are needed at opposite ends of a pass. Where embeddings are tied they are
one weight, which stays at the root of a stage with what else is left there. Weights, gradients and
the optimizer's state stay fp32 and sharded by rows (dimension 0) over the axis `fsdp`; a unit is
gathered for its forward and backward only. With a low precision the gathered copy and the
activations are of that type, gradients are reduced in fp32. Experts are units of their own, over
the ranks that hold the same experts.

HSDP (`replicate` above 1): copies of such groups. Weights are gathered within a copy, where the
network is fast, and the shards' gradients summed over the copies.

    bytes for each parameter, n ranks: 16/n, and the gathered units in use
    traffic of a rank in a step: weights twice for each micro-batch, gradients once (fp32)

Gradients are sums, not means: the loss is divided by the tokens of the global batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import Shard

from drumline_contract.config import MemoryConfig, Offload, Precision
from drumline_contract.layout import Axis
from drumline_trainer.memory.offloaded_parameters import Prefetcher, allocate_in_store
from drumline_trainer.metrics.fsdp_timing import time_fsdp
from drumline_trainer.models.build import layer_modules
from drumline_trainer.models.transformers.module import CausalModule, settle
from drumline_trainer.parallelism.data_parallel.precision import (
    compute_type,
    frozen_to_compute_type,
)
from drumline_trainer.parallelism.data_parallel.weights import CutStages, ModelWeight, weights_of
from drumline_trainer.sharding.dtensor import local_box, local_shard
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.storage import OffloadStore
from drumline_trainer.sharding.world import World


class FsdpModel:
    """Stages whose weights are sharded.

    Args:
        model: stages on the meta device.
        world: this rank's process groups.
        precision: dtypes of parameters and reductions.
        backwards: backward passes of a stage in a step.
        memory: offload and recomputation.
    """

    def __init__(
        self,
        model: CutStages,
        *,
        world: World,
        precision: Precision,
        backwards: int,
        memory: MemoryConfig,
    ) -> None:
        """Shard stages on the meta device and give them storage; see `apply.data_parallel`."""
        # 1. Shard the stages on the meta device, then allocate only this rank's rows.
        offloaded = memory.offload_parameters is not Offload.NONE
        for stage in model.stages:
            frozen_to_compute_type(stage, precision)
            shard_stage(
                stage,
                world=world,
                precision=precision,
                experts=model.experts,
                offload=memory.offload_parameters,
            )
            time_fsdp(stage, device=world.device)
            if not offloaded:
                stage.to_empty(device=world.device)
                settle(stage, world.device)
        # 2. Offloaded shards are allocated in the store, all at once.
        self._store = _allocate_offloaded(model.stages, memory, world) if offloaded else None
        # 3. Tell the rest of the trainer which rows these are.
        weights = weights_of(model, world=world)
        self._units = [
            m for stage in model.stages for m in stage.modules() if isinstance(m, FSDPModule)
        ]
        self._parameters = [w.parameter for w in weights if w.parameter.requires_grad]
        self.slices = tuple(_shard(w, world) for w in weights if w.parameter.requires_grad)
        self.frozen = tuple(_shard(w, world) for w in weights if not w.parameter.requires_grad)
        self.stage_done = None
        self._backwards = backwards
        self._forwards = 0
        self._sums_each = memory.shard_gradients
        # 4. Reduce gradients only once a step, unless memory asks for more.
        if world.layout.pipeline == 1:  # torch's pipeline schedules say themselves when to reduce
            for stage in model.stages:
                stage.register_forward_pre_hook(self._reduce_after_the_last)

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the slices, summed.

        Call it once per step, after the last backward pass.
        """
        self._forwards = 0
        return [
            torch.zeros_like(part.tensor) if parameter.grad is None else local_shard(parameter.grad)
            for parameter, part in zip(self._parameters, self.slices, strict=True)
        ]

    def refresh_copies(self) -> None:
        """Drop gathered copies of what has been written into the slices."""
        for unit in self._units:
            # Gathered weights are out of date after an update.
            unit.reshard()
        if self._store is not None:
            self._store.release([part.tensor for part in self.slices])

    def zero(self) -> None:
        """Drop the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    def _reduce_after_the_last(self, stage: nn.Module, _: Any) -> None:
        """Keep gradients on this rank until the last micro-batch's backward pass.

        Whole ones, or the sums of the shard group, which only replicas still have to add up.
        """
        if torch.is_grad_enabled():
            self._forwards += 1
            last = self._forwards == self._backwards
            # HSDP: sum within a copy each time, and over the copies once.
            if self._sums_each:
                cast("FSDPModule", stage).set_requires_all_reduce(last)
            else:
                cast("FSDPModule", stage).set_requires_gradient_sync(last)


def _allocate_offloaded(
    stages: Sequence[nn.Module], memory: MemoryConfig, world: World
) -> OffloadStore:
    store = allocate_in_store(stages, memory, device=world.device)
    if memory.offload_parameters is Offload.NVME:
        for stage in stages:
            Prefetcher(
                [unit for unit in layer_modules(stage) if isinstance(unit, FSDPModule)], store
            )
    return store


def shard_stage(
    stage: nn.Module,
    *,
    world: World,
    precision: Precision,
    experts: Collection[str] = (),
    offload: Offload = Offload.NONE,
) -> None:
    """Shard a stage in place: experts, each layer, the two ends, then the remaining root.

    Args:
        stage: the module to change.
        world: this rank's process groups.
        precision: dtypes of parameters and reductions.
        experts: names of expert modules.
        offload: whether parameters live in host memory.
    """
    # 1. Experts first: a unit that is sharded later leaves out inner units.
    mesh = _mesh(world, Axis.FSDP)
    kept = False if world.layout.keeps_gathered else None  # None: torch's own
    apart = partial(
        fully_shard,
        mp_policy=_mixed_precision(precision),
        offload_policy=_offload_policy(offload, world),
    )
    shard = partial(apart, reshard_after_forward=kept)
    expert_modules = list(_expert_modules(stage, "", experts))
    if expert_modules:
        expert_mesh = _mesh(world, Axis.EXPERT_FSDP)
        by_fewer = partial(_experts_placement, ranks=world.size(Axis.EXPERT_FSDP))
        for module in expert_modules:
            shard(module, mesh=expert_mesh, shard_placement_fn=by_fewer)
    # 2. Each layer is a unit: one is gathered while the one before computes.
    for layer in layer_modules(stage):
        shard(layer, mesh=mesh)
    # 3. Both ends are units of their own, because vocabularies are large.
    embedding, last = _ends(stage)
    if embedding is not None:
        shard(embedding, mesh=mesh)
    if last:
        # the backward pass begins with it: freed, it would be gathered again at once
        apart(last, mesh=mesh, reshard_after_forward=False)
    shard(stage, mesh=mesh)
    # 4. Losses are divided by the tokens of the global batch, so gradients are summed only.
    for unit in stage.modules():
        if isinstance(unit, FSDPModule):
            unit.set_gradient_divide_factor(1.0)
            # without this a factor is a reduction of NCCL's own, which Gloo does not have
            unit.set_force_sum_reduction_for_comms(True)


def _ends(stage: nn.Module) -> tuple[nn.Module | None, list[nn.Module]]:
    """Return the embedding, and the norm with the head, if the stage has them as own modules.

    Transformers modules may use these weights in other places, so they stay at the root.
    """
    if isinstance(stage, CausalModule):
        return None, []
    embedding, norm, output = (
        getattr(stage, name, None) for name in ("embedding", "norm", "output")
    )
    if not isinstance(output, nn.Module):
        whole_or_last = isinstance(norm, nn.Module)
        return (None if whole_or_last else embedding), []
    return embedding, [norm, output] if isinstance(norm, nn.Module) else [output]


def _expert_modules(
    module: nn.Module, prefix: str, experts: Collection[str]
) -> Iterator[nn.Module]:
    """Yield the outermost modules that contain only parameters of experts."""
    for name, child in module.named_children():
        names = [f"{prefix}{name}.{inner}" for inner, _ in child.named_parameters()]
        if names and all(inner in experts for inner in names):
            yield child
        else:
            yield from _expert_modules(child, f"{prefix}{name}.", experts)


def _experts_placement(parameter: nn.Parameter, *, ranks: int) -> Shard | None:
    """Return how to shard experts. None: by expert; otherwise by the rows of each expert.

    Rows are cut if there are fewer experts than ranks, because most ranks would only hold padding.
    """
    few = parameter.dim() > 2 and parameter.shape[0] < ranks
    return Shard(1) if few and parameter.shape[1] % ranks == 0 else None


def _mesh(world: World, axis: Axis) -> DeviceMesh:
    return world.mesh(Axis.REPLICATE, axis) if world.layout.replicate > 1 else world.mesh(axis)


def _shard(weight: ModelWeight, world: World) -> TensorSlice:
    """Return this rank's rows of a weight. Ranks of other copies have the same."""
    return weight.part(
        local_shard(weight.parameter.detach()),
        box=local_box(weight.parameter),
        copies=world.size(Axis.REPLICATE),
        copy=world.index(Axis.REPLICATE),
    )


def _mixed_precision(precision: Precision) -> MixedPrecisionPolicy:
    if precision is Precision.FP32:
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=compute_type(precision), reduce_dtype=torch.float32)


def _offload_policy(offload: Offload, world: World) -> OffloadPolicy:
    if offload is Offload.NONE:
        return OffloadPolicy()
    pinned = offload is Offload.CPU and world.device.type == "cuda"
    return CPUOffloadPolicy(pin_memory=pinned)
