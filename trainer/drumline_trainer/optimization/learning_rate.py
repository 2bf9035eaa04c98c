"""The learning rate as a pure function of the step. No torch.

All schedules rise in a line to the peak, the first step at peak / warmup_steps, and have the last
step at the minimum, but for `constant`:

    cosine    half a cosine (Loshchilov and Hutter 2017, without restarts)
    linear    a line
    wsd       stays at the peak, then falls in a line over the last steps (Hu et al. 2024): the
              steps before can be part of a longer run
    constant  stays at the peak

A larger global batch than the one that the rate was found with has less noise, and its rate is
multiplied by the ratio (Goyal et al. 2017), which early weights only bear after a warm-up.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from drumline_contract.config import ConfigError, OptimizerConfig, RateSchedule, TrainerConfig
from drumline_contract.config.saved import saved_trainer_configuration


def learning_rate(step: int, config: TrainerConfig) -> float:
    """Return the rate of the step with this number (0-based), be it skipped or not."""
    optimizer = config.optimizer
    peak, warmup = optimizer.learning_rate, optimizer.warmup_steps
    # Linear scaling rule of Goyal et al. 2017.
    if optimizer.reference_batch_size is not None:
        peak *= config.global_batch_size / optimizer.reference_batch_size
    # The first step already moves the weights: step + 1, not step.
    if step < warmup:
        return peak * (step + 1) / warmup
    ratio = optimizer.min_learning_rate_ratio
    return peak * (ratio + (1 - ratio) * _height(step, config.steps, optimizer))


_COMPARED_STEPS = 64
_OF_THE_RATE = ("steps", "global_batch_size")


def changed_rate(saved: Mapping[str, Any], config: TrainerConfig, *, step: int) -> str:
    """Describe how a resumed run changes the learning rates, for its log.

    Args:
        saved: the trainer's own state in the checkpoint.
        config: configuration of the resumed run.
        step: finished steps.

    Returns:
        Empty if the rates are those that the saved run would have used.
    """
    # Phase 1: parse the saved configuration. An older one can lack fields.
    try:
        there = saved_trainer_configuration(saved)
    except ConfigError:
        return ""  # said by `changed_settings`
    if there is None or step >= config.steps:
        return ""
    # Phase 2: compare at most about 64 steps. Long runs must not delay the start.
    last = max(step, min(there.steps, config.steps) - 1)
    compared = sorted({*range(step, last, max(1, (last - step) // _COMPARED_STEPS)), step, last})
    rates = ((at, learning_rate(at, there), learning_rate(at, config)) for at in compared)
    changed = next((rate for rate in rates if rate[1] != rate[2]), None)
    # Phase 3: name the settings that differ, since the user knows settings and not rates.
    if changed is None:
        return ""
    at, before, now = changed
    fields = [
        *((name, getattr(there, name), getattr(config, name)) for name in _OF_THE_RATE),
        *(
            (
                f"optimizer.{field.name}",
                *(getattr(c.optimizer, field.name) for c in (there, config)),
            )
            for field in dataclasses.fields(config.optimizer)
        ),
    ]
    reasons = [f"{name} is {old} there and {new} here" for name, old, new in fields if old != new]
    return (
        f"the learning rate of step {at + 1} is {now:.3g}, and the checkpoint's run would have had"
        f" {before:.3g}: {'; '.join(reasons)}"
    )


def _height(step: int, total_steps: int, config: OptimizerConfig) -> float:
    """Return the schedule's height from 1 at the peak to 0 at the minimum."""
    last, warmup = total_steps - 1, config.warmup_steps
    progress = min(1.0, (step - warmup) / max(1, last - warmup))
    match config.schedule:
        case RateSchedule.COSINE:
            return 0.5 * (1 + math.cos(math.pi * progress))
        case RateSchedule.LINEAR:
            return 1 - progress
        case RateSchedule.WSD:
            decaying = max(1, round(config.decay_share * total_steps))
            return min(1.0, max(0.0, (last - step) / decaying))
        case RateSchedule.CONSTANT:
            return 1.0
