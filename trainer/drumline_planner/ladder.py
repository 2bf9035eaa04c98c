"""The field's order of measures, with what each would save here: cheap ones first.

    1 the rule        16 bytes a parameter, before any activation
    2 cheap fixes     smaller micro-batches, recompute: time, but no wire
    3 sharding        ZeRO-1, ZeRO-2, FSDP: what all ranks have, shared out
    4 tensor          inside a node's links
    5 pipeline        over the network, with its bubble
    6 all three       and experts, where the model has them

Each rung keeps the cheaper ones below it. The first that fits is the least that helps. The orders
for a batch that is too small and a run that takes too long are `decision_sequences`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from drumline_contract.config import ConfigError, DataParallel, Offload, Recompute, Schedule
from drumline_contract.shapes.attention import shares_heads
from drumline_contract.shapes.flops import weights
from drumline_planner.decision_sequences import DecisionSequence, batch_too_small, run_too_long
from drumline_planner.search import Planned, evaluate
from drumline_planner.space import Choice, Goal, Outer
from drumline_planner.step_time import StepBottleneck

_UNLIMITED = 1 << 62
_BYTES_A_PARAMETER = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One measure."""

    name: str
    size: float | None
    """Bytes of the fullest rank. None: the measure is not possible here."""
    fits: bool
    seconds: float | None
    """Seconds of a step."""
    saves: float | None = None
    """Bytes saved relative to the possible rung above it. Negative if it needs more."""
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Sentences of the planner."""

    rule: str
    rungs: tuple[Rung, ...]
    sequences: tuple[DecisionSequence, ...]
    """Measures for other failures of this goal."""
    sentences: tuple[str, ...]


def advice(goal: Goal, best: Planned | None, *, total_tokens: float | None = None) -> Advice:
    """Return the ladder, and the advice for each failure mode of the goal.

    Args:
        goal: model, batch and GPUs to plan for.
        best: fastest layout. None: none fits.
        total_tokens: tokens of the run. None: unknown.
    """
    rungs = _with_savings(_rungs(goal))
    sequences = (
        batch_too_small(goal, best),
        run_too_long(goal, best, total_tokens=total_tokens),
    )
    shown = tuple(sequence for sequence in sequences if sequence is not None)
    count = weights(goal.config.model)
    rule = (
        f"{count / 1e9:.2f} G parameters x {_BYTES_A_PARAMETER} bytes (fp32 weight, gradient and"
        f" two moments) = {_BYTES_A_PARAMETER * count / 2**30:.1f} GiB before any activation;"
        f" one {goal.cluster.gpu.name} has {goal.cluster.gpu.memory_bytes / 2**30:.1f} GiB"
    )
    sentences = [
        *_too_big(rungs),
        *(sentence for sequence in shown for sentence in sequence.sentences),
        *_bottleneck_advice(best),
    ]
    return Advice(rule=rule, rungs=rungs, sequences=shown, sentences=tuple(sentences))


def _with_savings(rungs: list[Rung]) -> tuple[Rung, ...]:
    """Return the rungs with the bytes that each saves over the possible rung above it."""
    possible = [rung for rung in rungs if rung.size is not None]
    saves = {
        after.name: (before.size or 0.0) - (after.size or 0.0)
        for before, after in pairwise(possible)
    }
    return tuple(replace(rung, saves=saves.get(rung.name)) for rung in rungs)


def _rungs(goal: Goal) -> list[Rung]:
    gpus, model = goal.cluster.gpus, goal.config.model
    tensor = _tensor(goal)
    pipeline = next((p for p in (2, 4, 8) if gpus % p == 0 and p <= model.layers), 1)
    none, full = Recompute.NONE, Recompute.FULL
    ddp, fsdp = DataParallel.DDP, DataParallel.FSDP
    whole = max(1, goal.config.global_batch_size // gpus)
    plain = Outer(tensor=1, pipeline=1, context=1, expert=1, micro_batch=whole, recompute=none)
    small = replace(plain, micro_batch=1)
    least = replace(small, recompute=full)
    rungs = [
        ("a copy on every GPU (DDP)", plain, ddp),
        ("micro-batches of 1", small, ddp),
        ("recompute: selective", replace(small, recompute=Recompute.SELECTIVE), ddp),
        ("recompute: full", least, ddp),
        ("ZeRO-1", least, DataParallel.ZERO1),
        ("ZeRO-2", least, DataParallel.ZERO2),
        ("FSDP (ZeRO-3)", least, fsdp),
    ]
    if model.experts:
        expert = max(n for n in (1, 2, 4, 8) if model.experts % n == 0 and gpus % n == 0)
        rungs.append((f"FSDP, experts over {expert}", replace(least, expert=expert), fsdp))
    shown = [_rung(goal, name, outer, kind) for name, outer, kind in rungs]
    shown += _rungs_on_host(goal, least)
    split: list[tuple[str, Outer]] = []
    if tensor > 1:
        split.append((f"FSDP and tensor {tensor}", replace(least, tensor=tensor)))
    if pipeline > 1:
        split.append((f"FSDP and pipeline {pipeline}", replace(least, pipeline=pipeline)))
    if tensor > 1 and pipeline > 1:
        both = replace(least, tensor=tensor, pipeline=pipeline)
        split.append((f"FSDP, tensor {tensor} and pipeline {pipeline}", both))
    return shown + [_rung(goal, name, outer, fsdp) for name, outer in split]


def _rungs_on_host(goal: Goal, least: Outer) -> list[Rung]:
    memory = replace(goal.config.memory, offload_optimizer=Offload.CPU)
    outers = {
        "FSDP, optimizer on the host": least,
        "FSDP, optimizer and layers' inputs on the host": replace(least, on_host=True),
    }
    try:
        host = replace(goal, config=replace(goal.config, memory=memory))
    except ConfigError as error:
        # Such as local SGD, whose optimizer stays on the devices.
        return [
            Rung(name=name, size=None, fits=False, seconds=None, why_not=str(error))
            for name in outers
        ]
    return [_rung(host, name, outer, DataParallel.FSDP) for name, outer in outers.items()]


def _tensor(goal: Goal) -> int:
    """Return the largest degree that stays in a domain and divides the heads."""
    model, domain = goal.config.model, min(goal.cluster.domain, 8)
    legal = [
        n for n in range(1, domain + 1) if shares_heads(model, n) and goal.cluster.gpus % n == 0
    ]
    return legal[-1]


def _rung(goal: Goal, name: str, outer: Outer, kind: DataParallel) -> Rung:
    choice = Choice(
        outer=outer, schedule=Schedule.ONE_F_ONE_B, stages_per_rank=1, kind=kind, replicate=1
    )
    result = evaluate(goal, choice, capacity=_UNLIMITED)
    if not isinstance(result, Planned):
        return Rung(name=name, size=None, fits=False, seconds=None, why_not=result.reason)
    size = result.bill.total
    return Rung(name=name, size=size, fits=size <= goal.capacity, seconds=result.time.seconds)


def _too_big(rungs: tuple[Rung, ...]) -> list[str]:
    first = rungs[0]
    if first.fits or first.size is None:  # not possible: it is the batch that is too small
        return []
    helping = next((rung for rung in rungs if rung.fits), None)
    if helping is None:
        return [
            (
                "The model is too large for every step of the ladder. Use more GPUs, GPUs with"
                " more memory, or a shorter sequence."
            )
        ]
    return [
        (
            "The model is too large for a copy on every GPU. The first measure that fits is"
            f" {helping.name}. Measures above it in the list cost less but were not sufficient."
        )
    ]


_REMEDIES = {
    StepBottleneck.PRODUCTS: "The step is mostly computation, as it should be. fp8 or more GPUs"
    " make it faster.",
    StepBottleneck.MEMORY: "Memory traffic and kernel starts take the most time besides"
    " products. Use larger micro-batches, less tensor parallelism, or no"
    " recompute.",
    StepBottleneck.TENSOR: "Tensor messages take the most time. Use a lower tensor degree with a"
    " pipeline or FSDP instead, or a faster domain.",
    StepBottleneck.CONTEXT: "The context ring takes the most time. Use a lower context degree,"
    " or more key-value heads per rank.",
    StepBottleneck.EXPERT: "The exchange of the experts' rows takes the most time. Keep the"
    " expert axis within the domain.",
    StepBottleneck.BUBBLE: "The pipeline's bubble takes the most time. Use more micro-batches (a"
    " larger batch), more stages per rank, or fewer ranks in the"
    " pipeline.",
    StepBottleneck.STAGES: "Messages between stages take the most time. Use fewer stages.",
    StepBottleneck.DATA: "Data-parallel messages take the most time. Use more micro-batches per"
    " step, HSDP, or a larger share of the model on each rank.",
    StepBottleneck.HOST: "Copies to the host take the most time. Use full recompute instead, or"
    " larger micro-batches, whose products overlap the copies.",
    StepBottleneck.OPTIMIZER: "The optimizer takes the most time. ZeRO-1 divides its work among"
    " the ranks.",
    StepBottleneck.REST: "The step is short. A larger batch makes it more efficient.",
}


def _bottleneck_advice(best: Planned | None) -> list[str]:
    return [] if best is None else [_REMEDIES[best.time.bottleneck]]
