"""Compute the duration of a step, part by part, and its bottleneck.

    step = pipeline (`replay`) + exposed messages of data parallelism + optimizer + rest

A pipeline of one stage is micro-batches one after the other. Messages between stages are waited
for; those of data parallelism hide behind the last backward pass as far as the software lets them;
FSDP's gathers behind the layer before. O(actions of the replay).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from drumline_contract import StepPart
from drumline_contract.config import DataParallel, ModelConfig, Offload, OptimizerKind
from drumline_contract.hardware import GpuCluster
from drumline_contract.shapes.flops import flops_per_token
from drumline_planner.adapter_weights import trained_by_lora
from drumline_planner.constants import CALIBRATED, Constants
from drumline_planner.fabric import Fabric, fabric
from drumline_planner.network import Span
from drumline_planner.pipeline_schedules import Pass
from drumline_planner.rank_weights import largest_learning
from drumline_planner.replay import StageSeconds, pipeline_seconds
from drumline_planner.setup import TrainingSetup, layer_parameters
from drumline_planner.work import (
    NOTHING,
    Passes,
    PassSeconds,
    Speeds,
    head_passes,
    host_bandwidth,
    layer_passes,
    with_host_copies,
)


class StepBottleneck(StrEnum):
    """Largest part of a step's time above the ideal."""

    PRODUCTS = "compute"
    MEMORY = "memory bandwidth and kernel starts"
    TENSOR = "tensor parallel communication"
    CONTEXT = "context parallel communication"
    EXPERT = "expert exchange"
    BUBBLE = "pipeline bubble"
    STAGES = "messages between stages"
    DATA = "data parallel communication"
    HOST = "copies to the host"
    OPTIMIZER = "optimizer"
    REST = "fixed cost of a step"


