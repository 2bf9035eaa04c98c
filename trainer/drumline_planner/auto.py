"""`parallelism.mode: auto`: a configuration whose layout is chosen, the same on every rank.

What differs from its default stays as it is written: a degree above 1, a kind of data parallelism
other than fsdp, a schedule, stages a rank, a micro-batch, a recompute mode. All else is chosen by
`search`. The choice is a function of the configuration and the cluster alone, so ranks that see the
same devices agree without a message, and `preflight` compares what they chose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from drumline_contract import StepPart
from drumline_contract.config import (
    ConfigError,
    DataParallel,
    LayoutMode,
    Offload,
    Recompute,
    Schedule,
    TrainerConfig,
)
from drumline_contract.hardware import LINKS, GpuCluster
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import divisors, violations
from drumline_contract.shapes.attention import shares_heads
from drumline_planner.machine import PROCESSOR
from drumline_planner.network import cluster_of
from drumline_planner.search import Planned, SearchResult, evaluate, search
from drumline_planner.space import Choice, Goal, KeptChoices, Outer, configured

UNLIMITED = 1 << 62
_BEST = 4
"""Number of layouts that are compared in the log."""
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The chosen layout and the reasons for it."""

    config: TrainerConfig
    """Configuration with this layout as explicit settings."""
    layout: Layout
    seconds: float
    """Predicted seconds of a step."""
    parts: dict[StepPart, float]
    """Predicted seconds of each part of a step."""
    memory_bytes: float
    """Predicted bytes of the fullest rank."""
    fits: bool
    """True if this leaves the reserve of the device free."""
    summary: str
    """Layout, micro-batch, recompute and their cost, in one line."""
    reasons: tuple[str, ...]
    """One sentence each about its bottleneck, the runner-up and rejected layouts."""


def is_auto(config: TrainerConfig) -> bool:
    """Return whether the layout is to be chosen."""
    return config.parallelism.mode is LayoutMode.AUTO


def choose(config: TrainerConfig, *, cluster: GpuCluster) -> Chosen:
    """Return the fastest layout that fits, or the smallest if none fits.

    Raises:
        ConfigError: no layout can train this with what is written; the message is the first
            violation.
    """
    goal = goal_of(config, cluster)
    # The best layout, and others for the log.
    result = search(goal, best=_BEST)
    planned = result.planned[0] if result.planned else smallest(goal)
    return Chosen(
        config=planned.config,
        layout=planned.layout,
        seconds=planned.time.seconds,
        parts=planned.time.by_part,
        memory_bytes=planned.bill.total,
        fits=bool(result.planned),
        summary=summary(planned, cluster),
        reasons=tuple(_reasons(planned, result, goal)),
    )


def goal_of(config: TrainerConfig, cluster: GpuCluster) -> Goal:
    """Return the goal: the choices to make, and the ones that stay as written."""
    degrees = config.parallelism
    goal = Goal(
        # MANUAL, so that checks of the result do not plan again.
        config=replace(config, parallelism=replace(degrees, mode=LayoutMode.MANUAL)),
        cluster=cluster,
        kept=KeptChoices(
            tensor=_written(degrees.tensor),
            pipeline=_written(degrees.pipeline),
            context=_written(degrees.context),
            expert=_written(degrees.expert),
            replicate=_written(degrees.replicate),
            micro_batch=config.micro_batch_size,
            stages_per_rank=degrees.stages_per_rank,
        ),
    )
    # Only settings that differ from their default are the user's.
    if degrees.schedule is not Schedule.ONE_F_ONE_B:
        goal = replace(goal, schedules=(degrees.schedule,))
    if degrees.data_parallel is not DataParallel.FSDP or degrees.replicate > 1:
        goal = replace(goal, kinds=(degrees.data_parallel,))
    if config.memory.recompute is not Recompute.NONE:
        goal = replace(goal, recomputes=(config.memory.recompute,))
    return goal


def check_choosable(config: TrainerConfig, *, world_size: int) -> None:
    """Check that some layout can train this, without a search and without devices.

    The check is bounded.

    Raises:
        ConfigError: none of the layouts that save most memory is legal. The message is the first
            violation of the plainest layout.
    """
    # Any cluster works, because legality does not depend on speeds.
    goal = goal_of(config, cluster_of(PROCESSOR, gpus=world_size, network=LINKS["ethernet-100g"]))
    for choice in _saving(goal):
        try:
            if not violations(configured(goal.config, choice), world_size=world_size):
                return
        except ConfigError:
            continue
    raise ConfigError(_why_none(goal))


