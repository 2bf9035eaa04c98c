"""The largest value of every integer of the configuration.

What a user writes decides how long the operator checks it and what a rank allocates, so no integer
is without a bound. Each is far above what has been trained; lower bounds are the sections' own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from drumline_contract import SOURCE_FORMS, checked_source
from drumline_contract.config.errors import ConfigError


def nearest_divisors(number: int, *, of: int) -> str:
    """Return the nearest divisors as text: `32 or 48` for 47 of 6144. O(sqrt(of))."""
    low = [each for each in range(1, math.isqrt(of) + 1) if of % each == 0]
    divisors = {*low, *(of // each for each in low)}
    below = max((each for each in divisors if each < number), default=None)
    above = min((each for each in divisors if each > number), default=None)
    return _either(below, above)


def nearest_multiples(number: int, *, of: int) -> str:
    """Return the nearest multiples as text: `16 or 24` for 20 of 8."""
    below = number // of * of
    return _either(below or None, below + of)


def _either(below: int | None, above: int | None) -> str:
    return " or ".join(str(each) for each in (below, above) if each is not None)


def check_place(place: str, *, field: str) -> None:
    """Raise ConfigError for a URL of neither a bucket nor a model; a folder may have any name."""
    if "://" not in place:
        # A local path may have any name.
        return
    try:
        checked_source(place)
    except ValueError:  # it shows the value, which may hold a password
        raise ConfigError(
            f"{field}: must be a folder, {SOURCE_FORMS}, without a slash at its end"
        ) from None


@dataclass(frozen=True, slots=True)
class AtMost:
    """Marks an integer field: larger values are refused before anything is computed from them."""

    limit: int


MOST_STEPS = 1_000_000_000
Steps = Annotated[int, AtMost(MOST_STEPS)]
"""Optimizer steps, as many as a TrainingJob may have."""
Batch = Annotated[int, AtMost(1_000_000)]
"""Samples of a step, as many as a TrainingJob may have."""
Answer = Annotated[int, AtMost(1024)]
"""Tokens of an answer that a run shows."""
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
"""A count or a seed. 2^53 is the largest integer that every JSON reader keeps exact."""
