"""Shapes and types of what passes through a pipeline, known before the first step."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchSpec:
    """The micro-batches of a step as this rank sees them; all are alike.

    Shapes: B samples, S positions that this rank has of the sequence, D hidden.
    """

    count: int
    inputs: tuple[int, ...]
    """Shape of a micro-batch's tokens, B S, or of its images."""
    hidden: tuple[int, ...]
    """Shape of the hidden states between stages, B S D."""
    dtype: torch.dtype
    """Type of the hidden states."""
    inputs_dtype: torch.dtype = torch.int64
    """Type of tokens or images."""
