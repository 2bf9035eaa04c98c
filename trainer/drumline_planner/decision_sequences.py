"""Compute the measures for a batch that is too small or a run that takes too long.

The field's orders, cheap measures first; every row is the best layout that the measure leaves:

    batch too small     more sequences · sequences cut over context · then tensor · then pipeline ·
                        all of them · fewer GPUs
    run takes too long  fp8 · twice, four times the GPUs · twice, four times GPUs and batch

The third order, for a model that is too big, is `ladder`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from drumline_contract.config import ConfigError
from drumline_planner.search import Planned, evaluate, search
from drumline_planner.space import Goal, KeptChoices
from drumline_planner.words import large

_SEARCHED_GPUS = 1024
"""Number of GPUs above which a measure is computed from the best layout with more copies, without a
search."""
_PAYS = 0.7
"""Smallest gain of more GPUs, as a share of a proportional gain, with which they pay."""
_DAY = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One measure and its result."""

    name: str
    gpus: int
    batch: int
    """Sequences of a step."""
    layout: str
    """The best layout. Empty if none is legal and fits."""
    seconds: float | None
    """Seconds of a step. None without a layout."""
    tokens_per_second: float | None

    @property
    def tokens_per_gpu_second(self) -> float:
        """Return the tokens per GPU-second, or 0 without a layout."""
        return (self.tokens_per_second or 0.0) / self.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSequence:
    """Measures in their order, and the conclusions as sentences."""

    failure: str
    """Problem: `batch is too small` or `run takes too long`."""
    measures: tuple[Measure, ...]
    sentences: tuple[str, ...]


