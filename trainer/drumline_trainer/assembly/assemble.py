"""One rank's part of the model, from its configuration: every parallelism in its order.

    cut stages -> tensor -> context -> expert -> adapters, fp8 -> recompute, compile, offload ->
    data parallel -> schedule

Each step replaces parts of a model that has no storage yet and knows nothing of the other steps;
the cuts of the tensor and expert axes are handed on, so that in the end every weight is a slice of
a global tensor. Nothing here decides which layouts are supported (`layout_validation`) or computes
anything.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from drumline_contract.config import (
    Compile,
    ConfigError,
    DataParallel,
    Family,
    MemoryConfig,
    Offload,
    TrainerConfig,
)
from drumline_contract.config.learning import unmatched
from drumline_contract.layout import Axis
from drumline_contract.layout_validation import micro_batch_count, shards_gradients
from drumline_contract.shapes.partition import model_costs, partition
from drumline_trainer.adapters.lora import adapt
from drumline_trainer.assembly.parallel_model import MeanLoss, ParallelModel
from drumline_trainer.assembly.preferences import FrozenCopy, Preferences
from drumline_trainer.assembly.stage_plan import StagePlan
from drumline_trainer.memory.offload_store import open_store
from drumline_trainer.memory.offloaded_activations import OffloadedLayers
from drumline_trainer.memory.recompute import recompute
from drumline_trainer.metrics.step_timer import StepTimer
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.models.transformers.module import CausalModule, weight_count
from drumline_trainer.numerics.fp8 import multiply_in_fp8
from drumline_trainer.parallelism.context_parallel.apply import context_parallel
from drumline_trainer.parallelism.data_parallel.apply import data_parallel
from drumline_trainer.parallelism.data_parallel.model import DataParallelModel
from drumline_trainer.parallelism.data_parallel.parameter_server.synchronous import (
    SynchronousServers,
)
from drumline_trainer.parallelism.data_parallel.precision import compute_type
from drumline_trainer.parallelism.data_parallel.weights import CutStages
from drumline_trainer.parallelism.expert_parallel.apply import expert_names, expert_parallel
from drumline_trainer.parallelism.pipeline_parallel.micro_batches import MicroBatchSpec
from drumline_trainer.parallelism.pipeline_parallel.tied import (
    check_tied_weights,
    tied_copies,
    tied_group,
)
from drumline_trainer.parallelism.tensor_parallel.apply import tensor_parallel
from drumline_trainer.parallelism.tensor_parallel.module_plan import parallel_by_plan
from drumline_trainer.parallelism.tensor_parallel.vocabulary import vocabulary_parallel_loss
from drumline_trainer.sharding.slices import Cut
from drumline_trainer.sharding.world import World


def freeze_weights(model: nn.Module, config: TrainerConfig) -> None:
    """Freeze weights in place: those outside of `trainable`, or those that `freeze` names.

    Raises:
        ConfigError: a pattern matches no weight, or no weight would be trained.
    """
    if not config.freezes:
        return
    field = "freeze" if config.trainable is None else "trainable"
    # Freezing excludes pipelines, so the stage has all names of the model.
    named = dict(model.named_parameters())
    # A pattern without a match is an error: a typing error would otherwise train the wrong weights.
    for pattern in unmatched(config.trainable or config.freeze or "", list(named)):
        near = difflib.get_close_matches(pattern, named, n=1, cutoff=0.5)
        hint = near[0] if near else next(iter(named))
        raise ConfigError(
            f"{field}: no weight of the model is called {pattern!r}; one is called {hint!r}"
        )
    for name, parameter in named.items():
        parameter.requires_grad = config.learns(name)
    # Without a trained weight the optimizer would have nothing to do, and the run would only spend
    # GPU time.
    if not any(parameter.requires_grad for parameter in named.values()):
        raise ConfigError(f"{field}: no weight is left that learns")


def assemble(
    config: TrainerConfig, world: World, *, plan: StagePlan | None = None
) -> ParallelModel:
    """Return the model on this rank's device, with undefined contents. Collective.

    Args:
        config: configuration of the run.
        world: the ranks.
        plan: the layers of each pipeline stage; None: by cost.

    Raises:
        ConfigError: this version of PyTorch lacks a configured feature.
    """
    # Phase 1: cut the model on meta, by every axis but the data axis.
    model = _cut_by_all_axes(_stages(config, world, plan), config, world)
    # Phase 2: storage. From here on the weights are tensors on the device.
    weights = _data_parallel(model, config, world)
    parallel_model = ParallelModel(
        stages=tuple(model.stages),
        weights=weights,
        slices=weights.slices,
        # The loss is set once. Its divisor changes with every step.
        loss=MeanLoss(_summed_loss(config, world)),
        preferences=_preferences(config, world),
        siblings=max(1, len(world.siblings)),
    )
    # Phase 3: the schedule, which wraps the stages and therefore comes last.
    if world.layout.pipeline == 1:
        return parallel_model
    return _pipelined(parallel_model, config, world, clock=None if plan is None else plan.clock)


def _preferences(config: TrainerConfig, world: World) -> Preferences | None:
    if config.dpo is None:
        return None
    reference = _frozen_copy(config, world) if config.has_frozen_copy else None
    return Preferences(beta=config.dpo.beta, reference=reference)


def _frozen_copy(config: TrainerConfig, world: World) -> FrozenCopy:
    """Build a second model without the parts that only a backward pass needs."""
    # No memory options: nothing is kept for a backward pass, and the reference has no optimizer.
    config = replace(config, memory=MemoryConfig())
    model = _cut_by_all_axes(_stages(config, world, None), config, world)
    # Preferences exclude pipelines, so there is one stage.
    (module,) = model.stages
    # `eval` stops dropout: the reference must give the same log-probabilities each time.
    module.requires_grad_(requires_grad=False).eval()
    weights = data_parallel(model, world=world, precision=config.precision, backwards=1)
    return FrozenCopy(module=module, weights=weights)


def _stages(config: TrainerConfig, world: World, plan: StagePlan | None) -> Sequence[nn.Module]:
    """Return this rank's stages on the meta device: the whole model without a pipeline."""
    # Every rank builds the whole model on meta, which takes no memory, and drops the other stages.
    model, layout = build_on_meta(config.model), world.layout
    if layout.pipeline == 1:
        return [model]
    from drumline_trainer.parallelism.pipeline_parallel.pipeline import (  # noqa: PLC0415 - imports torch's compiler, 2 s that runs without a pipeline do without
        stage_modules,
    )

    # The costs depend on the configuration only, so all ranks compute the same partition.
    costs = model_costs(config.model, sequence_length=config.tokens_per_sample)
    by_cost = partition(costs, stages=layout.stages)
    return stage_modules(
        model,
        layout=layout,
        index=world.index(Axis.PIPELINE),
        partition=by_cost if plan is None else plan.partition,
    )


