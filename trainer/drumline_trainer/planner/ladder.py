"""The field's order of measures, with what each would save here: cheap ones first.

    1 the rule        16 bytes a parameter, before any activation
    2 cheap fixes     smaller micro-batches, recompute: time, but no wire
    3 sharding        ZeRO-1, ZeRO-2, FSDP: what all ranks have, shared out
    4 tensor          inside a node's links
    5 pipeline        over the network, with its bubble
    6 all three       and experts, where the model has them

Each rung keeps the cheaper ones below it. The first that fits is the least that helps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from drumline_trainer.config import DataParallel, Recompute, Schedule
from drumline_trainer.planner.search import Planned, evaluate
from drumline_trainer.planner.space import Choice, Goal, Outer
from drumline_trainer.planner.step_time import StepBottleneck
from drumline_trainer.shapes.flops import weights

_UNLIMITED = 1 << 62
_BYTES_A_PARAMETER = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One measure."""

    name: str
    size: float | None
    """Bytes of the fullest rank; None: it is not possible here."""
    fits: bool
    seconds: float | None
    """Of a step."""
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What the planner says in words."""

    rule: str
    rungs: tuple[Rung, ...]
    sentences: tuple[str, ...]


def advice(goal: Goal, best: Planned | None, *, total_tokens: float | None = None) -> Advice:
    """The ladder, and the failure modes that this goal has: too big, too small, too long."""
    rungs = tuple(_rungs(goal))
    count = weights(goal.config.model)
    rule = (
        f"{count / 1e9:.2f} G parameters x {_BYTES_A_PARAMETER} bytes (fp32 weight, gradient and"
        f" two moments) = {_BYTES_A_PARAMETER * count / 2**30:.1f} GiB before any activation;"
        f" one {goal.cluster.gpu.name} has {goal.cluster.gpu.memory_bytes / 2**30:.1f}"
    )
    sentences = [
        *_too_big(rungs),
        *_batch_too_small(goal),
        *_too_long(best, total_tokens),
        *_what_it_waits_for(best),
    ]
    return Advice(rule=rule, rungs=rungs, sentences=tuple(sentences))


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
    rungs += [
        (f"FSDP and tensor {tensor}", replace(least, tensor=tensor), fsdp),
        (f"FSDP and pipeline {pipeline}", replace(least, pipeline=pipeline), fsdp),
        (
            f"FSDP, tensor {tensor} and pipeline {pipeline}",
            replace(least, tensor=tensor, pipeline=pipeline),
            fsdp,
        ),
    ]
    return [_rung(goal, name, outer, kind) for name, outer, kind in rungs]


def _tensor(goal: Goal) -> int:
    """The largest degree that stays in a domain and divides the heads."""
    model, domain = goal.config.model, min(goal.cluster.domain, 8)
    legal = [
        n
        for n in range(1, domain + 1)
        if model.heads % n == 0 and model.kv_heads % n == 0 and goal.cluster.gpus % n == 0
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
                "The model is too big for every rung of the ladder: take more GPUs, GPUs with more"
                " memory, a shorter sequence, or offload the optimizer."
            )
        ]
    return [
        (
            f"The model is too big for a copy on every GPU; the first measure that fits is"
            f" {helping.name}. Measures above it in the list cost less and were not enough."
        )
    ]


def _batch_too_small(goal: Goal) -> list[str]:
    gpus, batch = goal.cluster.gpus, goal.config.global_batch_size
    if batch >= gpus:
        return []
    return [
        (
            f"The batch is too small: {batch} sequences cannot be split over {gpus} GPUs. Data"
            f" parallelism can use {batch} of them at most; tensor, context and pipeline"
            " parallelism take the rest, and every GPU has less to do between messages."
        )
    ]


def _too_long(best: Planned | None, total_tokens: float | None) -> list[str]:
    if best is None or total_tokens is None:
        return []
    days = total_tokens / best.time.tokens_per_second / 86_400
    return [
        (
            f"{total_tokens:.3g} tokens take {days:.1f} days. Where that is too long: more GPUs as"
            " long as the batch feeds them (--gpus 8..1024 shows where it stops paying), then a"
            " larger batch, then fp8."
        )
    ]


_REMEDIES = {
    StepBottleneck.PRODUCTS: "It computes most of the time, as it should; fp8 or more GPUs make it"
    " faster.",
    StepBottleneck.MEMORY: "Memory traffic and kernel starts weigh most beside products: larger"
    " micro-batches, less tensor parallelism, or no recompute.",
    StepBottleneck.TENSOR: "Tensor messages weigh most: a lower tensor degree with a pipeline or"
    " FSDP instead, or a faster domain.",
    StepBottleneck.CONTEXT: "The ring weighs most: a lower context degree, or more key-value heads"
    " on a rank.",
    StepBottleneck.EXPERT: "The exchange of experts' rows weighs most: keep the expert axis in the"
    " domain.",
    StepBottleneck.BUBBLE: "The pipeline's bubble weighs most: more micro-batches (a larger batch),"
    " more stages a rank, or fewer ranks in the pipeline.",
    StepBottleneck.STAGES: "Messages between stages weigh most: fewer stages.",
    StepBottleneck.DATA: "Data parallel messages weigh most: more micro-batches a step, HSDP, or a"
    " larger share of the model on each rank.",
    StepBottleneck.HOST: "Copies to the host weigh most: full recompute in place of them, or larger"
    " micro-batches, behind whose products they hide.",
    StepBottleneck.OPTIMIZER: "The optimizer weighs most: ZeRO-1 shares its work out.",
    StepBottleneck.REST: "The step is short: a larger batch makes it pay.",
}


def _what_it_waits_for(best: Planned | None) -> list[str]:
    return [] if best is None else [_REMEDIES[best.time.bottleneck]]
