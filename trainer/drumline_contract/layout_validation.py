"""Rules that decide whether a layout can train a configuration. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from drumline_contract.config import (
    Compile,
    ConfigError,
    DataParallel,
    Family,
    ModelConfig,
    Recompute,
    Schedule,
    ServerConfig,
    TrainerConfig,
)
from drumline_contract.config.bounds import nearest_multiples
from drumline_contract.config.lora import EXPERT_PROJECTIONS
from drumline_contract.layout import Layout
from drumline_contract.shapes.attention import shares_heads
from drumline_contract.shapes.weight_sizes import learning_weights

_MAX_WHOLE_GRADIENT_BYTES = 8 * 2**30


class ViolationReason(StrEnum):
    """Why a layout is not supported."""

    WORLD_SIZE = "WorldSize"
    REPLICATE = "ReplicateNeedsFsdp"
    HEADS = "HeadsDoNotDivide"
    EXPERT_BIASES = "BiasesOfExperts"
    HEAD_NORMS = "NormsSpanHeads"
    FFN = "FfnDoesNotDivide"
    SEQUENCE = "SequenceDoesNotDivide"
    POSITIONS = "TooFewPositions"
    IMAGES = "ImagesHaveNoContext"
    SCORES = "ScoresHaveNoContext"
    WINDOWS = "WindowsHaveNoContext"
    LAYERS = "TooFewLayers"
    SELECTIVE = "SelectiveNeedsWholeBackward"
    STAGES_PER_RANK = "StagesPerRank"
    MICRO_BATCHES = "TooFewMicroBatches"
    UNEVEN_MICRO_BATCHES = "UnevenMicroBatches"
    ROUNDS = "UnevenRounds"
    BATCH = "BatchDoesNotDivide"
    NO_EXPERTS = "NoExperts"
    EXPERTS = "ExpertsDoNotDivide"
    EXPERT_RANKS = "ExpertRanksDoNotDivide"
    NODES = "CopiesDoNotFillNodes"
    SERVERS = "TooManyServers"
    COMPILED = "CompiledLayersAreWhole"
    PREFERENCES = "PreferencesNeedWholeLogits"
    FROZEN = "FrozenStagesGoNotBackward"
    TRANSFORMERS = "ModulesOfTransformersAreWhole"
    PROMPTS = "PromptsNeedWholeLogits"
    ADAPTED_EXPERTS = "AdaptedExpertsAreWhole"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A reason why a layout cannot train a configuration, with the sentence for people."""

    reason: ViolationReason
    text: str
    """Begins with the field at fault; says the figures and what would work."""


def violations(config: TrainerConfig, *, world_size: int) -> tuple[Violation, ...]:
    """Return the reasons why this configuration cannot run on `world_size` ranks."""
    try:
        layout = Layout.of(config.parallelism, world_size=world_size)
    except ConfigError as error:
        # `Layout.of` raises one error type for two causes, and tests and events need the cause.
        about_copies = str(error).startswith("parallelism.replicate")
        reason = ViolationReason.REPLICATE if about_copies else ViolationReason.WORLD_SIZE
        return (Violation(reason=reason, text=str(error)),)
    return tuple(_violations(layout, config))


