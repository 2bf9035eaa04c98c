"""Loss scaling: what fp16 is multiplied by, so that small gradients do not vanish in it. No torch.

fp16 ends at 65,504 and its smallest number is 6e-8. The loss is multiplied by a power of 2 before
the backward pass and gradients are divided by it in fp32, both exact. Too large a scale overflows:
then the step is skipped, which leaves weights, moments and the optimizer's count of steps as they
were, and the scale is halved; after many good steps it is doubled (Micikevicius et al. 2018).

    good step      ->  steady + 1; at `growth_steps` of them the scale doubles
    overflow       ->  half the scale, the step is skipped
    below 1        ->  the model itself overflows, not the scale: the run ends

fp32 and bf16 have a fixed scale of 1: a step that is not finite there has no better scale to be
tried with. So many of them as `optimizer.max_skipped_steps` allows are skipped, the next one ends
the run: a restart would meet the same samples again. All ranks see the same
totals and so the same scale.
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
        """Where a run goes on, from the trainer's saved state; without one: where it begins.

        Raises:
            ValueError: that state is not one that `state` made.
        """
        state = saved.get("loss_scale", {"value": None, "steady": 0, "skipped": 0})
        match state:
            case {"value": float() | None as value, "steady": int(steady), "skipped": int(skipped)}:
                pass
            case _:
                raise ValueError(f"{state!r} is no loss scale")
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
        """The scale of the next step; below 1 there is none that helps."""
        if not finite and self.growth_steps is None and self.skipped < self.allowance:
            return replace(self, skipped=self.skipped + 1)
        if not finite:
            return replace(self, value=self.value / 2, steady=0, skipped=self.skipped + 1)
        if self.growth_steps is None:
            return self
        if self.steady + 1 >= self.growth_steps:
            return replace(self, value=self.value * 2, steady=0)
        return replace(self, steady=self.steady + 1)

    def state(self) -> dict[str, Any]:
        """JSON values for `of`."""
        value = None if self.growth_steps is None else self.value
        return {"value": value, "steady": self.steady, "skipped": self.skipped}