_MEASURED_AS = {
    StepBottleneck.PRODUCTS: StepPart.COMPUTE,
    StepBottleneck.MEMORY: StepPart.COMPUTE,
    StepBottleneck.TENSOR: StepPart.TENSOR,
    StepBottleneck.CONTEXT: StepPart.CONTEXT,
    StepBottleneck.EXPERT: StepPart.EXPERT,
    StepBottleneck.BUBBLE: StepPart.PIPELINE,
    StepBottleneck.STAGES: StepPart.PIPELINE,
    StepBottleneck.DATA: StepPart.DATA,
    StepBottleneck.HOST: StepPart.COMPUTE,
    StepBottleneck.OPTIMIZER: StepPart.OPTIMIZER,
    StepBottleneck.REST: StepPart.REST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Prediction for a step."""

    seconds: float
    parts: dict[StepBottleneck, float]
    """Seconds of the slowest rank by part. They add up to the step."""
    tokens: int
    """Tokens of all ranks."""
    model_flops: float
    """Operations of all ranks, as MFU counts them."""
    gpus: int
    peak: float
    """Dense bf16 peak of one device."""

    @property
    def tokens_per_second(self) -> float:
        """Return tokens per second of all ranks."""
        return self.tokens / self.seconds

    @property
    def mfu(self) -> float:
        """Model FLOP utilization, dense bf16 peak, causal attention (`contract.shapes.flops`)."""
        return self.model_flops / self.seconds / (self.gpus * self.peak)

    @property
    def by_part(self) -> dict[StepPart, float]:
        """Return the seconds by the parts that a running job measures. They add up to the step."""
        seconds = dict.fromkeys(StepPart, 0.0)
        for part, value in self.parts.items():
            seconds[_MEASURED_AS[part]] += value
        return seconds

    @property
    def bottleneck(self) -> StepBottleneck:
        """The largest part; products if they take most of the step."""
        if self.parts[StepBottleneck.PRODUCTS] >= 0.6 * self.seconds:
            return StepBottleneck.PRODUCTS
        rest = {
            part: value for part, value in self.parts.items() if part != StepBottleneck.PRODUCTS
        }
        return max(rest, key=lambda part: rest[part])


def step_time(
    setup: TrainingSetup, cluster: GpuCluster, *, constants: Constants = CALIBRATED
) -> StepTime:
    """Return the predicted time of a step.

    Args:
        setup: model, batch and layout.
        cluster: GPUs and links.
        constants: calibrated efficiencies.
    """
    # Phase 1: the pipeline, whose passes include tensor, context and expert messages.
    speeds = Speeds.of(cluster.gpu, constants, setup)
    axes = fabric(setup, cluster, constants)
    stages = stage_passes(setup, axes, speeds)
    parts = _pipeline(setup, stages)
    # Phase 2: parts outside of the pipeline.
    parts[StepBottleneck.DATA] += _data_parallel(setup, axes, _of_rank(setup, stages, 0))
    parts[StepBottleneck.OPTIMIZER] = _optimizer(setup, cluster)
    parts[StepBottleneck.REST] = constants.step
    # Phase 3: correct each part by the factor that a pool measured.
    for part in parts.keys() - {StepBottleneck.BUBBLE}:  # which follows from the others
        parts[part] *= constants.exposed(_MEASURED_AS[part])
    # Phase 4: MFU counts model operations only, so recompute does not raise it.
    flops = flops_per_token(
        setup.model,
        sequence_length=setup.sequence_length,
        reference_pass=setup.reference_pass,
    )
    return StepTime(
        seconds=sum(parts.values()),
        parts=parts,
        tokens=setup.global_tokens,
        model_flops=flops * setup.global_tokens,
        gpus=setup.layout.world_size,
        peak=cluster.gpu.bf16_flops,
    )


def stage_passes(setup: TrainingSetup, axes: Fabric, speeds: Speeds) -> list[Passes]:
    """Return the time of a micro-batch on each stage.

    Args:
        setup: model, batch and layout.
        axes: location of each axis.
        speeds: FLOP/s and bandwidths.
    """
    parts = _parts_of(setup, axes, speeds)
    return _passes_of(setup, axes, parts, range(setup.layout.stages))


LayersAndHead = tuple[tuple[Passes, ...], Passes]
"""A layer of each kind and the head, without the time of data parallelism."""


def _parts_of(setup: TrainingSetup, axes: Fabric, speeds: Speeds) -> LayersAndHead:
    layers = (layer_passes(kind, speeds, axes.inner) for kind, _ in setup.kinds())
    return tuple(layers), head_passes(setup, speeds, axes.inner)


def _passes_of(
    setup: TrainingSetup, axes: Fabric, parts: LayersAndHead, stages: Iterable[int]
) -> list[Passes]:
    """Return the time of a micro-batch on these stages."""
    # Phase 1: time of one layer of each kind, which all stages share.
    each, head = parts
    kinds = [kind for kind, _ in setup.kinds()]
    passes: list[tuple[ModelConfig, Passes]] = []
    for kind, layer in zip(kinds, each, strict=True):
        sharded = setup.sharded and setup.shard_ranks > 1
        gathered = _gathered(kind, layer, axes) if sharded else layer
        passes.append((kind.model, with_host_copies(kind, gathered)))
    # Phase 2: messages between stages are waited for on the receiving side.
    message = _stage_message(setup, axes.stages)
    received = PassSeconds(stages=message)
    layers = setup.stage_layers()
    last = len(layers) - 1
    made: dict[tuple[tuple[int, ...], bool, bool], Passes] = {}
    result: list[Passes] = []
    for stage in stages:
        own = {kind.model: count for kind, count in setup.kinds(layers[stage])}
        counts = tuple(own.get(model, 0) for model, _ in passes)
        # Phase 3: stages with equal layers and ends have equal times. Long pipelines have few
        # kinds.
        key = (counts, stage == 0, stage == last)
        if key not in made:
            forward = back = weight = NOTHING
            for count, (_, layer) in zip(counts, passes, strict=True):
                forward = forward.plus(layer.forward, count=count)
                back = back.plus(layer.input, count=count)
                weight = weight.plus(layer.weight, count=count)
            if stage == last:
                forward, back = forward.plus(head.forward), back.plus(head.input)
                weight = weight.plus(head.weight)
            # The reference model runs the same layers forward, without a backward pass.
            if setup.reference_pass:
                forward = forward.plus(forward)
            if stage > 0:
                forward = forward.plus(received)
            if stage < last:
                back = back.plus(received)
            made[key] = Passes(forward=forward, input=back, weight=weight)
        result.append(made[key])
    return result


def _of_rank(setup: TrainingSetup, stages: Sequence[Passes], rank: int) -> list[Passes]:
    return [stages[stage] for stage in setup.layout.stages_of(rank)]


def _forward(passes: Iterable[Passes]) -> float:
    return sum(each.forward.total for each in passes)


def _backward(passes: Iterable[Passes]) -> float:
    return sum(each.input.total + each.weight.total for each in passes)


def _gathered(setup: TrainingSetup, layer: Passes, axes: Fabric) -> Passes:
    """Return the passes with the part of weight gathering that the layer before does not hide."""
    size = setup.width * layer_parameters(setup.model).dense / setup.layout.tensor
    gather = axes.shard.all_gather(size)
    # Prefetch: the gather of a layer runs while the layer before computes.
    forward = max(0.0, gather - layer.forward.total)
    back = 0.0 if setup.layout.keeps_gathered else gather
    back = max(0.0, back - layer.input.total - layer.weight.total)
    return Passes(
        forward=layer.forward.plus(PassSeconds(data=forward)),
        input=layer.input.plus(PassSeconds(data=back)),
        weight=layer.weight,
    )


def _stage_message(setup: TrainingSetup, between: Span) -> float:
    if between.ranks == 1:
        return 0.0
    size = setup.width * setup.own_tokens * setup.model.hidden_size
    # Each tensor rank sends its part only, if the software cuts the message.
    if setup.software.splits_messages and not setup.layout.sequence_parallel:
        size /= setup.layout.tensor
    return between.latency / max(1, between.ranks - 1) + size / between.direct


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOrder:
    """The passes of a step without any message of data parallelism, in their order."""

    setup: TrainingSetup
    parts: LayersAndHead
    stages: tuple[Passes, ...]
    cluster: GpuCluster
    constants: Constants

    @classmethod
    def of(
        cls,
        setup: TrainingSetup,
        cluster: GpuCluster,
        *,
        constants: Constants,
        parts: LayersAndHead | None = None,
    ) -> PipelineOrder:
        """Return the step time of any kind of data parallelism.

        `parts` reuses another order's parts.

        Args:
            setup: model, batch and layout.
            cluster: GPUs and links.
            constants: calibrated efficiencies.
            parts: parts of another order.
        """
        # DDP without shards: the pass times that all kinds share.
        layout = replace(setup.layout, data_parallel=DataParallel.DDP, shard=1)
        plain = replace(setup, layout=layout)
        axes = fabric(setup, cluster, constants)
        if parts is None:
            parts = _parts_of(plain, axes, Speeds.of(cluster.gpu, constants, plain))
        stages = tuple(_passes_of(plain, axes, parts, range(setup.layout.stages)))
        return cls(setup=setup, parts=parts, stages=stages, cluster=cluster, constants=constants)

    def seconds(self) -> float:
        """Return a lower bound of the step time, from a walk of the order."""
        return _replayed(self.setup, self.stages)[0] + self.constants.step

    def least_seconds(self) -> float:
        """Return a lower bound of `seconds` without a walk of the order.

        It is the time until a rank has something to do, plus its work. If backward passes are
        whole, it includes the time until those of the earlier stages are done.
        """
        layout = self.setup.layout
        costs = [(each.forward.total, _backward((each,))) for each in self.stages]
        # `before` is the time until a place gets its first micro-batch.
        before, most = 0.0, 0.0
        for place in range(layout.pipeline):
            own = sum(sum(costs[stage]) for stage in layout.stages_of(place))
            most = max(most, before + self.setup.micro_batches * own)
            forward, back = costs[place]
            # Whole backward passes delay the end by the backward of the earlier stages too.
            before += forward if layout.schedule.splits_backward else forward + back
        return most + self.constants.step

    def seconds_after(self, setup: TrainingSetup) -> float:
        """Return the seconds after the pipeline: messages of data parallelism, and the optimizer.

        Together with `seconds` this is a whole step. Left out are gathers of FSDP in between, and
        parts that a pool measured.

        Args:
            setup: this setup with any kind of data parallelism.
        """
        cluster, constants = self.cluster, self.constants
        axes, first = fabric(setup, cluster, constants), setup.layout.stages_of(0)
        if setup.sharded:
            passes = _passes_of(setup, axes, self.parts, first)
        else:
            passes = [self.stages[stage] for stage in first]
        summing = constants.exposed(StepPart.DATA) * _data_parallel(setup, axes, passes)
        return summing + constants.exposed(StepPart.OPTIMIZER) * _optimizer(setup, cluster)


def _replayed(setup: TrainingSetup, stages: Sequence[Passes]) -> tuple[float, int]:
    """Return the seconds of all micro-batches, and the busiest rank."""
    layout, count = setup.layout, setup.micro_batches
    costs = tuple(
        StageSeconds(forward=p.forward.total, input=p.input.total, weight=p.weight.total)
        for p in stages
    )
    # Without a pipeline micro-batches follow each other, so no replay is needed.
    if layout.pipeline == 1:
        return count * (costs[0].of(Pass.FORWARD) + costs[0].of(Pass.BACKWARD)), 0
    replay = pipeline_seconds(layout.schedule, costs, ranks=layout.pipeline, micro_batches=count)
    return replay.seconds, max(range(layout.pipeline), key=lambda rank: replay.busy[rank])


def _pipeline(setup: TrainingSetup, stages: Sequence[Passes]) -> dict[StepBottleneck, float]:
    """Return the parts of the busiest rank, including its waiting time."""
    # The busiest rank is the one without a bubble of its own making.
    seconds, busiest = _replayed(setup, stages)
    count = setup.micro_batches
    own = NOTHING
    for passes in _of_rank(setup, stages, busiest):
        for each in (passes.forward, passes.input, passes.weight):
            own = own.plus(each, count=count)
    return {
        StepBottleneck.PRODUCTS: own.products,
        StepBottleneck.MEMORY: own.memory,
        StepBottleneck.TENSOR: own.tensor,
        StepBottleneck.CONTEXT: own.context,
        StepBottleneck.EXPERT: own.expert,
        # The bubble is what remains, so the parts add up to the replay.
        StepBottleneck.BUBBLE: max(0.0, seconds - own.total),
        StepBottleneck.STAGES: own.stages,
        StepBottleneck.DATA: own.data,
        StepBottleneck.HOST: own.host,
    }


def _data_parallel(setup: TrainingSetup, axes: Fabric, passes: Sequence[Passes]) -> float:
    """Return the exposed time of gradient reduction and weight gathering.

    With ZeRO the updated weights travel beside the next step's first forward pass.

    Args:
        setup: setup of the run.
        axes: its links.
        passes: passes of a micro-batch, on the stages of the first rank.
    """
    # Phase 1: bytes of gradients and of weights on this rank.
    layout, software = setup.layout, setup.software
    dense, experts = largest_learning(setup)
    if setup.lora is not None:
        dense, experts = trained_by_lora(setup), 0.0
    tied = _tied(setup, axes, dense)
    if setup.data_ranks == 1:
        return tied
    # 80 % of the last backward pass can hide messages: the first bucket waits for its layers.
    overlap = 0.8 if software.overlaps_data else 0.0
    hidden, hidden_ahead = overlap * _backward(passes), overlap * _forward(passes)
    size = software.gradient_bytes * (dense + experts)
    whole = setup.width * (dense + experts)
    # Phase 2: messages of each kind. reduce-scatter costs as much as all-gather.
    match layout.data_parallel:
        case DataParallel.FSDP:
            each = summing = axes.shard.all_gather(size)
            if layout.replicate > 1:
                summing += axes.replicate.all_reduce(size / setup.shard_ranks)
            # Sharded gradients are reduced after every micro-batch, whole ones after the last.
            before = setup.micro_batches - 1 if setup.memory.shard_gradients else 0
            return before * _exposed(each, hidden) + _exposed(summing, hidden) + tied
        case DataParallel.ZERO1:
            summing = axes.data.all_gather(size)
            sharing = _exposed(axes.data.all_gather(whole), hidden_ahead)
        case DataParallel.ZERO2:
            # A pipeline accumulates whole gradients, so it reduces once.
            rounds = setup.micro_batches if layout.pipeline == 1 else 1
            each = axes.data.all_gather(size)
            exposed = rounds * _exposed(each, hidden)
            return exposed + _exposed(axes.data.all_gather(whole), hidden_ahead) + tied
        case _:
            summing, sharing = axes.data.all_reduce(size), 0.0
    return _exposed(summing, hidden) + sharing + tied


def _exposed(seconds: float, hidden: float) -> float:
    """Return the exposed time of messages beside a pass. One bucket is never hidden."""
    # 2 % is the share of the last bucket.
    return max(0.02 * seconds, seconds - hidden)


def _tied(setup: TrainingSetup, axes: Fabric, dense: float) -> float:
    """Return the time to sum the two copies of a tied embedding."""
    layout, model = setup.layout, setup.model
    if layout.pipeline == 1 or not model.head_is_embedding or dense == 0:
        return 0.0
    shards = layout.tensor * setup.shard_ranks
    size = setup.software.gradient_bytes * model.vocab_size * model.hidden_size / shards
    # An all-reduce of two ranks moves the size twice.
    return 2 * size / axes.stages.direct


def _optimizer(setup: TrainingSetup, cluster: GpuCluster) -> float:
    """Return the time to read and write all weight state, and to compute the norm."""
    dense, experts = largest_learning(setup)
    if setup.lora is not None:
        dense, experts = trained_by_lora(setup), 0.0
    # Bytes per weight: AdamW reads and writes two fp32 moments (16), others one (8).
    moments = 16.0 if setup.optimizer is OptimizerKind.ADAMW else 8.0
    average = 12.0 if setup.averages else 0.0
    # 18: gradient read twice with the norm (8), weight read and written (8), bf16 copy (2).
    size = (dense + experts) / setup.shard_ranks * (moments + average + 18.0)
    places = {setup.memory.offload_optimizer, setup.memory.offload_parameters} - {Offload.NONE}
    # 80 % of the memory bandwidth is what elementwise kernels reach.
    slowest = min(map(host_bandwidth, places), default=0.8 * cluster.gpu.memory_bandwidth)
    return size / slowest