def _cut_by_all_axes(stages: Sequence[nn.Module], config: TrainerConfig, world: World) -> CutStages:
    """Apply everything but data parallelism and the schedule, in place."""
    sequence_parallel = config.parallelism.sequence_parallel
    cuts: dict[str, Cut] = {}
    experts: set[str] = set()
    for stage in stages:
        # The tensor axis is first: other steps look for its layers (`ColumnLinear`, `RowLinear`).
        theirs = isinstance(stage, CausalModule)
        by_tensor = (
            parallel_by_plan(cast("nn.Module", stage), world)
            if theirs
            else tensor_parallel(stage, world, sequence_parallel=sequence_parallel)
        )
        context_parallel(stage, world)
        # Adapters copy the cut of the layer beside them, so experts and tensors must be cut
        # already.
        cuts |= _adapted(stage, config, world, expert_parallel(stage, world, by_tensor))
        if isinstance(stage, CausalModule):
            stage.replicated = frozenset(name for name, cut in cuts.items() if cut.copies > 1)
        # Freezing must precede the data axis, which reduces gradients of trained weights only.
        freeze_weights(stage, config)
        experts |= expert_names(stage)
        recompute(stage, mode=config.memory.recompute, every=config.memory.recompute_every)
        if config.compile is Compile.BLOCKS:
            _compile(stage, config)
        # Offload replaces the loop over the layers, so it sees the layers in their final form.
        _offload_activations(stage, config.memory, world)
    return CutStages(stages=stages, cuts=cuts, experts=experts)


def _compile(stage: nn.Module, config: TrainerConfig) -> None:
    from drumline_trainer.assembly.compiled_layers import (  # noqa: PLC0415 - imports torch's compiler, 2 s that other runs do without
        compile_layers,
    )

    compile_layers(stage, config)


