"""Enumerate the search space, from the outside in.

    outer       degrees, micro-batch, recompute: how much a rank computes
    scheduled   and the order of a pipeline
    choice      and the kind of data parallelism

Only divisibility that needs no configuration is looked at here; whether a choice can be trained is
`layout_validation`'s word.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from drumline_contract.config import (
    DataParallel,
    Family,
    MemoryConfig,
    Offload,
    ParallelismConfig,
    Recompute,
    Schedule,
    TrainerConfig,
)
from drumline_contract.hardware import GpuCluster
from drumline_contract.shapes.attention import shares_heads
from drumline_planner.constants import CALIBRATED, Constants
from drumline_planner.correction import UNCORRECTED, MemoryCorrection
from drumline_planner.setup import DRUMLINE, Software


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptChoices:
    """Choices that the user fixed. None: to be chosen."""

    tensor: int | None = None
    pipeline: int | None = None
    context: int | None = None
    expert: int | None = None
    micro_batch: int | None = None
    replicate: int | None = None
    stages_per_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Input of the planner."""

    config: TrainerConfig
    """Model, batch, precision and other settings. Degrees and micro-batch are replaced."""
    cluster: GpuCluster
    software: Software = DRUMLINE
    constants: Constants = CALIBRATED
    reserve: float = 0.06
    """Share of the device's memory that a layout must leave free."""
    max_micro_batch: int = 32
    recomputes: tuple[Recompute, ...] = tuple(Recompute)
    host_activations: bool = False
    """True: activations may be kept in the host's memory, which is assumed to be large enough."""
    schedules: tuple[Schedule, ...] = tuple(Schedule)
    kinds: tuple[DataParallel, ...] = (
        DataParallel.DDP,
        DataParallel.ZERO1,
        DataParallel.ZERO2,
        DataParallel.FSDP,
    )
    max_stages_per_rank: int = 4
    kept: KeptChoices = KeptChoices()
    correction: MemoryCorrection = UNCORRECTED
    """Correction of every memory estimate, from a rehearsal."""

    @property
    def capacity(self) -> int:
        """Bytes that a layout may use."""
        return int(self.cluster.gpu.memory_bytes * (1 - self.reserve))


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Outer:
    """Choices that determine how much a rank computes."""

    tensor: int
    pipeline: int
    context: int
    expert: int
    micro_batch: int
    recompute: Recompute
    on_host: bool = False
    """True: activations are in the host's memory. False: they are where the configuration states.
    """


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Scheduled:
    """An outer choice with the order of its pipeline."""

    outer: Outer
    schedule: Schedule
    stages_per_rank: int


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Choice:
    """One point of the space."""

    outer: Outer
    schedule: Schedule
    stages_per_rank: int
    kind: DataParallel
    replicate: int


def configured(config: TrainerConfig, choice: Choice) -> TrainerConfig:
    """Return the configuration with this choice.

    Raises:
        ConfigError: the choice is invalid.
    """
    outer = choice.outer
    return replace(
        config,
        parallelism=ParallelismConfig(
            data_parallel=choice.kind,
            replicate=choice.replicate,
            tensor=outer.tensor,
            # Sequence parallelism is the user's setting, not a choice of the planner.
            sequence_parallel=config.parallelism.sequence_parallel,
            context=outer.context,
            pipeline=outer.pipeline,
            schedule=choice.schedule,
            stages_per_rank=choice.stages_per_rank if choice.schedule.interleaves else None,
            expert=outer.expert,
        ),
        memory=chosen_memory(config.memory, outer),
        micro_batch_size=outer.micro_batch,
    )


def chosen_memory(memory: MemoryConfig, outer: Outer) -> MemoryConfig:
    """Return the section with this choice.

    Raises:
        ConfigError: the choice is invalid.
    """
    on_host = Offload.CPU if outer.on_host else memory.offload_activations
    # Without a change the section stays as written, so an invalid combination is not built.
    if (memory.recompute, memory.offload_activations) == (outer.recompute, on_host):
        return memory
    return replace(memory, recompute=outer.recompute, offload_activations=on_host)


def sparing(goal: Goal, outer: Outer) -> Iterator[Outer]:
    """Return alternatives that need less memory and are never faster, for layouts that do not fit.

    Recompute by blocks in place of full, and activations on the host.
    """
    # Blocks need less than full recompute but repeat more work.
    full = outer.recompute is Recompute.FULL
    if full and Recompute.BLOCKS in goal.recomputes and not outer.on_host:
        yield replace(outer, recompute=Recompute.BLOCKS)
    kept_here = goal.config.memory.offload_activations is Offload.NONE
    # Selective recompute cannot offload, since its kept products never pass the hooks.
    movable = outer.recompute is not Recompute.SELECTIVE and not outer.on_host
    if goal.host_activations and kept_here and movable:
        yield replace(outer, on_host=True)


