"""The largest value of every integer of the configuration.

What a user writes decides how long the operator checks it and what a rank allocates, so no integer
is without a bound. Each is far above what has been trained; lower bounds are the sections' own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True, slots=True)
class AtMost:
    """Marks an integer field: larger values are refused before anything is computed from them."""

    limit: int


Steps = Annotated[int, AtMost(1_000_000_000)]
"""Optimizer steps, as many as a TrainingJob may have."""
Batch = Annotated[int, AtMost(1_000_000)]
"""Samples of a step, as many as a TrainingJob may have."""
Ranks = Annotated[int, AtMost(100_000)]
"""Ranks, as many as a TrainingJob may have."""
Layers = Annotated[int, AtMost(10_000)]
"""Layers, or stages of layers."""
Width = Annotated[int, AtMost(16_777_216)]
"""Size of a tensor's dimension: features, heads, tokens of a vocabulary, experts, pixels."""
Positions = Annotated[int, AtMost(16_777_216)]
"""Tokens of a sequence."""
Bytes = Annotated[int, AtMost(2**50)]
"""Memory of a machine."""
Number = Annotated[int, AtMost(2**53)]
"""What is only counted or only seeds a generator: every JSON reader keeps it exactly."""