def _adapted(
    stage: nn.Module, config: TrainerConfig, world: World, cuts: dict[str, Cut]
) -> Mapping[str, Cut]:
    """Replace the stage's projections by adapted or fp8 ones, where configured; all cuts."""
    # Adapters and fp8 both replace projections, and validation rejects the combination.
    if config.lora is not None:
        return adapt(stage, config.lora, model=config.model, world=world, cuts=cuts)
    if config.fp8:
        multiply_in_fp8(stage, scaling=config.fp8_scaling)
    return cuts


def _offload_activations(stage: nn.Module, config: MemoryConfig, world: World) -> None:
    kind, device = config.offload_activations, world.device
    if kind is not Offload.NONE:
        stage.layer_loop = OffloadedLayers(
            stage.get_submodule("layer_loop"),
            open_store=lambda sizes: open_store(kind, config, sizes=sizes, device=device),
            device=device,
        )


def _data_parallel(model: CutStages, config: TrainerConfig, world: World) -> DataParallelModel:
    servers = world.layout.data_parallel is DataParallel.PARAMETER_SERVER
    server = config.parallelism.server
    # With servers, the data axis sums within a worker. The servers sum over the workers.
    learning = None
    if config.model.family is Family.TRANSFORMERS:
        # The shapes of a transformers module are known only from the module itself.
        learning = sum(weight_count(stage, model.cuts) for stage in model.stages)
    summing = world.subworld(server.copies_per_node) if servers else world
    weights = data_parallel(
        model,
        world=summing,
        precision=config.precision,
        # The number of backward passes is announced, so the last one can start the reduction of
        # gradients.
        backwards=micro_batch_count(world.layout, config),
        memory=replace(
            config.memory,
            shard_gradients=shards_gradients(world.layout, config, learning=learning),
        ),
    )
    return SynchronousServers(weights, server, whole=world, worker=summing) if servers else weights


def _summed_loss(config: TrainerConfig, world: World) -> Callable[[Tensor, Tensor], Tensor]:
    # A vocabulary cut by the tensor axis needs a loss that sums over the ranks of the group. A
    # module of transformers gives whole logits.
    group = world.group(Axis.TENSOR)
    if group is None or config.model.family is Family.TRANSFORMERS:
        return token_losses_sum
    return functools.partial(vocabulary_parallel_loss, group=group, vocabulary=config.model.outputs)


def _pipelined(
    parallel_model: ParallelModel, config: TrainerConfig, world: World, *, clock: StepTimer | None
) -> ParallelModel:
    """Put the stages under their schedule; tie the two ends of a model with a tied embedding."""
    from drumline_trainer.parallelism.pipeline_parallel.pipeline import (  # noqa: PLC0415 - imports torch's compiler, 2 s that runs without a pipeline do without
        Pipeline,
    )

    # Adapters freeze the embedding, so its two copies never change and need no sum.
    slices, tied = parallel_model.slices, None
    if config.model.head_is_embedding and config.lora is None:
        # Collective: all ranks make the groups, and only the ends of a pipeline get one.
        tied = tied_group(world)
        slices = tied_copies(slices, layout=world.layout, pipeline=world.index(Axis.PIPELINE))
        check_tied_weights(slices, tied=tied)
    pipeline = Pipeline(
        parallel_model.stages,
        world=world,
        micro_batches=_micro_batch_spec(config, world),
        loss=parallel_model.loss,
        # Torch bypasses gradient hooks if backward passes are split, so the schedule
        # calls `stage_done`.
        stage_done=parallel_model.weights.stage_done,
        clock=clock,
    )
    return replace(parallel_model, slices=slices, pipeline=pipeline, tied=tied)


def _micro_batch_spec(config: TrainerConfig, world: World) -> MicroBatchSpec:
    layout, model = world.layout, config.model
    # Shapes of one micro-batch on this rank: the schedule needs them to receive hidden states.
    count = micro_batch_count(layout, config)
    rows = config.global_batch_size // layout.batch_ranks // count
    length = config.data.sequence_length // layout.context
    inputs, inputs_dtype = (rows, length), torch.int64
    if model.family is Family.VIT:
        length = model.image_positions
        inputs = (rows, model.channels, model.image_size, model.image_size)
        inputs_dtype = torch.uint8
    # With sequence parallelism, the tensor ranks hold equal parts of the positions between layers.
    sharing = layout.tensor if layout.sequence_parallel else 1
    return MicroBatchSpec(
        count=count,
        inputs=inputs,
        hidden=(rows, length // sharing, model.hidden_size),
        dtype=compute_type(config.precision),
        inputs_dtype=inputs_dtype,
    )
