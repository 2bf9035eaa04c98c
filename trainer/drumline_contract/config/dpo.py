"""The section `dpo`: learning from pairs of answers of which one is preferred."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_contract.config.errors import require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class DpoConfig:
    """Direct preference optimization (Rafailov et al. 2023), from pairs of answers.

    The model is compared with the initial model of the run. With lora, this is the model without
    its adapters, otherwise a frozen copy.
    """

    beta: float = 0.1
    """Penalty for moving away from the reference model. A larger value keeps the run nearer to it.
    """

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive({"dpo.beta": self.beta})
