"""The record of a logged step: a row of steps.jsonl. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """Means over the pairs of a global batch, before its update.

    An answer's reward is how much likelier than to the reference it has become, in logarithms and
    times beta. Both may fall while the chosen answer gains on the other.
    """

    chosen: float
    rejected: float
    accuracy: float
    """The share of the pairs whose chosen answer has the larger one."""

    @classmethod
    def of(cls, means: Sequence[float]) -> Rewards:
        """Make them from the means over all pairs of `models.preferences.reward_sums`."""
        chosen, rejected, ahead = means
        return cls(chosen=chosen, rejected=rejected, accuracy=ahead)

    @property
    def margin(self) -> float:
        """The reward of the chosen answer minus that of the rejected one."""
        return self.chosen - self.rejected

    def scalars(self) -> Iterator[tuple[str, float]]:
        """Yield the rewards under the names of TRL's trainer."""
        yield "rewards/chosen", self.chosen
        yield "rewards/rejected", self.rejected
        yield "rewards/margins", self.margin
        yield "rewards/accuracies", self.accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Staleness of applied gradients, in updates of other workers that the weights lacked."""

    mean: float
    most: int
    steps_ahead: int
    """Maximum number of steps that a worker was ahead of the slowest one when it began a step."""


MFU_FORMULA = (
    "tokens/s per device x (6 x weights in the products of a token + 6 x layers x heads x head size"
    " x sequence length, 12 where attention is not causal) / dense bf16 peak of the device"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """Figures of the steps since the last record; unknown figures are None."""

    step: int
    """Finished optimizer steps."""
    loss: float
    """Mean over the global batch of the last step."""
    learning_rate: float | None
    gradient_norm: float
    """Before clipping."""
    tokens_per_second: float
    """Over all ranks, checkpoints excluded."""
    step_seconds: float
    """Mean, checkpoints excluded."""
    mfu: float | None
    skipped_steps: int
    """Steps of the whole run that were skipped because a gradient overflowed fp16."""
    staleness: Staleness | None = None
    """Since all ranks last synchronized; None where they do so in every step."""
    rewards: Rewards | None = None
    """Rewards of the last step. None: the run does not train on preferences."""
    parts: Mapping[str, float]
    """Mean seconds of a step by part (`step_timer`), with saving in between."""
    memory: Mapping[str, int]
    """Bytes by category (`memory`)."""
    bound: str
    """The `bottleneck.Bottleneck`."""
    verdict: str
    """The diagnosis as a sentence."""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; a figure that is not finite becomes null."""
        whole = {**asdict(self), "mfu_formula": MFU_FORMULA}
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in whole.items()
        }

    def scalars(self) -> Iterator[tuple[str, float]]:
        """Yield names and numbers for tools that draw curves."""
        for name in ("loss", "learning_rate", "gradient_norm", "skipped_steps"):
            yield from _known(f"train/{name}", getattr(self, name))
        for name in ("tokens_per_second", "step_seconds", "mfu"):
            yield from _known(f"speed/{name}", getattr(self, name))
        for name in ("mean", "most", "steps_ahead") if self.staleness is not None else ():
            yield f"staleness/{name}", float(getattr(self.staleness, name))
        if self.rewards is not None:
            yield from self.rewards.scalars()
        for name, seconds in self.parts.items():
            yield f"step_seconds/{name}", seconds
        for name, size in self.memory.items():
            yield f"memory_bytes/{name}", float(size)


def _known(name: str, value: float | None) -> Iterator[tuple[str, float]]:
    if value is not None:
        yield name, float(value)
