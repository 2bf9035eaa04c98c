"""What a rank holds of the model's weights and of what belongs to them: named slices.

A global tensor of a given name and shape is cut by the tensor and expert axes, then by rows over
the ranks of `fsdp` or among those that share the optimizer's state; some ranks may hold the same.
Whoever cuts says so here, and everything else (initial weights, the optimizer, checkpoints,
snapshots, the gradient's norm) only ever sees slices.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from drumline_trainer.parallelism.shards import Box


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of one global tensor, in this rank's memory."""

    name: str
    """Of the parameter in the whole model, whatever stage or wrapper it lies in."""
    shape: tuple[int, ...]
    """Of the global tensor."""
    box: Box
    """Which of its elements; may be none."""
    tensor: Tensor
    """Those elements, of the box's shape; updated in place."""
    copies: int = 1
    """How many ranks hold exactly this slice."""
    copy: int = 0
    """Which of them this is; 0 writes it to checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What the tensor and expert axes left a rank of a parameter, before data parallelism."""

    shape: tuple[int, ...]
    """Of the global tensor."""
    box: Box
    """This rank's part; the parameter has its shape."""
    copies: int = 1
    """How many ranks of those axes hold exactly this part."""
    copy: int = 0
    """Which of them this is."""
