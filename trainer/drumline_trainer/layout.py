"""Who does what: the ranks of a run on named axes, and the only judge of what is legal. No torch.

Ranks are counted with the tensor axis fastest, so that its neighbours share a node, and the
pipeline axis slowest:

    rank = (((pp · R + dp_replicate) · D + dp_shard) · C + cp) · T + tp

Axes that share something are made of these: `fsdp` (dp_shard and cp: the ranks that shards of
weights lie on), `dp` (dp_replicate, dp_shard and cp: the ranks whose gradients are summed). The
expert axis `ep` takes its ranks from the innermost of `fsdp`, or of `dp` where weights are not
sharded; `expert_fsdp` and `expert_dp` are what is left of those for an expert's weights.

The operator checks specs against it, a planner enumerates it, and the trainer builds its process
groups from `groups`: one value, three readers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from drumline_trainer.config import (
    ConfigError,
    DataParallel,
    ModelConfig,
    ParallelismConfig,
    Schedule,
    TrainerConfig,
)


class Axis(StrEnum):
    """Names of sets of ranks."""

    PIPELINE = "pp"
    REPLICATE = "dp_replicate"
    SHARD = "dp_shard"
    CONTEXT = "cp"
    TENSOR = "tp"
    FSDP = "fsdp"
    DATA = "dp"
    EXPERT = "ep"
    EXPERT_FSDP = "expert_fsdp"
    EXPERT_DATA = "expert_dp"


class Reason(StrEnum):
    """Why a layout is illegal; every refusal carries one."""

    WORLD_SIZE = "WorldSize"
    REPLICATE = "ReplicateNeedsFsdp"
    HEADS = "HeadsDoNotDivide"
    FFN = "FfnDoesNotDivide"
    SEQUENCE = "SequenceDoesNotDivide"
    LAYERS = "TooFewLayers"
    STAGES_PER_RANK = "StagesPerRank"
    MICRO_BATCHES = "TooFewMicroBatches"
    UNEVEN_MICRO_BATCHES = "UnevenMicroBatches"
    ROUNDS = "UnevenRounds"
    BATCH = "BatchDoesNotDivide"
    NO_EXPERTS = "NoExperts"
    EXPERTS = "ExpertsDoNotDivide"
    EXPERT_RANKS = "ExpertRanksDoNotDivide"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection:
    """One reason not to run a layout, with the sentence for people."""

    reason: Reason
    text: str
    """Begins with the field at fault; says the figures and what would work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinate:
    """A rank's place on each axis."""

    pipeline: int
    replicate: int
    shard: int
    context: int
    tensor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Degrees of a run; immutable, hashable, printable."""

    data_parallel: DataParallel = DataParallel.FSDP
    replicate: int = 1
    shard: int = 1
    """1 unless data_parallel is fsdp."""
    context: int = 1
    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    sequence_parallel: bool = True
    schedule: Schedule = Schedule.ONE_F_ONE_B
    stages_per_rank: int = 1

    @classmethod
    def of(cls, config: ParallelismConfig, *, world_size: int) -> Layout:
        """Give the ranks that no other axis takes to data parallelism.

        Raises:
            ConfigError: the degrees do not divide the number of ranks.
        """
        taken = config.tensor * config.context * config.pipeline
        fsdp = config.data_parallel is DataParallel.FSDP
        if not fsdp and config.replicate != 1:
            raise ConfigError(
                f"parallelism.replicate: is for fsdp; {config.data_parallel} replicates over all"
                " ranks that are left, so leave it out"
            )
        if world_size % (taken * config.replicate):
            raise ConfigError(
                f"parallelism: {world_size} ranks do not divide by {taken * config.replicate}, the"
                " product of tensor, context, pipeline and replicate"
            )
        left = world_size // taken
        interleaves = config.pipeline > 1 and config.schedule.interleaves
        return cls(
            data_parallel=config.data_parallel,
            replicate=config.replicate if fsdp else left,
            shard=left // config.replicate if fsdp else 1,
            context=config.context,
            tensor=config.tensor,
            pipeline=config.pipeline,
            expert=config.expert,
            sequence_parallel=config.sequence_parallel,
            schedule=config.schedule,
            stages_per_rank=config.stages_per_rank or (2 if interleaves else 1),
        )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.pipeline * self.replicate * self.shard * self.context * self.tensor

    @property
    def batch_ranks(self) -> int:
        """Into how many parts a global batch is split: ranks of a part work on the same samples."""
        return self.replicate * self.shard

    @property
    def stages(self) -> int:
        """Parts of the pipeline."""
        return self.pipeline * self.stages_per_rank

    @property
    def keeps_gathered(self) -> bool:
        """Whether sharded weights stay whole from forward to backward.

        With split backward passes they must: torch computes silently wrong gradients from weights
        that were sharded again in between.
        """
        return self.pipeline > 1 and self.schedule.splits_backward

    def coordinate(self, rank: int) -> Coordinate:
        """Where a rank stands."""
        rest, tensor = divmod(rank, self.tensor)
        rest, context = divmod(rest, self.context)
        rest, shard = divmod(rest, self.shard)
        pipeline, replicate = divmod(rest, self.replicate)
        return Coordinate(
            pipeline=pipeline, replicate=replicate, shard=shard, context=context, tensor=tensor
        )

    def groups(self, axis: Axis) -> tuple[tuple[int, ...], ...]:
        """All sets of ranks along an axis, each in the order of the axis; every rank is in one."""
        sets: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.world_size):
            sets.setdefault(self._outside(axis, rank), []).append(rank)
        return tuple(tuple(ranks) for ranks in sets.values())

    def group_of(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """The set that this rank is in."""
        return next(ranks for ranks in self.groups(axis) if rank in ranks)

    def stages_of(self, pipeline: int) -> tuple[int, ...]:
        """Numbers of the stages at this place of the pipeline, in the order of the model."""
        if self.pipeline > 1 and self.schedule.is_v_shaped:
            return (pipeline, self.stages - 1 - pipeline)
        return tuple(range(pipeline, self.stages, self.pipeline))

    def __str__(self) -> str:
        """As people write it: `PP2 (1f1b) · FSDP2 · TP2`."""
        parts = [f"PP{self.pipeline} ({self.schedule})"] if self.pipeline > 1 else []
        hybrid = self.data_parallel is DataParallel.FSDP and self.replicate > 1
        parts += [f"HSDP{self.replicate}x{self.shard}"] if hybrid else []
        data = self.replicate * self.shard
        parts += [f"{self.data_parallel.upper()}{data}"] if data > 1 and not hybrid else []
        for name, degree in (("CP", self.context), ("TP", self.tensor), ("EP", self.expert)):
            parts += [f"{name}{degree}"] if degree > 1 else []
        return " · ".join(parts) or "one rank"

    def _outside(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """The rank's place on everything that is not this axis."""
        at = self.coordinate(rank)
        fsdp = at.shard * self.context + at.context
        data = at.replicate * self.shard * self.context + fsdp
        sharded = self.data_parallel is DataParallel.FSDP
        experts = fsdp if sharded else data
        match axis:
            case Axis.PIPELINE:
                return (at.replicate, at.shard, at.context, at.tensor)
            case Axis.REPLICATE:
                return (at.pipeline, at.shard, at.context, at.tensor)
            case Axis.SHARD:
                return (at.pipeline, at.replicate, at.context, at.tensor)
            case Axis.CONTEXT:
                return (at.pipeline, at.replicate, at.shard, at.tensor)
            case Axis.TENSOR:
                return (at.pipeline, at.replicate, at.shard, at.context)
            case Axis.FSDP:
                return (at.pipeline, at.replicate, at.tensor)
            case Axis.DATA:
                return (at.pipeline, at.tensor)
            case Axis.EXPERT:
                replica = at.replicate if sharded else 0
                return (at.pipeline, replica, experts // self.expert, at.tensor)
            case Axis.EXPERT_FSDP:
                return (at.pipeline, at.replicate, fsdp % self.expert, at.tensor)
            case Axis.EXPERT_DATA:
                return (at.pipeline, experts % self.expert, at.tensor)


def objections(config: TrainerConfig, *, world_size: int) -> tuple[Objection, ...]:
    """Everything that speaks against training this configuration on so many ranks; empty: go."""
    try:
        layout = Layout.of(config.parallelism, world_size=world_size)
    except ConfigError as error:
        about_copies = str(error).startswith("parallelism.replicate")
        reason = Reason.REPLICATE if about_copies else Reason.WORLD_SIZE
        return (Objection(reason=reason, text=str(error)),)
    return tuple(_objections(layout, config))


def checked_layout(config: TrainerConfig, *, world_size: int) -> Layout:
    """The layout of this configuration on so many ranks.

    Raises:
        ConfigError: it is illegal; the message is the first objection.
    """
    found = objections(config, world_size=world_size)
    if found:
        raise ConfigError(found[0].text)
    return Layout.of(config.parallelism, world_size=world_size)


def micro_batches(layout: Layout, config: TrainerConfig) -> int:
    """How many parts a rank's share of the global batch is done in.

    Where nothing is asked for: in one, or in a pipeline in two for each of its ranks, or the next
    number that divides the share.
    """
    share = config.global_batch_size // layout.batch_ranks
    if config.micro_batch_size is not None:
        return -(-share // config.micro_batch_size)
    if layout.pipeline == 1:
        return 1
    possible = [
        parts
        for parts in range(1, share + 1)
        if share % parts == 0 and parts >= least_micro_batches(layout) and _even(layout, parts)
    ]
    return next((parts for parts in possible if parts >= 2 * layout.pipeline), share)


def _even(layout: Layout, parts: int) -> bool:
    """Whether the micro-batches fill the rounds of the schedule."""
    if layout.schedule not in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE):
        return True
    return parts % max(1, parts // layout.pipeline) == 0


def _objections(layout: Layout, config: TrainerConfig) -> Iterator[Objection]:
    yield from _batch(layout, config)
    yield from _tensor(layout, config.model)
    yield from _sequence(layout, config)
    yield from _experts(layout, config.model)
    if layout.pipeline > 1:
        yield from _pipeline(layout, config)


def _batch(layout: Layout, config: TrainerConfig) -> Iterator[Objection]:
    batch, parts = config.global_batch_size, layout.batch_ranks
    if batch % parts:
        yield Objection(
            reason=Reason.BATCH,
            text=f"global_batch_size: {batch} does not split evenly over {parts} ranks; use a"
            f" multiple of {parts}",
        )


def _tensor(layout: Layout, model: ModelConfig) -> Iterator[Objection]:
    degree = layout.tensor
    for field, size in (("heads", model.heads), ("kv_heads", model.kv_heads)):
        if size % degree:
            yield Objection(
                reason=Reason.HEADS,
                text=f"parallelism.tensor: model.{field} {size} do not divide by {degree};"
                f" use a divisor of {size}",
            )
    if model.ffn_size % degree:
        yield Objection(
            reason=Reason.FFN,
            text=f"parallelism.tensor: model.ffn_size {model.ffn_size} does not divide by {degree}",
        )


def _sequence(layout: Layout, config: TrainerConfig) -> Iterator[Objection]:
    length = config.data.sequence_length
    parts = 2 * layout.context if layout.context > 1 else 1
    if layout.tensor > 1 and layout.sequence_parallel:
        parts = math.lcm(parts, layout.context * layout.tensor)
    if length % parts:
        yield Objection(
            reason=Reason.SEQUENCE,
            text=f"data.sequence_length: {length} does not divide by {parts}, as context"
            f" {layout.context} and tensor {layout.tensor} need it",
        )


def _experts(layout: Layout, model: ModelConfig) -> Iterator[Objection]:
    degree = layout.expert
    if degree == 1:
        return
    if not model.experts:
        yield Objection(
            reason=Reason.NO_EXPERTS,
            text=f"parallelism.expert: {degree}, but the model has no experts; set model.experts",
        )
    elif model.experts % degree:
        yield Objection(
            reason=Reason.EXPERTS,
            text=f"parallelism.expert: model.experts {model.experts} do not divide by {degree}",
        )
    shared_by = layout.shard if layout.data_parallel is DataParallel.FSDP else layout.replicate
    if shared_by * layout.context % degree:
        yield Objection(
            reason=Reason.EXPERT_RANKS,
            text=f"parallelism.expert: the {shared_by * layout.context} ranks that share samples"
            f" and sequences do not divide by {degree}",
        )


def _pipeline(layout: Layout, config: TrainerConfig) -> Iterator[Objection]:
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
        yield Objection(
            reason=Reason.STAGES_PER_RANK,
            text=f"parallelism.stages_per_rank: {schedule} has {wanted}, not {per_rank}",
        )
    if config.model.layers < layout.stages:
        yield Objection(
            reason=Reason.LAYERS,
            text=f"parallelism.pipeline: {layout.stages} stages need as many layers; the model has"
            f" {config.model.layers}",
        )
    yield from _micro_batches(layout, config)


def _micro_batches(layout: Layout, config: TrainerConfig) -> Iterator[Objection]:
    parts, share = micro_batches(layout, config), config.global_batch_size // layout.batch_ranks
    if share % parts:
        yield Objection(
            reason=Reason.UNEVEN_MICRO_BATCHES,
            text=f"micro_batch_size: a rank's share of {share} samples does not split into equal"
            f" micro-batches of {config.micro_batch_size}, and a pipeline needs them equal",
        )
    if not _even(layout, parts):
        yield Objection(
            reason=Reason.ROUNDS,
            text=f"micro_batch_size: {layout.schedule} works in rounds of {layout.pipeline}"
            f" micro-batches, and {parts} do not divide into {parts // layout.pipeline} equal"
            " rounds",
        )
    needed = least_micro_batches(layout)
    if parts < needed:
        yield Objection(
            reason=Reason.MICRO_BATCHES,
            text=f"micro_batch_size: {layout.schedule} over {layout.pipeline} ranks needs at least"
            f" {needed} micro-batches, not {parts}; lower it to {max(1, share // needed)}",
        )


def least_micro_batches(layout: Layout) -> int:
    """Below so many the schedule cannot begin."""
    if layout.pipeline == 1:
        return 1
    match layout.schedule:
        case Schedule.ONE_F_ONE_B:
            return layout.pipeline
        case Schedule.DUAL_PIPE_V:
            return 2 * layout.pipeline
        case _:
            return 1
