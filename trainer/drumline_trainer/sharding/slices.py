"""A rank's part of the model's weights and of tensors that belong to them: named slices.

A global tensor of a given name and shape is cut by the tensor and expert axes, then by rows over
the ranks of `fsdp` or of the ranks that share the optimizer's state. Some ranks may hold the same
slice. Every parallelism that cuts describes the result as slices. Everything else (initial weights,
the optimizer, checkpoints, snapshots, the gradient's norm) only ever sees slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor, nn

from drumline_contract.layout import Axis
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.storage import OffloadStore
from drumline_trainer.sharding.world import World

_SHARED_ELEMENTS = 1 << 16
"""A slice below this size is written by one of its holders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSlice:
    """A part of a global tensor, in this rank's memory."""

    name: str
    """Name of the parameter in the whole model, independent of stages and wrappers."""
    shape: tuple[int, ...]
    """Shape of the global tensor."""
    box: Box
    """The elements that the slice holds. It may be empty."""
    tensor: Tensor
    """Values of these elements, of the box's shape. Updated in place."""
    copies: int = 1
    """Number of ranks that hold exactly this slice."""
    copy: int = 0
    """Index of this rank among the ranks that hold this slice."""
    store: OffloadStore | None = None
    """Store of an offloaded tensor. None: it is on the device."""

    def like(self, tensor: Tensor, *, prefix: str) -> TensorSlice:
        """Return the same part of a tensor that belongs to this one, such as a moment."""
        return replace(self, name=f"{prefix}.{self.name}", tensor=tensor)

    def own_part(self) -> TensorSlice:
        """Return the part that this rank writes to a checkpoint, which has every element once.

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
    """Return the slices of an uncut model: whole tensors."""
    return [
        TensorSlice(
            name=name,
            shape=tuple(weight.shape),
            box=Box(offsets=(0,) * weight.dim(), shape=tuple(weight.shape)),
            tensor=weight.detach(),
        )
        for name, weight in named_weights(module)
    ]


def named_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Return `module.named_modules()` with a type, which PyTorch does not give it."""
    return cast("Iterator[tuple[str, nn.Module]]", module.named_modules())


def named_weights(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield a model's tensors without adapters: parameters, then buffers (not learned)."""
    yield from module.named_parameters()
    yield from module.named_buffers()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The part of a parameter that the tensor and expert axes assign to a rank."""

    shape: tuple[int, ...]
    """Shape of the global tensor."""
    box: Box
    """This rank's part; the parameter has its shape."""
    copies: int = 1
    """Number of ranks of those axes that hold exactly this part."""
    copy: int = 0
    """Index of this rank among the ranks of those axes that hold this part."""


def whole_cut(parameter: Tensor, world: World) -> Cut:
    """Return the cut of a parameter that every rank of the tensor axis holds whole."""
    shape = tuple(parameter.shape)
    return Cut(
        shape=shape,
        box=Box(offsets=(0,) * len(shape), shape=shape),
        copies=world.size(Axis.TENSOR),
        copy=world.index(Axis.TENSOR),
    )
