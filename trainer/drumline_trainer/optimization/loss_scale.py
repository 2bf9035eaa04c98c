"""Loss scaling for fp16, which keeps small gradients above zero. No torch.

fp16 ends at 65,504 and its smallest number is 6e-8. The loss is multiplied by a power of 2 before
the backward pass, and gradients are divided by it in fp32. Both are exact. Too large a scale
overflows. Then the step is skipped, which leaves weights, moments and the optimizer's step count
unchanged, and the scale is halved. After many good steps it is doubled (Micikevicius et al. 2018).

    good step      ->  steady + 1; at `growth_steps` of them the scale doubles
    overflow       ->  half the scale, the step is skipped
    below 1        ->  the model itself overflows, not the scale: the run ends

fp32 and bf16 have a fixed scale of 1, so a better scale cannot mend a step that is not finite. At
most `optimizer.max_skipped_steps` are skipped. One more ends the run, because a restart would meet
the same samples again. All ranks see the same totals and so the same scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from drumline_contract.config import Precision, TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """Between two steps."""

    value: float = 1.0
    growth_steps: int | None = None
    """None for a scale that never grows."""
    steady: int = 0
    """Good steps since the scale has changed."""
    skipped: int = 0
    """Steps of the run that the optimizer did not make."""
    allowance: int = 0
    """Steps that may be skipped at a scale that never grows."""

    @classmethod
    def of(cls, config: TrainerConfig, saved: Mapping[str, Any]) -> LossScale:
        """Resume from the trainer's saved state, or begin without one.

        Raises:
            ValueError: that state is malformed.
        """
        # Older checkpoints have no loss scale and resume with the configured one.
        state = saved.get("loss_scale", {"value": None, "steady": 0, "skipped": 0})
        match state:
            case {"value": float() | None as value, "steady": int(steady), "skipped": int(skipped)}:
                pass
            case _:
                raise ValueError(f"{state!r} is not a loss scale")
        # A change of precision keeps the number of skipped steps but not the scale.
        if config.precision is not Precision.FP16:
            return cls(skipped=skipped, allowance=config.optimizer.max_skipped_steps)
        optimizer = config.optimizer
        return cls(
            value=optimizer.loss_scale if value is None else value,
            growth_steps=optimizer.loss_scale_growth_steps,
            steady=steady,
            skipped=skipped,
        )

    def after(self, *, finite: bool) -> LossScale:
        """Return the scale of the next step. Below 1, no scale helps."""
        # fp32 and bf16: a skipped step changes nothing but the count, up to the allowance.
        if not finite and self.growth_steps is None and self.skipped < self.allowance:
            return replace(self, skipped=self.skipped + 1)
        # With growth: halve at once. Without it, the value falls below 1, which ends the run.
        if not finite:
            return replace(self, value=self.value / 2, steady=0, skipped=self.skipped + 1)
        if self.growth_steps is None:
            return self
        if self.steady + 1 >= self.growth_steps:
            # Powers of 2 keep scaling and unscaling exact.
            return replace(self, value=self.value * 2, steady=0)
        return replace(self, steady=self.steady + 1)

    def state(self) -> dict[str, Any]:
        """Return JSON values for `of`."""
        value = None if self.growth_steps is None else self.value
        return {"value": value, "steady": self.steady, "skipped": self.skipped}
