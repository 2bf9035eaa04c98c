"""The record of an evaluation: a row of evaluations.jsonl. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

_MAX_NATS = 700.0
"""Largest loss for which `exp(loss)` is finite. Above it no perplexity is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """The loss on samples that are not trained on."""

    step: int
    """Finished optimizer steps."""
    loss: float
    """Mean over all targets, in nats."""
    samples: int
    targets: int
    """Predictions that count."""
    answers: tuple[tuple[str, str], ...] = ()
    """Fixed prompts, each with how the model continues it."""

    @property
    def perplexity(self) -> float:
        """The exponential of the loss."""
        return math.exp(self.loss) if self.loss < _MAX_NATS else math.inf

    @property
    def line(self) -> str:
        """For people."""
        return (
            f"step {self.step}: held-out loss {self.loss:.4f}, perplexity {self.perplexity:.4g}"
            f" ({self.samples} samples, {self.targets} targets)"
        )

    @property
    def answer_lines(self) -> tuple[str, ...]:
        """Return a line for each prompt."""
        return tuple(
            f"step {self.step}: {prompt!r} continues {answer!r}" for prompt, answer in self.answers
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; a figure that is not finite becomes null."""
        figures = {**asdict(self), "perplexity": self.perplexity}
        del figures["answers"]
        known = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        pairs = [{"prompt": prompt, "answer": answer} for prompt, answer in self.answers]
        return {**known, "answers": pairs} if pairs else known

    def scalars(self) -> Iterator[tuple[str, float]]:
        """Yield names and numbers for tools that draw curves."""
        yield "evaluation/loss", self.loss
        yield "evaluation/perplexity", self.perplexity