def batch_too_small(goal: Goal, best: Planned | None) -> DecisionSequence | None:
    """Return measures for fewer sequences than GPUs."""
    gpus, batch = goal.cluster.gpus, goal.config.global_batch_size
    # With a sequence for each GPU, data parallelism can use them all.
    if batch >= gpus:
        return None
    # The smallest multiple of the batch that fills the GPUs.
    enough = -(-gpus // batch) * batch
    alone = {"tensor": 1, "pipeline": 1, "context": 1}
    larger = with_batch(goal, enough)
    name = f"a batch of {enough}"
    measures = [_measure(name, larger) if best is None else _measure_scaled(name, larger, best)]
    # One axis at a time shows which one costs least.
    for axis in ("context", "tensor", "pipeline"):
        fixed = {name: degree for name, degree in alone.items() if name != axis}
        measures.append(_measure(f"{axis} parallelism alone", _keeping(goal, fixed)))
    measures.append(_measured("all axes together", goal, best))
    measures.append(_measure(f"{batch} GPUs", with_gpus(goal, batch)))
    return DecisionSequence(
        failure="batch is too small",
        measures=tuple(measures),
        sentences=tuple(_small_sentences(goal, measures)),
    )


def run_too_long(
    goal: Goal, best: Planned | None, *, total_tokens: float | None
) -> DecisionSequence | None:
    """Return measures that shorten a run of known length, with their cost in GPU-hours.

    Args:
        goal: model, batch and GPUs to plan for.
        best: fastest layout. None: none fits.
        total_tokens: tokens of the run. None: unknown.
    """
    if best is None or total_tokens is None:
        return None
    gpus, batch = goal.cluster.gpus, goal.config.global_batch_size
    measures = [_measured("as planned", goal, best)]
    if (eight := _in_fp8(goal)) is not None:
        measures.append(_measure_scaled("fp8", eight, best))
    for factor in (2, 4):
        more = with_gpus(goal, factor * gpus)
        measures.append(_measure_scaled(f"{factor} times the GPUs", more, best))
    for factor in (2, 4):
        both = with_batch(with_gpus(goal, factor * gpus), factor * batch)
        measures.append(_measure_scaled(f"{factor} times GPUs and batch", both, best))
    return DecisionSequence(
        failure="run takes too long",
        measures=tuple(measures),
        sentences=tuple(_long_sentences(measures, total_tokens)),
    )


def days(measure: Measure, total_tokens: float) -> float | None:
    """Return the days of the run, or None without a layout."""
    speed = measure.tokens_per_second
    return None if speed is None else total_tokens / speed / _DAY


def with_gpus(goal: Goal, gpus: int) -> Goal:
    """Return the goal with another number of GPUs of the same kind."""
    return replace(goal, cluster=replace(goal.cluster, gpus=gpus))


def with_batch(goal: Goal, batch: int) -> Goal:
    """Return the goal with another number of sequences per step."""
    return replace(goal, config=replace(goal.config, global_batch_size=batch))


def _in_fp8(goal: Goal) -> Goal | None:
    """Return the goal in fp8. None: it is, or the GPU or the configuration excludes it."""
    if goal.cluster.gpu.fp8_flops is None or goal.config.fp8:
        return None
    # fp8 excludes other settings, such as fp32 and adapters.
    with suppress(ConfigError):
        return replace(goal, config=replace(goal.config, fp8=True))
    return None


def _keeping(goal: Goal, degrees: dict[str, int]) -> Goal:
    """Return the goal with these degrees fixed.

    A degree that the user has set stays. If the search then finds no layout, the measure has none.
    """
    kept: KeptChoices = goal.kept
    for axis, degree in degrees.items():
        if getattr(kept, axis) is None:
            kept = replace(kept, **{axis: degree})
    return replace(goal, kept=kept)


def _measure(name: str, goal: Goal) -> Measure:
    return _measured(name, goal, next(iter(search(goal, best=1).planned), None))


def _measure_scaled(name: str, goal: Goal, best: Planned) -> Measure:
    """Return the best layout, or on many GPUs the same layout with more copies."""
    if goal.cluster.gpus <= _SEARCHED_GPUS:
        return _measure(name, goal)
    same = evaluate(goal, best.choice)
    return _measured(name, goal, same if isinstance(same, Planned) else None)


def _measured(name: str, goal: Goal, planned: Planned | None) -> Measure:
    return Measure(
        name=name,
        gpus=goal.cluster.gpus,
        batch=goal.config.global_batch_size,
        layout="" if planned is None else str(planned.layout),
        seconds=None if planned is None else planned.time.seconds,
        tokens_per_second=None if planned is None else planned.time.tokens_per_second,
    )


def _small_sentences(goal: Goal, measures: list[Measure]) -> Iterator[str]:
    gpus, batch = goal.cluster.gpus, goal.config.global_batch_size
    yield (
        f"The batch is too small: {batch} sequences cannot be split over {gpus} GPUs. Data"
        f" parallelism can use {batch} of them at most. Tensor, context and pipeline parallelism"
        " use the others, and every GPU computes less between messages."
    )
    larger, *axes, together, fewer = measures
    single = [axis for axis in axes if axis.tokens_per_second is not None]
    if single:
        first = max(single, key=lambda axis: axis.tokens_per_second or 0.0)
        yield (
            f"The fastest single axis is {first.name}: {first.layout}, with"
            f" {_share(first, together)} of the speed of the best mixture."
        )
    if larger.tokens_per_second is not None and together.tokens_per_second is not None:
        yield (
            f"A batch of {larger.batch} would train {_times(larger, together)} times as many"
            " tokens per second. Only a training run shows whether the loss allows it."
        )
    if fewer.tokens_per_second is not None and together.tokens_per_second is not None:
        hours = together.tokens_per_gpu_second / fewer.tokens_per_gpu_second
        yield (
            f"{fewer.gpus} GPUs alone reach {_share(fewer, together)} of this speed for"
            f" {100 * hours:.0f} % of its GPU-hours."
        )


def _long_sentences(measures: list[Measure], total_tokens: float) -> Iterator[str]:
    planned = measures[0]
    now = days(planned, total_tokens)
    yield f"{large(total_tokens)} tokens take {now:.1f} days on {planned.gpus} GPUs."
    better = [each for each in measures[1:] if _rises(each, planned)]
    if not better:
        yield (
            "None of the measures makes it shorter, because the batch is too small for more GPUs."
        )
        return
    # Tokens per GPU-second are the inverse of the cost.
    cheapest = max(better, key=lambda each: each.tokens_per_gpu_second)
    hours = planned.tokens_per_gpu_second / cheapest.tokens_per_gpu_second
    yield (
        f"The cheapest way to shorten the run is {cheapest.name}:"
        f" {days(cheapest, total_tokens):.1f} days for {100 * hours:.0f} % of the GPU-hours."
    )
    same_batch = [each for each in measures if each.batch == planned.batch]
    doubled = [each for each in same_batch if each.gpus > planned.gpus]
    for each in doubled:
        if each.tokens_per_gpu_second < _PAYS * planned.tokens_per_gpu_second:
            yield (
                f"With this batch, {each.gpus} GPUs have {_share(each, planned)} of its speed,"
                " and each of them has"
                f" {100 * each.tokens_per_gpu_second / planned.tokens_per_gpu_second:.0f} % of"
                " its current speed. Beyond this, the batch must grow with the number of GPUs."
            )
            return


def _rises(measure: Measure, planned: Measure) -> bool:
    # 2 % is below the accuracy of the prediction.
    return (measure.tokens_per_second or 0.0) > 1.02 * (planned.tokens_per_second or 0.0)


def _share(measure: Measure, of: Measure) -> str:
    return f"{100 * (measure.tokens_per_second or 0.0) / (of.tokens_per_second or 1.0):.0f} %"


def _times(measure: Measure, of: Measure) -> str:
    return f"{(measure.tokens_per_second or 0.0) / (of.tokens_per_second or 1.0):.1f}"
