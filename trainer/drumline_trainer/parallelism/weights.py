"""The parameters of this rank's stages, as data parallelism finds them.

The tensor and expert axes have cut them, and say where each part lies (`Cut`). Data parallelism
cuts once more, by rows, or copies: `Weight.part` puts the two together into a `Slice`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from drumline_trainer.layout import Axis
from drumline_trainer.parallelism.shards import Box
from drumline_trainer.parallelism.slices import Cut, Slice
from drumline_trainer.parallelism.world import World


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

    def part(self, tensor: Tensor, *, box: Box | None = None, copies: int, copy: int) -> Slice:
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


def _whole(parameter: nn.Parameter, world: World) -> Cut:
    """Of a parameter that nobody has cut: all tensor ranks hold it."""
    shape = tuple(parameter.shape)
    return Cut(
        shape=shape,
        box=Box(offsets=(0,) * len(shape), shape=shape),
        copies=world.size(Axis.TENSOR),
        copy=world.index(Axis.TENSOR),
    )
