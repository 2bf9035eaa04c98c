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

import math

from drumline_contract.config import OptimizerConfig, RateSchedule, TrainerConfig


def learning_rate(step: int, config: TrainerConfig) -> float:
    """Rate of the step with this number (0-based), be it skipped or not."""
    optimizer = config.optimizer
    peak, warmup = optimizer.learning_rate, optimizer.warmup_steps
    if optimizer.reference_batch_size is not None:
        peak *= config.global_batch_size / optimizer.reference_batch_size
    if step < warmup:
        return peak * (step + 1) / warmup
    ratio = optimizer.min_learning_rate_ratio
    return peak * (ratio + (1 - ratio) * _height(step, config.steps, optimizer))


def _height(step: int, total_steps: int, config: OptimizerConfig) -> float:
    """From 1 at the peak to 0 at the minimum."""
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
