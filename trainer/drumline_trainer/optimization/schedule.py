"""The learning rate as a pure function of the step. No torch."""

from __future__ import annotations

import math

from drumline_trainer.config import OptimizerConfig


def learning_rate(step: int, *, total_steps: int, config: OptimizerConfig) -> float:
    """Rate of the optimizer step with this number (0-based): linear warm-up, then half a cosine.

    The first step runs at peak / warmup_steps, the last one at the minimum
    (Loshchilov and Hutter 2017, without restarts).
    """
    peak, warmup = config.learning_rate, config.warmup_steps
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total_steps - 1 - warmup))
    ratio = config.min_learning_rate_ratio
    return peak * (ratio + (1 - ratio) * 0.5 * (1 + math.cos(math.pi * progress)))
