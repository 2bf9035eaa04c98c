"""One rank's share of the model, from its configuration: every parallelism in its order.

    cut stages -> tensor -> context -> expert -> adapters, fp8 -> recompute -> data parallel ->
    schedule

Each step replaces parts of a model that has no storage yet and knows nothing of the others; what
the tensor and expert axes cut is handed on, so that in the end every weight is a slice of a global
tensor. Nothing here decides what is legal (`legality`) or computes anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from drumline_trainer.config import (
    DataParallel,
    Family,
    MemoryConfig,
    Offload,
    Recompute,
    TrainerConfig,
)
from drumline_trainer.layout import Axis
from drumline_trainer.layout_validation import micro_batches
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.models.mixture import set_loss_scale
from drumline_trainer.parallelism.context_parallel.apply import context_parallel
from drumline_trainer.parallelism.data_parallel.apply import DataParallelModel, data_parallel
from drumline_trainer.parallelism.data_parallel.precision import compute_type
from drumline_trainer.parallelism.expert_parallel.apply import expert_names, expert_parallel
from drumline_trainer.parallelism.pipeline_parallel.partition import model_costs, partition
from drumline_trainer.parallelism.pipeline_parallel.tied import (
    Ends,
    refuse_unequal_ends,
    sum_tied_gradients,
    tied_copies,
    tied_ends,
)
from drumline_trainer.parallelism.tensor_parallel.apply import tensor_parallel
from drumline_trainer.parallelism.tensor_parallel.vocabulary import vocabulary_parallel_loss
from drumline_trainer.sharding.slices import Cut, Slice
from drumline_trainer.sharding.world import World

if TYPE_CHECKING:
    from drumline_trainer.assembly.stage_plan import StagePlan
    from drumline_trainer.metrics.step_timer import StepTimer
    from drumline_trainer.parallelism.pipeline_parallel.schedule import MicroBatches, Pipeline


@dataclass(slots=True)
class MeanLoss:
    """A micro-batch's share of the mean over all targets of the global batch, scaled for fp16."""

    summed: Callable[[Tensor, Tensor], Tensor]
    divisor: float = 1.0
    """Targets of the global batch by the scale."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """From the logits, whole or cut by vocabulary, and the targets."""
        return self.summed(logits, targets) / self.divisor


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainee:
    """What a rank trains."""

    stages: tuple[nn.Module, ...]
    """One, but for pipelines whose ranks have several."""
    weights: DataParallelModel
    slices: tuple[Slice, ...]
    """The fp32 weights this rank updates; after that, `weights.publish()`."""
    loss: MeanLoss
    pipeline: Pipeline | None = None
    ends: Ends | None = None
    """The two ranks that hold a tied embedding at the ends of a pipeline."""
    siblings: int = 1
    """Models like this one that share the global batch but not the update (`workers`)."""

    def begin(self, *, targets: int, scale: float = 1.0) -> None:
        """A step whose global batch has so many targets; the gradients of the last one go.

        Where siblings share it, each takes the mean over an equal part of them.

        Losses and gradients are multiplied by `scale`, a power of 2.
        """
        own_targets = targets / self.siblings
        self.weights.zero()
        self.loss.divisor = own_targets / scale
        for stage in self.stages:
            set_loss_scale(stage, scale / own_targets)

    def gradients(self) -> list[Tensor]:
        """Of the slices, summed over all ranks, once all micro-batches have been passed through."""
        gradients = self.weights.gradients()
        if self.pipeline is not None:
            sum_tied_gradients(self.slices, gradients, ends=self.ends)
        return gradients


def assemble(config: TrainerConfig, world: World, *, plan: StagePlan | None = None) -> Trainee:
    """The model on this rank's device, contents undefined. Collective.

    Args:
        config: of the run.
        world: the ranks.
        plan: which layers the stages of a pipeline have; None: by cost.

    Raises:
        ConfigError: this torch lacks something that the configuration asks for.
    """
    stages = _stages(config, world, plan)
    cuts: dict[str, Cut] = {}
    experts: set[str] = set()
    for stage in stages:
        made = tensor_parallel(stage, world, sequence_parallel=config.parallelism.sequence_parallel)
        context_parallel(stage, world)
        cuts |= _adapted(stage, config, world, expert_parallel(stage, world, made))
        experts |= expert_names(stage)
        _recompute(stage, config.memory)
        _offload_activations(stage, config.memory, world)
    servers = world.layout.data_parallel is DataParallel.PARAMETER_SERVER
    summing = world.part(config.parallelism.server.copies_per_node) if servers else world
    weights = data_parallel(
        stages,
        world=summing,
        cuts=cuts,
        precision=config.precision,
        backwards=micro_batches(world.layout, config),
        experts=experts,
        memory=config.memory,
    )
    if servers:
        from drumline_trainer.parallelism.data_parallel.parameter_server.synchronous import (  # noqa: PLC0415
            SynchronousServers,
        )

        server = config.parallelism.server
        weights = SynchronousServers(weights, server, whole=world, worker=summing)
    trainee = Trainee(
        stages=tuple(stages),
        weights=weights,
        slices=weights.slices,
        loss=MeanLoss(_summed_loss(config, world)),
        siblings=max(1, len(world.siblings)),
    )
    if world.layout.pipeline == 1:
        return trainee
    return _pipelined(trainee, config, world, clock=None if plan is None else plan.clock)


def _adapted(
    stage: nn.Module, config: TrainerConfig, world: World, cuts: dict[str, Cut]
) -> dict[str, Cut]:
    """The stage's projections in another way of multiplying, where one is asked for."""
    if config.lora is not None:
        from drumline_trainer.adapters.lora import adapt  # noqa: PLC0415 - imports

        return adapt(stage, config.lora, world=world, cuts=cuts)
    if config.fp8:
        from drumline_trainer.numerics.fp8 import multiply_in_fp8  # noqa: PLC0415 - imports

        multiply_in_fp8(stage, scaling=config.fp8_scaling)
    return cuts


