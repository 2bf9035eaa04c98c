"""The section `evaluation`: the loss on samples that are not trained on."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_contract.config.bounds import Answer, Batch, Steps
from drumline_contract.config.data import check_pattern, check_source
from drumline_contract.config.errors import ConfigError, require_not_negative, require_positive
from drumline_contract.prompt_answers import MOST_PROMPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Held-out loss: measured before the first step, now and then, and after the last."""

    every_steps: Steps = 100
    """Steps from one measurement to the next."""
    share: float = 0.05
    """Part of the training data's windows that is kept from training, where neither `source` nor
    `pattern` names other files. The same windows whatever the seed."""
    source: str | None = None
    """Source of the held-out samples, like `data.source`. None: the same source, or other files of
    it that `pattern` selects."""
    pattern: str | None = None
    """Files of the folder, as `data.pattern`. None: the same as there."""
    samples: Batch = 1024
    """Maximum number of sequences in each evaluation."""
    patience: Steps = 0
    """Number of evaluations in a row without a new lowest loss after which the run ends as
    complete. The checkpoint with the lowest loss is kept. 0: never end early."""
    least_gain: float = 0.0
    """With patience: a loss counts as lower where it is by more than this."""
    average: bool = False
    """Measure the average of the weights, not the weights: set `optimizer.average_decay`."""
    prompts: str | None = None
    """Prompts, one a line and at most 16: after each measurement the log, the job's report and
    its page show how the model continues them, with the likeliest tokens. None: none."""
    prompt_tokens: Answer = 32
    """Tokens of each of these answers, at most."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {"evaluation.every_steps": self.every_steps, "evaluation.samples": self.samples}
        )
        require_not_negative(
            {"evaluation.patience": self.patience, "evaluation.least_gain": self.least_gain}
        )
        if self.least_gain and not self.patience:
            raise ConfigError("evaluation.least_gain: is for patience; set evaluation.patience too")
        if not 0 < self.share < 1:
            raise ConfigError(f"evaluation.share: must be between 0 and 1, not {self.share}")
        if self.source is not None:
            check_source(self.source, field="evaluation.source")
        if self.pattern is not None:
            check_pattern(self.pattern, field="evaluation.pattern")
        require_positive({"evaluation.prompt_tokens": self.prompt_tokens})
        if self.prompts is not None and not 1 <= len(self.prompt_lines) <= MOST_PROMPTS:
            raise ConfigError(
                f"evaluation.prompts: must be 1 to {MOST_PROMPTS} lines, not"
                f" {len(self.prompt_lines)}"
            )

    @property
    def prompt_lines(self) -> tuple[str, ...]:
        """The prompts; empty lines are none."""
        return tuple(line for line in (self.prompts or "").splitlines() if line.strip())
