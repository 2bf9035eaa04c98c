"""The section `model.rope_scaling`: rotary positions of sequences longer than a model knew."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from drumline_contract.config.bounds import Positions
from drumline_contract.config.errors import ConfigError, require_not_negative, require_positive

_MAX_CHARACTERS: Final = 32_768
"""Maximum length of a list of factors. Enough for a thousand pairs."""
_LARGEST: Final = 1e9


class RopeScalingKind(StrEnum):
    """Method of slowing the rotation of pairs."""

    LLAMA3 = "llama3"
    """Slow pairs by `factor`, by how often they turn in the original length: Llama 3.1's."""
    LINEAR = "linear"
    """All by `factor` (Chen et al. 2023): Gemma 3's."""
    YARN = "yarn"
    """A ramp over the pairs, and longer queries and keys (Peng et al. 2023): GPT-OSS's."""
    LONGROPE = "longrope"
    """Each pair by a factor of its own, by others in sequences longer than the original, and longer
    queries and keys (Ding et al. 2024): Phi-3's with 128k positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Slower rotation of a head's pairs, for sequences longer than in pretraining."""

    kind: RopeScalingKind = RopeScalingKind.LLAMA3
    factor: float
    """Factor by which the slowest pairs rotate slower. With longrope: ratio of the new to the
    original sequence length, which determines `magnitude` if that is not set."""
    low_frequency_factor: float = 1.0
    """With llama3: those that turn at most so often in the original length."""
    high_frequency_factor: float = 4.0
    """With llama3: those that turn more often stay as they are; between the two it is a ramp."""
    original_positions: Positions = 8192
    """With llama3, yarn and longrope: longest sequence that the model knew before."""
    beta_fast: float = 32.0
    """With yarn: pairs that turn more often in the original length stay as they are."""
    beta_slow: float = 1.0
    """With yarn: those that turn less often are slowed by `factor`; between them it is a ramp."""
    whole_pairs: bool = True
    """With yarn: the ramp begins and ends at a pair, not between two."""
    magnitude: float | None = None
    """With yarn and longrope: what turned queries and keys are multiplied by. None: 1 with yarn;
    with longrope the root of 1 + ln(factor) / ln(original_positions), at least 1."""
    score_growth: float = 0.0
    """With yarn and latent attention: scores are multiplied by (1 + 0.1 · it · ln(factor))²."""
    short_factors: str = ""
    """With longrope: for each pair, the factor by which it rotates slower in sequences of at most
    `original_positions`. Numbers separated by commas, fastest pair first."""
    long_factors: str = ""
    """With longrope: the same in longer sequences, or documents where they are packed apart."""

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        require_positive(
            {
                "model.rope_scaling.factor": self.factor,
                "model.rope_scaling.low_frequency_factor": self.low_frequency_factor,
                "model.rope_scaling.original_positions": self.original_positions,
                "model.rope_scaling.beta_slow": self.beta_slow,
                "model.rope_scaling.magnitude": 1 if self.magnitude is None else self.magnitude,
            }
        )
        # The ramp divides by the difference of both factors.
        if self.high_frequency_factor <= self.low_frequency_factor:
            raise ConfigError(
                "model.rope_scaling.high_frequency_factor: must be above low_frequency_factor"
                f" {self.low_frequency_factor}, not {self.high_frequency_factor}"
            )
        # The same for YaRN's ramp (Peng et al. 2023).
        if self.beta_fast <= self.beta_slow:
            raise ConfigError(
                f"model.rope_scaling.beta_fast: must be above beta_slow {self.beta_slow}, not"
                f" {self.beta_fast}"
            )
        require_not_negative({"model.rope_scaling.score_growth": self.score_growth})
        if self.score_growth and self.kind is not RopeScalingKind.YARN:
            raise ConfigError("model.rope_scaling.score_growth: yarn has it, and no other kind")
        longrope = self.kind is RopeScalingKind.LONGROPE
        # The magnitude divides by ln(original_positions), which is 0 for 1.
        if longrope and self.original_positions < 2:
            raise ConfigError("model.rope_scaling.original_positions: must be at least 2")
        for name, text in (
            ("short_factors", self.short_factors),
            ("long_factors", self.long_factors),
        ):
            # Factors without effect, or longrope without factors, would change the model silently.
            if bool(text) is not longrope:
                raise ConfigError(
                    f"model.rope_scaling.{name}: longrope has them, and no other kind"
                )
            if longrope:
                _check_factors(text, name=name)

    @property
    def multiplier(self) -> float:
        """Factor of rotated queries and keys."""
        if self.magnitude is not None:
            return self.magnitude
        # Shorter contexts need no correction.
        if self.kind is not RopeScalingKind.LONGROPE or self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_positions))

    @property
    def score_multiplier(self) -> float:
        """Factor of the products of queries and keys."""
        if self.factor <= 1:
            return 1.0
        # mscale of DeepSeek-V2's code, squared, since queries and keys both get it.
        return (1 + 0.1 * self.score_growth * math.log(self.factor)) ** 2

    def pair_factors(self, *, long: bool) -> list[float]:
        """Return longrope's factor of every pair of a head's features."""
        return [
            float(part) for part in (self.long_factors if long else self.short_factors).split(",")
        ]

    def check_pairs(self, pairs: int) -> None:
        """Raise ConfigError where heads have another number of pairs than there are factors."""
        if self.kind is not RopeScalingKind.LONGROPE:
            return
        for name, long in (("short_factors", False), ("long_factors", True)):
            given = len(self.pair_factors(long=long))
            # One factor for each pair of the turned features.
            if given != pairs:
                raise ConfigError(
                    f"model.rope_scaling.{name}: a head turns {pairs} pairs, and these"
                    f" are of {given}"
                )


def _check_factors(text: str, *, name: str) -> None:
    """Check a list of factors.

    Raises:
        ConfigError: the text is too long, or not a list of numbers above 0.
    """
    # The length is checked before the text is split.
    if len(text) > _MAX_CHARACTERS:
        raise ConfigError(
            f"model.rope_scaling.{name}: at most {_MAX_CHARACTERS} characters, not {len(text)}"
        )
    try:
        factors = [float(part) for part in text.split(",")]
    except ValueError:
        factors = [math.nan]
    if not all(0 < factor < _LARGEST for factor in factors):
        raise ConfigError(
            f"model.rope_scaling.{name}: must be numbers above 0 separated by commas, not"
            f" {text[:64]!r}"
        )