def _recompute(stage: nn.Module, config: MemoryConfig) -> None:
    if config.recompute is not Recompute.NONE:
        from drumline_trainer.memory.recompute import recompute  # noqa: PLC0415 - imports

        recompute(stage, mode=config.recompute, every=config.recompute_every)


def _offload_activations(stage: nn.Module, config: MemoryConfig, world: World) -> None:
    if config.offload_activations is not Offload.NONE:
        from drumline_trainer.memory.offload_store import home  # noqa: PLC0415 - seldom
        from drumline_trainer.memory.offloaded_activations import OffloadedRuns  # noqa: PLC0415 - seldom

        stage.through = OffloadedRuns(
            stage.through,  # pyright: ignore[reportArgumentType] - a module
            home=lambda sizes: home(
                config.offload_activations, config, sizes=sizes, device=world.device
            ),
            device=world.device,
        )


def _stages(config: TrainerConfig, world: World, plan: StagePlan | None) -> Sequence[nn.Module]:
    model, layout = build_on_meta(config.model), world.layout
    if layout.pipeline == 1:
        return [model]
    costs = model_costs(config.model, sequence_length=config.tokens_per_sample)
    by_cost = partition(costs, stages=layout.stages)
    from drumline_trainer.parallelism.pipeline_parallel.schedule import stage_modules  # noqa: PLC0415 - imports

    return stage_modules(
        model,
        layout=layout,
        index=world.index(Axis.PIPELINE),
        partition=by_cost if plan is None else plan.partition,
    )


def _summed_loss(config: TrainerConfig, world: World) -> Callable[[Tensor, Tensor], Tensor]:
    group = world.group(Axis.TENSOR)
    if group is None:
        return token_losses_sum
    return functools.partial(vocabulary_parallel_loss, group=group, vocabulary=config.model.outputs)


def _pipelined(
    trainee: Trainee, config: TrainerConfig, world: World, *, clock: StepTimer | None
) -> Trainee:
    """The stages under their schedule, the two ends of a tied model held together."""
    from drumline_trainer.parallelism.pipeline_parallel.schedule import Pipeline  # noqa: PLC0415 - imports

    slices, ends = trainee.slices, None
    if config.model.head_is_embedding and config.lora is None:
        ends = tied_ends(world)
        slices = tied_copies(slices, layout=world.layout, pipeline=world.index(Axis.PIPELINE))
        refuse_unequal_ends(slices, ends=ends)
    pipeline = Pipeline(
        trainee.stages,
        world=world,
        micro_batches=_micro_batches(config, world),
        loss=trainee.loss,
        stage_done=trainee.weights.stage_done,
        clock=clock,
    )
    return replace(trainee, slices=slices, pipeline=pipeline, ends=ends)


def _micro_batches(config: TrainerConfig, world: World) -> MicroBatches:
    from drumline_trainer.parallelism.pipeline_parallel.schedule import MicroBatches  # noqa: PLC0415 - imports

    layout, model = world.layout, config.model
    count = micro_batches(layout, config)
    rows = config.global_batch_size // layout.batch_ranks // count
    length = config.data.sequence_length // layout.context
    inputs, of_inputs = (rows, length), torch.int64
    if model.family is Family.VIT:
        length = model.patches
        inputs = (rows, model.channels, model.image_size, model.image_size)
        of_inputs = torch.uint8
    shared = layout.tensor if layout.sequence_parallel else 1
    return MicroBatches(
        count=count,
        inputs=inputs,
        hidden=(rows, length // shared, model.hidden_size),
        dtype=compute_type(config.precision),
        inputs_dtype=of_inputs,
    )
