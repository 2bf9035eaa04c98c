"""The section `dpo`: learning from pairs of answers of which one is preferred."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_trainer.config.errors import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoConfig:
    """Direct preference optimization (Rafailov et al. 2023) of adapters, from pairs of answers."""

    beta: float = 0.1
    """How much leaving the model without adapters costs: the more, the nearer the run stays."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive({"dpo.beta": self.beta})