def outer_choices(goal: Goal) -> Iterator[Outer]:
    """Yield outer choices. `sparing` has those that only memory can require."""
    config, world, kept = goal.config, goal.cluster.gpus, goal.kept
    # Phase 1: modes. Blocks are only tried where full recompute does not fit.
    recomputes = [
        mode
        for mode in goal.recomputes
        if (mode is not Recompute.BLOCKS or Recompute.FULL not in goal.recomputes)
        and (mode is not Recompute.SELECTIVE or config.memory.offload_activations is Offload.NONE)
    ]
    model = config.model
    # Phase 2: degrees. Each must divide what the ones before left.
    experts = _only(kept.expert, _divisors(model.experts) if model.experts else [1])
    tensors = [n for n in _divisors(math.gcd(model.heads, world)) if shares_heads(model, n)]
    for tensor in _only(kept.tensor, tensors):
        for context in _only_context(kept.context, config, world // tensor):
            for pipeline in _only(kept.pipeline, _divisors(world // tensor // context)):
                data = world // tensor // context // pipeline
                # A stage needs a layer, and every rank equal samples.
                if pipeline > model.layers or config.global_batch_size % data:
                    continue
                share = config.global_batch_size // data
                for micro_batch in _micro_batches(goal, share):
                    for expert in experts:
                        # Expert ranks are taken from the data and context ranks.
                        if data * context % expert:
                            continue
                        for recompute in recomputes:
                            yield Outer(
                                tensor=tensor,
                                pipeline=pipeline,
                                context=context,
                                expert=expert,
                                micro_batch=micro_batch,
                                recompute=recompute,
                            )


def scheduled_choices(goal: Goal, outer: Outer) -> Iterator[Scheduled]:
    """Yield all orders of an outer choice."""
    for schedule, stages in _schedules(goal, outer):
        yield Scheduled(outer=outer, schedule=schedule, stages_per_rank=stages)


def inner_choices(goal: Goal, scheduled: Scheduled) -> Iterator[Choice]:
    """Yield all kinds of data parallelism for an order."""
    outer = scheduled.outer
    data = goal.cluster.gpus // (outer.tensor * outer.context * outer.pipeline)
    for kind in goal.kinds:
        # With one rank per copy all kinds are the same, so only the first one is tried.
        if data == 1 and outer.context == 1 and kind is not goal.kinds[0]:
            continue
        copies = _copies(goal, outer, data) if kind is DataParallel.FSDP else [1]
        for replicate in copies:
            yield Choice(
                outer=outer,
                schedule=scheduled.schedule,
                stages_per_rank=scheduled.stages_per_rank,
                kind=kind,
                replicate=replicate,
            )


def _schedules(goal: Goal, outer: Outer) -> Iterator[tuple[Schedule, int]]:
    # One stage needs no order.
    if outer.pipeline == 1:
        yield Schedule.ONE_F_ONE_B, 1
        return
    for schedule in goal.schedules:
        if not schedule.interleaves:
            yield schedule, 1
        elif schedule.is_v_shaped:
            # V-shaped schedules have two stages on each rank by definition.
            yield schedule, 2
        elif goal.kept.stages_per_rank is not None:
            yield schedule, goal.kept.stages_per_rank
        else:
            for stages in range(2, goal.max_stages_per_rank + 1):
                if stages * outer.pipeline <= goal.config.model.layers:
                    yield schedule, stages


def _copies(goal: Goal, outer: Outer, data: int) -> list[int]:
    """Return the copies of HSDP: shards within a node or a domain, copies across; or no copies."""
    if goal.kept.replicate is not None:
        return _only(goal.kept.replicate, _divisors(data))
    inner = outer.tensor * outer.context
    # Shards within a node or a domain keep the gathers on fast links.
    sizes = {goal.cluster.gpus_per_node, goal.cluster.domain}
    shards = {size // inner for size in sizes if size % inner == 0}
    return [1, *sorted(data // s for s in shards if s > 1 and data % s == 0 and data > s)]


def _only(kept: int | None, legal: list[int]) -> list[int]:
    return legal if kept is None else [kept] if kept in legal else []


def _only_context(kept: int | None, config: TrainerConfig, ranks: int) -> list[int]:
    if kept is None:
        return _contexts(config, ranks)
    return [] if ranks % kept else [kept]


def _micro_batches(goal: Goal, share: int) -> list[int]:
    kept = goal.kept.micro_batch
    if kept is not None:
        return [min(kept, share)]
    # Divisors only: other sizes leave a smaller last micro-batch.
    return [size for size in _divisors(share) if size <= goal.max_micro_batch]


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0] if number < 64 else _large(number)


def _large(number: int) -> list[int]:
    # O(sqrt(n)): each small divisor has a large partner.
    low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*low, *(number // n for n in low)})


def _contexts(config: TrainerConfig, ranks: int) -> list[int]:
    """Return the degrees of context parallelism that leave at least 2048 positions to a rank."""
    if config.model.family is Family.VIT:
        return [1]
    # Shorter parts do not pay for the ring's messages.
    most = max(1, config.data.sequence_length // 2048)
    return [n for n in _divisors(ranks) if n <= most]
