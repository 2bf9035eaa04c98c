"""The field `compile`."""

from __future__ import annotations

from enum import StrEnum


class Compile(StrEnum):
    """What torch's compiler makes kernels of."""

    NONE = "none"
    """Nothing: every operation runs by itself."""
    BLOCKS = "blocks"
    """A layer: its kernels are compiled once and run for every layer."""
