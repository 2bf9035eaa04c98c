"""What a rank holds of the model's weights and of what belongs to them: named slices.

A global tensor of a given name and shape is cut by the tensor and expert axes, then by rows over
the ranks of `fsdp` or of the ranks that share the optimizer's state; some ranks may hold the same.
Every parallelism that cuts describes the result as slices, and everything else (initial weights,
the optimizer, checkpoints, snapshots, the gradient's norm) only ever sees slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from torch import Tensor, nn

from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.storage import OffloadStore

_SHARED_ELEMENTS = 1 << 16
"""A slice below this size is written by one of its holders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlice:
    """A part of a global tensor, in this rank's memory."""

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
    """Which of them this is."""
    store: OffloadStore | None = None
    """Where the tensor lies if that is not on the device: None: on the device."""

    def like(self, tensor: Tensor, *, prefix: str) -> TensorSlice:
        """The same part of a tensor that belongs to this one, a moment say."""
        return replace(self, name=f"{prefix}.{self.name}", tensor=tensor)

    def own_part(self) -> TensorSlice:
        """What this rank writes to a checkpoint, where every element is written once.

        Holders of the same slice share its rows, so that none of them writes for all.
        """
        if self.copies == 1:
            return self
        rows = self.box.shape[0] if self.box.shape else 1
        if self.box.elements < _SHARED_ELEMENTS or rows < self.copies:
            start, stop = (0, rows) if self.copy == 0 else (0, 0)
        else:
            start, stop = (rows * part // self.copies for part in (self.copy, self.copy + 1))
        return replace(self, box=self.box.rows(start, stop), tensor=self.tensor[start:stop])


def slices_of(module: nn.Module) -> list[TensorSlice]:
    """The slices of a model that nothing has cut: whole tensors."""
    return [
        TensorSlice(
            name=name,
            shape=tuple(weight.shape),
            box=Box(offsets=(0,) * weight.dim(), shape=tuple(weight.shape)),
            tensor=weight.detach(),
        )
        for name, weight in named_weights(module)
    ]


def named_weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a model without adapters: parameters, then what does not learn (buffers)."""
    yield from module.named_parameters()
    yield from module.named_buffers()


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
