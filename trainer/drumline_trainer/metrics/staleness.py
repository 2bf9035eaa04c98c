"""The staleness of the weights that gradients were computed from. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """In updates of other workers that the weights lacked when the gradient was applied."""

    mean: float
    most: int
    steps_ahead: int
    """How many steps more than the slowest a worker had finished when it began one, at most."""
