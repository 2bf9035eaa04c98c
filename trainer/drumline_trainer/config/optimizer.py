"""How weights are changed."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_trainer.config.errors import ConfigError, require_not_negative, require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW with linear warm-up and cosine decay."""

    learning_rate: float = 3e-3
    min_learning_rate_ratio: float = 0.1
    warmup_steps: int = 10
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    max_gradient_norm: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises ConfigError."""
        require_positive(
            {
                "optimizer.learning_rate": self.learning_rate,
                "optimizer.max_gradient_norm": self.max_gradient_norm,
            }
        )
        require_not_negative(
            {
                "optimizer.warmup_steps": self.warmup_steps,
                "optimizer.epsilon": self.epsilon,
                "optimizer.weight_decay": self.weight_decay,
            }
        )
        for name, value in (("beta1", self.beta1), ("beta2", self.beta2)):
            if not 0 <= value < 1:
                raise ConfigError(f"optimizer.{name}: must be at least 0 and below 1, not {value}")
        if not 0 <= self.min_learning_rate_ratio <= 1:
            raise ConfigError(
                "optimizer.min_learning_rate_ratio: must be between 0 and 1, not"
                f" {self.min_learning_rate_ratio}"
            )