def worker_layout(layout: Layout, config: TrainerConfig) -> tuple[Layout, TrainerConfig]:
    """Return layout and configuration of one worker that steps without waiting for others.

    A worker is usually the whole run. With local SGD, a worker is one copy of the model. With
    asynchronous servers, a worker is the copies of a node. The returned configuration has the
    worker's share of the run's global batch.
    """
    degrees = config.parallelism
    # Each worker sees its share only, so all later rules apply to one worker.
    if not degrees.independent:
        return layout, config
    # Copies of a node sum their gradients first, so they form one worker.
    copies = degrees.server.copies_per_node if degrees.asynchronous else 1
    # At least 1: a batch that does not divide is a violation of its own.
    batch = max(1, config.global_batch_size * copies // layout.replicate)
    return layout.with_replicas(copies), replace(config, global_batch_size=batch)


def validated_layout(config: TrainerConfig, *, world_size: int) -> Layout:
    """Return the layout of this configuration on `world_size` ranks.

    Raises:
        ConfigError: the layout is not valid; the message is the first violation.
    """
    against = violations(config, world_size=world_size)
    if against:
        raise ConfigError(against[0].text)
    layout = Layout.of(config.parallelism, world_size=world_size)
    # Plans of transformers leave activations between layers whole on every tensor rank.
    by_position = layout.sequence_parallel and config.model.family is not Family.TRANSFORMERS
    return replace(layout, sequence_parallel=by_position)


def micro_batch_count(layout: Layout, config: TrainerConfig) -> int:
    """Return the number of micro-batches of a rank's share of the global batch.

    Without `micro_batch_size` the result is 1. With a pipeline it is the smallest valid divisor of
    the share that is at least twice the number of stages' ranks.
    """
    # The share of one rank in sequences.
    share = max(1, config.global_batch_size // layout.batch_ranks)  # fewer samples are a violation
    if config.micro_batch_size is not None:
        # Ceiling division: the last micro-batch may be smaller without a pipeline.
        return -(-share // config.micro_batch_size)
    if layout.pipeline == 1:
        return 1
    # 2 micro-batches for each rank keep the bubble of 1F1B below a third.
    enough = max(min_micro_batches(layout), 2 * layout.pipeline)
    # Divisors ascend, so the first valid one has the largest micro-batches.
    possible = (parts for parts in divisors(share) if parts >= enough and _even(layout, parts))
    return next(possible, share)


def shards_gradients(layout: Layout, config: TrainerConfig, *, learning: int | None = None) -> bool:
    """Return whether FSDP sums gradients over the ranks after each micro-batch.

    The default is true if unsharded fp32 gradients of the trained weights need more than 8 GiB.
    Summing only once sends less, but costs 4 bytes per parameter on every rank from the second
    micro-batch on. An elastic job that loses half of its ranks continues with two micro-batches
    instead of one. A model of 70 billion parameters would then need 270 GiB more during a recovery.
    The result depends only on the model, so it is the same at every size of the job.

    Args:
        layout: layout of the ranks.
        config: configuration of the run.
        learning: number of trained weights; None: computed from the model's shapes.
    """
    chosen = config.memory.shard_gradients
    if chosen is not None:
        return chosen
    # Without FSDP or with a pipeline, gradients are summed once by construction.
    if layout.data_parallel is not DataParallel.FSDP or layout.pipeline > 1:
        return False
    # Adapters are small, so whole gradients cost little.
    if config.lora is not None:
        return False
    if learning is None:
        learning = learning_weights(config.model, trainable=config.trainable, freeze=config.freeze)
    # fp32 gradients have 4 bytes. The tensor axis already divides them.
    return 4 * learning // layout.tensor > _MAX_WHOLE_GRADIENT_BYTES


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number, ascending. O(sqrt(number))."""
    # Pairs of divisors meet at the square root.
    small = [part for part in range(1, math.isqrt(number) + 1) if number % part == 0]
    large = [number // part for part in reversed(small) if part * part != number]
    return small + large


def _even(layout: Layout, parts: int) -> bool:
    """Return whether the micro-batches fill the rounds of the schedule."""
    if layout.schedule not in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE):
        return True
    # Rounds of equal size: the interleaved schedules have no partial round.
    return parts % max(1, parts // layout.pipeline) == 0


def _violations(layout: Layout, config: TrainerConfig) -> Iterator[Violation]:
    # Phase 1: rules of the whole run, before it is divided into workers.
    yield from _batch(layout, config)
    if layout.data_parallel is DataParallel.PARAMETER_SERVER:
        yield from _servers(layout, config.parallelism.server)
    # Phase 2: rules of one worker.
    layout, config = worker_layout(layout, config)
    # Sizes of modules of transformers are known to the ranks only, which check them.
    if config.model.family is Family.TRANSFORMERS:
        yield from _whole_modules(layout)
        return
    # Phase 3: the axes, each on its own, so that a user sees all violations at once.
    yield from _tensor(layout, config.model)
    yield from _sequence(layout, config)
    yield from _experts(layout, config.model)
    # Phase 4: features that need whole layers, logits or sequences.
    if config.lora is not None and config.lora.projections & {*EXPERT_PROJECTIONS}:
        yield from _adapted_experts(layout)
    if config.compile is not Compile.NONE:
        yield from _compiled(layout)
    if config.dpo is not None:
        yield from _preferences(layout)
    if config.evaluation is not None and config.evaluation.prompts is not None:
        yield from _prompts(layout)
    # torch's pipeline calls backward on every stage, and a frozen stage has no graph.
    if layout.pipeline > 1 and config.freezes:
        field = "freeze" if config.trainable is None else "trainable"
        yield Violation(
            reason=ViolationReason.FROZEN,
            text=f"{field}: every stage of a pipeline goes backward, and one that is frozen cannot;"
            " set parallelism.pipeline to 1, and share out the weights with fsdp",
        )
    # Phase 5: the pipeline and its micro-batches.
    if layout.pipeline > 1:
        yield from _pipeline(layout, config)
        if config.global_batch_size >= layout.batch_ranks:  # else `_batch` has said what is wrong
            yield from _micro_batches(layout, config)


def _batch(layout: Layout, config: TrainerConfig) -> Iterator[Violation]:
    batch, parts = config.global_batch_size, layout.batch_ranks
    if batch % parts:
        yield Violation(
            reason=ViolationReason.BATCH,
            text=f"global_batch_size: {batch} does not split evenly over {parts} ranks; use a"
            f" multiple of {parts}: {nearest_multiples(batch, of=parts)}",
        )


def _adapted_experts(layout: Layout) -> Iterator[Violation]:
    if layout.tensor > 1:
        yield Violation(
            reason=ViolationReason.ADAPTED_EXPERTS,
            text=f"lora.targets: parallelism.tensor {layout.tensor} cuts each expert; set it to 1,"
            " and use parallelism.expert or fsdp",
        )


def _compiled(layout: Layout) -> Iterator[Violation]:
    # A compiled layer has one backward graph, which cannot be split.
    if layout.pipeline > 1 and layout.schedule.splits_backward:
        yield Violation(
            reason=ViolationReason.COMPILED,
            text=f"compile: {layout.schedule} walks each stage twice backward, and a compiled layer"
            " goes backward as a whole; use 1f1b, or leave compile out",
        )


def _preferences(layout: Layout) -> Iterator[Violation]:
    axes = {"tensor": layout.tensor, "context": layout.context, "pipeline": layout.pipeline}
    # Only the first axis is named: one sentence for one correction.
    cut = next((axis for axis, degree in axes.items() if degree > 1), None)
    if cut is not None:
        yield Violation(
            reason=ViolationReason.PREFERENCES,
            text=f"dpo: compares whole answers, and {cut} {axes[cut]} cuts them or their logits;"
            f" set parallelism.{cut} to 1, and share out the weights with fsdp",
        )


def _prompts(layout: Layout) -> Iterator[Violation]:
    axes = {"tensor": layout.tensor, "context": layout.context, "pipeline": layout.pipeline}
    cut = next((axis for axis, degree in axes.items() if degree > 1), None)
    if cut is not None:
        yield Violation(
            reason=ViolationReason.PROMPTS,
            text=f"evaluation.prompts: needs the logits of whole sequences, and {cut} {axes[cut]}"
            " cuts them; leave the prompts out",
        )


def _whole_modules(layout: Layout) -> Iterator[Violation]:
    axes = {"context": layout.context, "pipeline": layout.pipeline, "expert": layout.expert}
    cut = next((axis for axis, degree in axes.items() if degree > 1), None)
    if cut is not None:
        yield Violation(
            reason=ViolationReason.TRANSFORMERS,
            text=f"parallelism.{cut}: {axes[cut]}, but a module of family transformers is cut by"
            f" tensor and fsdp only; set parallelism.{cut} to 1",
        )


def _servers(layout: Layout, server: ServerConfig) -> Iterator[Violation]:
    copies, together = layout.replicate, server.copies_per_node
    if copies % together:
        yield Violation(
            reason=ViolationReason.NODES,
            text=f"parallelism.server.copies_per_node: {copies} copies of the model do not divide"
            f" by {together}",
        )
    elif server.servers > copies // together:
        yield Violation(
            reason=ViolationReason.SERVERS,
            text=f"parallelism.server.servers: {server.servers} servers need as many workers; there"
            f" are {copies // together}",
        )


def _tensor(layout: Layout, model: ModelConfig) -> Iterator[Violation]:
    degree = layout.tensor
    # The norm's mean runs over all heads, and a tensor rank holds only its own.
    if degree > 1 and model.query_key_norm_over_heads:
        yield Violation(
            reason=ViolationReason.HEAD_NORMS,
            text=f"parallelism.tensor: {degree} ranks share the heads, and"
            " model.query_key_norm_over_heads normalizes all of them together; use fsdp or"
            " pipeline",
        )
    # The partial sums of an expert add up, and its bias would be added once for each rank.
    if degree > 1 and model.expert_bias:
        yield Violation(
            reason=ViolationReason.EXPERT_BIASES,
            text=f"parallelism.tensor: {degree} ranks add up what parts of an expert give, and with"
            " model.expert_bias each would add its bias; use expert parallelism",
        )
    # Whole heads stay on a rank, because attention mixes features within a head.
    if model.heads % degree:
        yield Violation(
            reason=ViolationReason.HEADS,
            text=f"parallelism.tensor: model.heads {model.heads} do not divide by {degree};"
            f" use a divisor of {model.heads}",
        )
    elif not shares_heads(model, degree):
        yield Violation(
            reason=ViolationReason.HEADS,
            text=f"parallelism.tensor: {degree} neither divides model.kv_heads {model.kv_heads} nor"
            f" is a multiple of them; use a divisor or a multiple of {model.kv_heads}",
        )
    # Both sizes are cut: experts by expert_ffn_size, dense layers by ffn_size.
    ffn = ("expert_ffn_size", model.features_per_expert) if model.experts else ("ffn_size", 0)
    for field, size in (ffn, ("ffn_size", model.ffn_size)):
        if size % degree:
            yield Violation(
                reason=ViolationReason.FFN,
                text=f"parallelism.tensor: model.{field} {size} does not divide by {degree}",
            )


def _sequence(layout: Layout, config: TrainerConfig) -> Iterator[Violation]:
    model, length = config.model, config.data.sequence_length
    field = "data.sequence_length"
    if model.family is Family.VIT:
        # A vision transformer has as many positions as patches and class tokens.
        field, length = "model.patch_size: positions of an image", model.image_positions
        if layout.context > 1:
            yield Violation(
                reason=ViolationReason.IMAGES,
                text=f"parallelism.context: {layout.context}, but images are not cut by position;"
                " use tensor or data parallelism",
            )
    # Learned positions end there. Rotary positions have no such limit.
    if model.family is Family.GPT2 and length > model.max_positions:
        yield Violation(
            reason=ViolationReason.POSITIONS,
            text=f"data.sequence_length: {length} is over model.max_positions"
            f" {model.max_positions}",
        )
    # The ring combines partial softmax results by their log-sum-exp. It knows no sinks and no caps.
    if model.writes_scores and layout.context > 1:
        field = "attention_sinks" if model.attention_sinks else "attention_softcap"
        yield Violation(
            reason=ViolationReason.SCORES,
            text=f"parallelism.context: {layout.context}, but its ring adds up scores that have no"
            f" model.{field}; use tensor or data parallelism",
        )
    if model.sliding_window is not None and layout.context > 1:
        yield Violation(
            reason=ViolationReason.WINDOWS,
            text=f"parallelism.context: {layout.context}, but the keys that travel its ring are"
            " those of all positions, and model.sliding_window asks for the nearest only; use"
            " tensor or data parallelism",
        )
    # Ring attention gives each rank one early and one late block to balance the causal mask, hence
    # 2.
    parts = 2 * layout.context if layout.context > 1 else 1
    # Sequence parallelism divides the positions of a context rank again.
    if layout.tensor > 1 and layout.sequence_parallel:
        parts = math.lcm(parts, layout.context * layout.tensor)
    if length % parts:
        yield Violation(
            reason=ViolationReason.SEQUENCE,
            text=f"{field}: {length} does not divide by {parts}, as context {layout.context} and"
            f" tensor {layout.tensor} need it{_without_sharing(layout, model)}",
        )


def _without_sharing(layout: Layout, model: ModelConfig) -> str:
    """Return advice for models whose class token makes the number of positions odd."""
    helps = model.family is Family.VIT and model.class_token and layout.sequence_parallel
    return "; or set parallelism.sequence_parallel to false" if helps else ""


def _experts(layout: Layout, model: ModelConfig) -> Iterator[Violation]:
    degree = layout.expert
    if degree == 1:
        return
    if not model.experts:
        yield Violation(
            reason=ViolationReason.NO_EXPERTS,
            text=f"parallelism.expert: {degree}, but the model has no experts; set model.experts",
        )
    elif model.experts % degree:
        yield Violation(
            reason=ViolationReason.EXPERTS,
            text=f"parallelism.expert: model.experts {model.experts} do not divide by {degree}",
        )
    # Experts take ranks from those that hold different samples.
    shared_by = layout.shard if layout.data_parallel is DataParallel.FSDP else layout.replicate
    if shared_by * layout.context % degree:
        yield Violation(
            reason=ViolationReason.EXPERT_RANKS,
            text=f"parallelism.expert: the {shared_by * layout.context} ranks that share samples"
            f" and sequences do not divide by {degree}",
        )


def _pipeline(layout: Layout, config: TrainerConfig) -> Iterator[Violation]:
    # torch's schedules fix the number of stages of a rank.
    schedule, per_rank = layout.schedule, layout.stages_per_rank
    if schedule.is_v_shaped and per_rank != 2:
        wanted = "exactly 2"
    elif schedule.interleaves and per_rank < 2:
        wanted = "at least 2"
    elif not schedule.interleaves and per_rank != 1:
        wanted = "exactly 1"
    else:
        wanted = ""
    if wanted:
        yield Violation(
            reason=ViolationReason.STAGES_PER_RANK,
            text=f"parallelism.stages_per_rank: {schedule} has {wanted}, not {per_rank}",
        )
    if config.model.layers < layout.stages:
        yield Violation(
            reason=ViolationReason.LAYERS,
            text=f"parallelism.pipeline: {layout.stages} stages need as many layers; the model has"
            f" {config.model.layers}",
        )
    # torch's selective checkpoint frees its kept results after the first backward pass.
    if schedule.splits_backward and config.memory.recompute is Recompute.SELECTIVE:
        yield Violation(
            reason=ViolationReason.SELECTIVE,
            text=f"memory.recompute: {schedule} walks each stage twice backward, and torch computes"
            " selectively forgotten activations once only; use blocks or full, or 1f1b",
        )


def _micro_batches(layout: Layout, config: TrainerConfig) -> Iterator[Violation]:
    parts, share = micro_batch_count(layout, config), config.global_batch_size // layout.batch_ranks
    # torch's pipeline splits a batch into equal chunks.
    if share % parts:
        yield Violation(
            reason=ViolationReason.UNEVEN_MICRO_BATCHES,
            text=f"micro_batch_size: a rank's share of {share} samples does not split into equal"
            f" micro-batches of {config.micro_batch_size}, and a pipeline needs them equal",
        )
    if not _even(layout, parts):
        yield Violation(
            reason=ViolationReason.ROUNDS,
            text=f"micro_batch_size: {layout.schedule} works in rounds of {layout.pipeline}"
            f" micro-batches, and {parts} do not divide into {parts // layout.pipeline} equal"
            " rounds",
        )
    needed = min_micro_batches(layout)
    if parts < needed:
        yield Violation(
            reason=ViolationReason.MICRO_BATCHES,
            text=f"micro_batch_size: {layout.schedule} over {layout.pipeline} ranks needs at least"
            f" {needed} micro-batches, not {parts}; lower it to {max(1, share // needed)}",
        )


def min_micro_batches(layout: Layout) -> int:
    """Return the smallest number of micro-batches that the schedule supports."""
    if layout.pipeline == 1:
        return 1
    # Fewer micro-batches than ranks would leave some ranks without any in the steady state.
    match layout.schedule:
        case Schedule.ONE_F_ONE_B:
            return layout.pipeline
        # DualPipeV fills the pipeline from both ends.
        case Schedule.DUAL_PIPE_V:
            return 2 * layout.pipeline
        case _:
            return 1