def smallest(goal: Goal) -> Planned:
    """Return the layout with the least memory, among the layouts that save most.

    Raises:
        ConfigError: none of them is legal. The message is the first violation of the plainest
            layout.
    """
    legal = [
        planned
        for planned in (evaluate(goal, choice, capacity=UNLIMITED) for choice in _saving(goal))
        if isinstance(planned, Planned)
    ]
    if not legal:
        raise ConfigError(_why_none(goal))
    return min(legal, key=lambda planned: planned.bill.total)


def summary(planned: Planned, cluster: GpuCluster) -> str:
    """Return layout, micro-batch, recompute, seconds of a step and memory as text."""
    return (
        f"{planned.layout}, micro-batch {planned.setup.micro_batch}, recompute"
        f" {recompute_words(planned)}: {planned.time.seconds:.3g} s per step and"
        f" {planned.bill.total / _GIB:.1f} of {cluster.gpu.memory_bytes / _GIB:.1f} GiB predicted"
    )


def recompute_words(planned: Planned) -> str:
    """Describe which activations are recomputed, and where the others are kept."""
    place = planned.setup.memory.offload_activations
    mode = str(planned.setup.recompute)
    return mode if place is Offload.NONE else f"{mode}, rest on {place}"


def _why_none(goal: Goal) -> str:
    against = violations(goal.config, world_size=goal.cluster.gpus)
    if against:
        return against[0].text
    return f"parallelism: no layout of {goal.cluster.gpus} ranks satisfies the given degrees"


def _written(degree: int) -> int | None:
    return degree if degree > 1 else None


def _saving(goal: Goal) -> Iterator[Choice]:
    """Yield choices that need little memory: full recompute, single samples, everything sharded."""
    kept, gpus, model = goal.kept, goal.cluster.gpus, goal.config.model
    heads = [n for n in divisors(model.heads) if shares_heads(model, n)]
    # Tensor degrees stay within a domain, where messages are fast.
    tensors = [kept.tensor] if kept.tensor else [n for n in heads if n <= goal.cluster.domain]
    pipelines = [kept.pipeline] if kept.pipeline else [1, 2, 4, 8]
    experts = [kept.expert] if kept.expert else [1, min(8, model.experts) or 1]
    recompute = Recompute.FULL if Recompute.FULL in goal.recomputes else goal.recomputes[0]
    kind = DataParallel.FSDP if DataParallel.FSDP in goal.kinds else goal.kinds[-1]
    schedule = Schedule.ONE_F_ONE_B
    if schedule not in goal.schedules:
        schedule = goal.schedules[0]
    # The bound keeps the check short for unusual models.
    for tensor, pipeline, expert in product(tensors[:16], pipelines, sorted(set(experts))):
        together = tensor * pipeline * (kept.context or 1)
        if gpus % together:
            continue
        # in one micro-batch fsdp holds no whole gradients, in several it holds fewer activations
        share = max(1, goal.config.global_batch_size * together // gpus)
        sizes = {1, min(share, goal.max_micro_batch)}
        for micro_batch in [kept.micro_batch] if kept.micro_batch else sorted(sizes):
            yield Choice(
                outer=Outer(
                    tensor=tensor,
                    pipeline=pipeline,
                    context=kept.context or 1,
                    expert=expert,
                    micro_batch=micro_batch,
                    recompute=recompute,
                ),
                schedule=schedule,
                stages_per_rank=kept.stages_per_rank or (2 if schedule.interleaves else 1),
                kind=kind,
                replicate=kept.replicate or 1,
            )


def _reasons(planned: Planned, result: SearchResult, goal: Goal) -> Iterator[str]:
    cluster = goal.cluster
    yield (
        f"planned for {cluster.gpus} x {cluster.gpu.name}: {result.space} shapes considered,"
        f" {result.examined} layouts computed"
    )
    if not result.planned:
        yield (
            f"no layout fits in {goal.capacity / _GIB:.1f} GiB; this is the smallest, and it may"
            " run out of memory: use more or larger GPUs, or memory.offload_optimizer"
        )
        return
    yield f"the largest part of its step besides products is {planned.time.bottleneck}"
    for other in result.planned[1:]:
        slower = other.time.seconds / planned.time.seconds - 1
        yield f"{100 * slower:.1f} % slower: {summary(other, cluster)}"
    too_large = [each for each in result.rejected if each.reason.startswith("memory")]
    for rejected in too_large[:2]:
        outer = rejected.choice.outer
        yield (
            f"too large: tensor {outer.tensor}, pipeline {outer.pipeline}, context {outer.context},"
            f" micro-batch {outer.micro_batch}, recompute {outer.recompute}: {rejected.reason}"
        )
