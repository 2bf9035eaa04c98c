"""The ranks of a run on named axes. No torch.

The tensor axis varies fastest, so that its neighbours share a node. The pipeline axis varies
slowest:

    rank = (((pp · R + dp_replicate) · D + dp_shard) · C + cp) · T + tp

Composed axes share state or sums. `fsdp` is dp_shard and cp: the ranks that hold shards of one
weight. `dp` is dp_replicate, dp_shard and cp: the ranks that sum gradients. The expert axis `ep`
takes its ranks from the innermost of `fsdp`, or of `dp` if weights are not sharded. `expert_fsdp`
and `expert_dp` are the remaining factors for an expert's weights.

The operator and the trainer validate a layout (`layout_validation`). The trainer makes its process
groups from `groups`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from enum import StrEnum

from drumline_contract.config import ConfigError, DataParallel, ParallelismConfig, Schedule
from drumline_contract.config.bounds import nearest_divisors


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
        # Data parallelism takes the ranks that remain.
        taken = config.tensor * config.context * config.pipeline
        fsdp = config.data_parallel is DataParallel.FSDP
        if not fsdp and config.replicate != 1:
            raise ConfigError(
                f"parallelism.replicate: is for fsdp; {config.data_parallel} replicates over all"
                " ranks that are left, so leave it out"
            )
        # The product must divide the world, or some ranks would have no place.
        if world_size % (taken * config.replicate):
            product = taken * config.replicate
            raise ConfigError(
                f"parallelism: {world_size} ranks do not divide by {product}, the product of"
                " tensor, context, pipeline and replicate;"
                f" {nearest_divisors(product, of=world_size)} would do"
            )
        # FSDP splits the rest into copies and shards. The other kinds only have copies.
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
        """True if sharded weights stay gathered from forward to backward.

        Split backward passes need this. PyTorch silently computes wrong gradients if weights were
        sharded again between the two parts.
        """
        return self.pipeline > 1 and self.schedule.splits_backward

    def coordinate(self, rank: int) -> Coordinate:
        """Return the coordinates of a rank on the basic axes."""
        # Peel off the axes from the fastest to the slowest.
        rest, tensor = divmod(rank, self.tensor)
        rest, context = divmod(rest, self.context)
        rest, shard = divmod(rest, self.shard)
        pipeline, replicate = divmod(rest, self.replicate)
        return Coordinate(
            pipeline=pipeline, replicate=replicate, shard=shard, context=context, tensor=tensor
        )

    def groups(self, axis: Axis) -> tuple[tuple[int, ...], ...]:
        """Return all sets of ranks along an axis, in its order; every rank is in one."""
        return _groups(self, axis)

    def group_of(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """Return the group on this axis that contains the rank."""
        # Groups are cached, so this is a search in one axis only.
        return next(ranks for ranks in self.groups(axis) if rank in ranks)

    def with_replicas(self, copies: int) -> Layout:
        """Return the layout of `copies` replicas of the model that step without the others."""
        servers = self.data_parallel is DataParallel.PARAMETER_SERVER
        # One node's copies sum their gradients as DDP before the server sees them.
        kind = DataParallel.DDP if servers else self.data_parallel
        return replace(self, replicate=copies, data_parallel=kind)

    def replica_blocks(self, copies: int) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of each block of `copies` neighbours on the axis `dp_replicate`."""
        sets: list[list[int]] = [[] for _ in range(self.replicate // copies)]
        for rank in range(self.world_size):
            sets[self.coordinate(rank).replicate // copies].append(rank)
        return tuple(map(tuple, sets))

    def stages_of(self, pipeline: int) -> tuple[int, ...]:
        """Return the stages at this place of the pipeline, in the order of the model."""
        # The V: a rank holds a stage from the front and its mirror from the back.
        if self.pipeline > 1 and self.schedule.is_v_shaped:
            return (pipeline, self.stages - 1 - pipeline)
        # The loop: stages go around the ranks.
        return tuple(range(pipeline, self.stages, self.pipeline))

    def __str__(self) -> str:
        """Return a short text: `PP2 (1f1b) · FSDP2 · TP2`, `PP4 (interleaved x2)`, `ZERO1x8`.

        `ZERO1 · CP4` is one copy whose state is sharded over its context ranks only.
        """
        several = f" x{self.stages_per_rank}" if self.stages_per_rank > 1 else ""
        parts = [f"PP{self.pipeline} ({self.schedule}{several})"] if self.pipeline > 1 else []
        # HSDP names both degrees, so that the text is unambiguous.
        hybrid = self.data_parallel is DataParallel.FSDP and self.replicate > 1
        parts += [f"HSDP{self.replicate}x{self.shard}"] if hybrid else []
        data = self.replicate * self.shard
        kind = self.data_parallel.upper()
        times = "x" if kind[-1].isdecimal() else ""
        if data > 1 and not hybrid:
            parts += [f"{kind}{times}{data}"]
        elif self.context > 1 and not hybrid:
            parts += [kind]
        for name, degree in (("CP", self.context), ("TP", self.tensor), ("EP", self.expert)):
            parts += [f"{name}{degree}"] if degree > 1 else []
        return " · ".join(parts) or "one rank"

    def group_key(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """Return the rank's coordinates on all other axes. Ranks with equal keys form a group."""
        at = self.coordinate(rank)
        # Position along fsdp: shard, then context.
        fsdp = at.shard * self.context + at.context
        # Position along dp: replica, shard, context.
        data = at.replicate * self.shard * self.context + fsdp
        sharded = self.data_parallel is DataParallel.FSDP
        # Experts are taken from the innermost ranks, which are closest in the network.
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


@functools.lru_cache(maxsize=64)
def _groups(layout: Layout, axis: Axis) -> tuple[tuple[int, ...], ...]:
    """Compute the groups of an axis. Cached, because callers ask once per weight."""
    sets: dict[tuple[int, ...], list[int]] = {}
    for rank in range(layout.world_size):
        # Ranks ascend, so each group is in the order of its axis on every rank.
        sets.setdefault(layout.group_key(axis, rank), []).append(rank)
    return tuple(tuple(ranks) for ranks in sets.values())
