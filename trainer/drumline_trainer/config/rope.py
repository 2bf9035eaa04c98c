"""The section `model.rope_scaling`: rotary positions of sequences longer than a model knew."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_trainer.config.bounds import Positions
from drumline_trainer.config.errors import ConfigError, require_positive


class RopeScalingKind(StrEnum):
    """How pairs of a head are slowed."""

    LLAMA3 = "llama3"
    """Slow pairs by `factor`, by how often they turn in the original length: Llama 3.1's."""
    LINEAR = "linear"
    """All by `factor` (Chen et al. 2023): Gemma 3's."""
    YARN = "yarn"
    """A ramp over the pairs, and longer queries and keys (Peng et al. 2023): GPT-OSS's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How the pairs of a head turn slower, for sequences longer than the model began with."""

    kind: RopeScalingKind = RopeScalingKind.LLAMA3
    factor: float
    """The slowest pairs turn so many times slower."""
    low_frequency_factor: float = 1.0
    """With llama3: those that turn at most so often in the original length."""
    high_frequency_factor: float = 4.0
    """With llama3: those that turn more often stay as they are; between the two it is a ramp."""
    original_positions: Positions = 8192
    """With llama3 and yarn: longest sequence that the model knew before."""
    beta_fast: float = 32.0
    """With yarn: pairs that turn more often in the original length stay as they are."""
    beta_slow: float = 1.0
    """With yarn: those that turn less often are slowed by `factor`; between them it is a ramp."""
    whole_pairs: bool = True
    """With yarn: the ramp begins and ends at a pair, not between two."""
    magnitude: float = 1.0
    """With yarn: what turned queries and keys are multiplied by."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "model.rope_scaling.factor": self.factor,
                "model.rope_scaling.low_frequency_factor": self.low_frequency_factor,
                "model.rope_scaling.original_positions": self.original_positions,
                "model.rope_scaling.beta_slow": self.beta_slow,
                "model.rope_scaling.magnitude": self.magnitude,
            }
        )
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ConfigError(
                "model.rope_scaling.high_frequency_factor: must be above low_frequency_factor"
                f" {self.low_frequency_factor}, not {self.high_frequency_factor}"
            )
        if self.beta_fast <= self.beta_slow:
            raise ConfigError(
                f"model.rope_scaling.beta_fast: must be above beta_slow {self.beta_slow}, not"
                f" {self.beta_fast}"
            )
