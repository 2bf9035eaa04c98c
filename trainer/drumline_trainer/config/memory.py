"""What is traded for memory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_trainer.config.errors import require_positive


class Recompute(StrEnum):
    """Which activations are forgotten and computed again."""

    NONE = "none"
    SELECTIVE = "selective"
    """All but the results of matrix products and attention."""
    FULL = "full"
    """All but the input of every layer."""
    BLOCKS = "blocks"
    """All but the input of every k-th layer; computed again run by run, then layer by layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConfig:
    """In the order of what they cost."""

    recompute: Recompute = Recompute.NONE
    recompute_every: int | None = None
    """With blocks: the layers of a run. None: the square root of a stage's layers."""

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises ConfigError."""
        require_positive({"memory.recompute_every": self.recompute_every or 1})
