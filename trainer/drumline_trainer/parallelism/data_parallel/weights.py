"""The parameters of this rank's stages, as data parallelism finds them.

The tensor and expert axes have cut them, and say where each part lies (`Cut`). Data parallelism
cuts once more, by rows, or copies: `Weight.part` puts the two together into a `Slice`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from drumline_trainer.layout import Axis
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut, Slice
from drumline_trainer.sharding.world import World

if TYPE_CHECKING:
    from drumline_trainer.memory.offload_store import Home


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """A parameter of one of this rank's stages."""

    name: str
    """In the whole model."""
    parameter: nn.Parameter
    cut: Cut
    expert: bool
    """Summed over the ranks that hold the same experts, not over all that see other samples."""

    @property
    def axis(self) -> Axis:
        """The ranks over which its gradient is summed."""
        return Axis.EXPERT_DATA if self.expert else Axis.DATA

    def part(
        self,
        tensor: Tensor,
        *,
        box: Box | None = None,
        copies: int,
        copy: int,
        home: Home | None = None,
    ) -> Slice:
        """The slice that data parallelism leaves of it: `box` of the parameter, or all of it."""
        inner = box or Box(offsets=(0,) * len(self.cut.box.shape), shape=self.cut.box.shape)
        starts = zip(self.cut.box.offsets, inner.offsets, strict=True)
        return Slice(
            name=self.name,
            shape=self.cut.shape,
            box=Box(offsets=tuple(map(sum, starts)), shape=inner.shape),
            tensor=tensor,
            copies=copies * self.cut.copies,
            copy=copy * self.cut.copies + self.cut.copy,
            home=home,
        )


def weights_of(
    stages: Sequence[nn.Module],
    *,
    cuts: Mapping[str, Cut],
    experts: Collection[str],
    world: World,
) -> tuple[Weight, ...]:
    """All parameters in the order of the model."""
    return tuple(
        Weight(
            name=name,
            parameter=parameter,
            cut=cuts.get(name) or _whole(parameter, world),
            expert=name in experts,
        )
        for stage in stages
        for name, parameter in stage.named_parameters()
    )


MasterHome = Callable[[Sequence[int]], "Home"]
"""A home for tensors of so many bytes each."""


def masters(
    tensors: Sequence[Tensor], *, home: MasterHome | None
) -> list[tuple[Tensor, Home | None]]:
    """What is updated for each part of the model: itself if it is fp32, else an fp32 copy of it.

    Copies lie on the device or at home; there their contents are undefined.
    """
    copied = [tensor for tensor in tensors if tensor.dtype is not torch.float32]
    place = home([4 * tensor.numel() for tensor in copied]) if home and copied else None
    if place is None:
        return [(tensor.to(torch.float32), None) for tensor in tensors]
    return [
        (tensor, None)
        if tensor.dtype is torch.float32
        else (place.empty(tensor.shape, dtype=torch.float32), place)
        for tensor in tensors
    ]


def _whole(parameter: nn.Parameter, world: World) -> Cut:
    """Of a parameter that nobody has cut: all tensor ranks hold it."""
    shape = tuple(parameter.shape)
    return Cut(
        shape=shape,
        box=Box(offsets=(0,) * len(shape), shape=shape),
        copies=world.size(Axis.TENSOR),
        copy=world.index(Axis.TENSOR),
    )
