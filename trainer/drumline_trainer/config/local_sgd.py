"""The section `parallelism.local_sgd`: DiLoCo and plain local SGD."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_trainer.config.bounds import Steps
from drumline_trainer.config.errors import ConfigError, require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgdConfig:
    """Copies of the model that train alone and meet now and then (DiLoCo, Douillard et al. 2023).

    With an outer rate of 1 and no momentum it is plain local SGD: weights are averaged.
    """

    every_steps: Steps = 50
    """Steps from one meeting to the next."""
    outer_learning_rate: float = 0.7
    """Of the step that the copies make together, by the mean of how far each went."""
    outer_momentum: float = 0.9
    """Nesterov's."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "parallelism.local_sgd.every_steps": self.every_steps,
                "parallelism.local_sgd.outer_learning_rate": self.outer_learning_rate,
            }
        )
        if not 0 <= self.outer_momentum < 1:
            raise ConfigError(
                "parallelism.local_sgd.outer_momentum: must be at least 0 and below 1, not"
                f" {self.outer_momentum}"
            )
