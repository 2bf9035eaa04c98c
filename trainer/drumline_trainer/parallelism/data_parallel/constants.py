"""What a model computes with and does not learn, held whole in fp32 by every rank of its stage.

These are the corrections of routers (`models.mixture`): a few numbers a layer, whose last bits
decide between experts. As buffers they stay fp32 in a model of bf16, and nothing cuts or gathers
them. To the optimizer, checkpoints and snapshots they are weights whose gradient is always zero and
which do not decay: no update changes a bit. Beneath adapters they are frozen as all the base.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from drumline_trainer.layout import Axis
from drumline_trainer.models.mixture import corrections
from drumline_trainer.parallelism.data_parallel.model import DataParallelModel
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World


class ModelWithConstants:
    """A data-parallel model, and after its weights the constants."""

    def __init__(self, inner: DataParallelModel, constants: Sequence[TensorSlice]) -> None:
        self._inner = inner
        self._constants = tuple(constants)
        self.slices = (*inner.slices, *self._constants)
        self.frozen = inner.frozen

    @property
    def stage_done(self) -> Callable[[nn.Module], None] | None:
        """Of the model."""
        return self._inner.stage_done

    def gradients(self) -> list[Tensor]:
        """Of the model, and zeros."""
        zeros = [torch.zeros_like(part.tensor) for part in self._constants]
        return [*self._inner.gradients(), *zeros]

    def refresh_copies(self) -> None:
        """Of the model: constants have no copies."""
        self._inner.refresh_copies()

    def zero(self) -> None:
        """Drop the gradients."""
        self._inner.zero()


def with_constants(
    model: DataParallelModel, stages: Sequence[nn.Module], *, world: World
) -> DataParallelModel:
    """The model with the constants of its stages, which have storage."""
    learning: list[TensorSlice] = []
    frozen: list[TensorSlice] = []
    for stage in stages:
        for name, mixture in corrections(stage):
            learns = any(parameter.requires_grad for parameter in mixture.experts.parameters())
            (learning if learns else frozen).append(_whole(name, mixture.correction, world))
    if frozen:
        model.frozen = (*model.frozen, *frozen)
    return ModelWithConstants(model, learning) if learning else model


def _whole(name: str, tensor: Tensor | None, world: World) -> TensorSlice:
    assert tensor is not None  # noqa: S101 - `corrections` lists those that are
    shape, ranks = tuple(tensor.shape), world.size(Axis.TENSOR)
    return TensorSlice(
        name=name,
        shape=shape,
        box=Box(offsets=(0,) * len(shape), shape=shape),
        tensor=tensor,
        copies=world.size(Axis.DATA) * ranks,
        copy=world.index(Axis.DATA) * ranks + world.index(Axis.TENSOR),
    )
