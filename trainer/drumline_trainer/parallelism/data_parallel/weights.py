"""The parameters of this rank's stages, as data parallelism gets them.

The tensor and expert axes have cut them, and say where each part lies (`Cut`). Data parallelism
cuts once more, by rows, or copies: `ModelWeight.part` composes both into a `TensorSlice`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from drumline_contract.layout import Axis
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import Cut, TensorSlice, whole_cut
from drumline_trainer.sharding.storage import OffloadStore, OpenStore
from drumline_trainer.sharding.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class CutStages:
    """This rank's stages as the pipeline, tensor, context and expert axes left them."""

    stages: Sequence[nn.Module]
    """On the meta device, in the order of the model."""
    cuts: Mapping[str, Cut] = field(default_factory=dict[str, Cut])
    """Cuts of parameters by name. A parameter without one is whole on every rank of the tensor
    axis."""
    experts: Collection[str] = ()
    """Names of the parameters that are summed over the ranks with the same experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWeight:
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
        store: OffloadStore | None = None,
    ) -> TensorSlice:
        """Return the slice of it that data parallelism assigns to this rank.

        Args:
            tensor: the slice's values, shaped as `box`.
            box: part of the local parameter; None: all of it.
            copies: number of ranks of the group that hold this slice.
            copy: index of this rank among them.
            store: store of the values, if they are offloaded.
        """
        inner = box or Box(offsets=(0,) * len(self.cut.box.shape), shape=self.cut.box.shape)
        starts = zip(self.cut.box.offsets, inner.offsets, strict=True)
        return TensorSlice(
            name=self.name,
            shape=self.cut.shape,
            box=Box(offsets=tuple(map(sum, starts)), shape=inner.shape),
            tensor=tensor,
            copies=copies * self.cut.copies,
            copy=copy * self.cut.copies + self.cut.copy,
            store=store,
        )


def weights_of(model: CutStages, *, world: World) -> tuple[ModelWeight, ...]:
    """Return all parameters in the order of the model."""
    return tuple(
        ModelWeight(
            name=name,
            parameter=parameter,
            cut=model.cuts.get(name) or whole_cut(parameter, world),
            expert=name in model.experts,
        )
        for stage in model.stages
        for name, parameter in stage.named_parameters()
    )


def master_weights(
    tensors: Sequence[Tensor], *, open_store: OpenStore | None
) -> list[tuple[Tensor, OffloadStore | None]]:
    """Return the updated tensor of each parameter: itself if it is fp32, otherwise an fp32 copy.

    Copies are on the device or in a store. In a store their contents are undefined.
    """
    copied = [tensor for tensor in tensors if tensor.dtype is not torch.float32]
    store = open_store([4 * tensor.numel() for tensor in copied]) if open_store and copied else None
    if store is None:
        return [(tensor.to(torch.float32), None) for tensor in tensors]
    return [
        (tensor, None)
        if tensor.dtype is torch.float32
        else (store.empty(tensor.shape, dtype=torch.float32), store)
        for tensor in tensors
    ]
