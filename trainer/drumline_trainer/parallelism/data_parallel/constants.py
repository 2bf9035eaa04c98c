"""Constants that a model computes with, held whole in fp32 by every rank of their stage.

No gradient changes them. They are the corrections of routers (`models.mixture`): a few numbers per
layer, whose last bits decide between experts. As buffers they stay fp32 in a model of bf16, and are
never cut or gathered. For the optimizer, checkpoints and snapshots they are weights whose gradient
is always zero and which do not decay, so no update changes a bit. Below adapters they are frozen
like the whole base. Stored floating-point buffers of transformers modules are treated alike.

With `model.routing.correction_rate` they follow the load of their experts instead (DeepSeek-V3,
section 2.1.2, like Megatron-LM). The tokens of all ranks and micro-batches are summed once a step,
and each correction moves by the rate towards the mean. A skipped step moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.models.mixture import MixtureOfExperts, corrections
from drumline_trainer.models.transformers.module import persistent_buffers
from drumline_trainer.parallelism.data_parallel.model import DataParallelModel
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World


class ModelWithConstants:
    """A data-parallel model, and after its weights the constants."""

    def __init__(
        self,
        inner: DataParallelModel,
        constants: Sequence[TensorSlice],
        *,
        moving: Sequence[MixtureOfExperts],
        group: ProcessGroup | None,
    ) -> None:
        """Join both.

        Args:
            inner: the model.
            constants: constants of its stages.
            moving: mixtures whose corrections follow the load.
            group: the ranks that see other tokens; None for one.
        """
        self._inner = inner
        self._constants = tuple(constants)
        self._moving, self._group = tuple(moving), group
        self._moves: list[tuple[Tensor, Tensor]] = []
        """Corrections, and what the step adds to each if it is not skipped."""
        self.slices = (*inner.slices, *self._constants)
        self.frozen = inner.frozen

    @property
    def stage_done(self) -> Callable[[nn.Module], None] | None:
        """Callback of the inner model."""
        return self._inner.stage_done

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the inner model, and zeros for the constants."""
        zeros = [torch.zeros_like(part.tensor) for part in self._constants]
        gradients = [*self._inner.gradients(), *zeros]
        self._moves = self._moves_by_load() if self._moving else []
        return gradients

    def refresh_copies(self) -> None:
        """Refresh the inner model, and move the corrections that follow the load."""
        for correction_X, move_X in self._moves:
            correction_X.add_(move_X)
        self._moves = []
        self._inner.refresh_copies()

    def zero(self) -> None:
        """Drop the gradients, and what a skipped step would have moved."""
        self._moves = []
        self._inner.zero()

    def _moves_by_load(self) -> list[tuple[Tensor, Tensor]]:
        """Return each mixture's corrections [X] with their changes [X].

        The load is the number of tokens on all ranks since the last step. Collective over the data
        ranks.
        """
        corrections_X, loads_X = zip(*map(_taken, self._moving), strict=True)
        loads_MX = torch.stack(loads_X)  # of every mixture as many experts
        if self._group is not None:
            with step_part("all_reduce", Axis.DATA):
                dist.all_reduce(loads_MX, group=self._group)
        rates = [mixture.routing.correction_rate for mixture in self._moving]
        # whole numbers: every layout has the same signs
        below_MX = (loads_MX.sum(dim=1, keepdim=True) - loads_MX * loads_MX.shape[1]).sign()
        moves_X = [rate * below_X.float() for rate, below_X in zip(rates, below_MX, strict=True)]
        return list(zip(corrections_X, moves_X, strict=True))


def _taken(mixture: MixtureOfExperts) -> tuple[Tensor, Tensor]:
    """Return corrections and tokens of each expert, both [experts], and forget the tokens."""
    correction_X = mixture.correction
    assert correction_X is not None  # noqa: S101 - `corrections` lists those that are
    seen_X, mixture.tokens_seen = mixture.tokens_seen, None
    if seen_X is None:
        seen_X = torch.zeros_like(correction_X, dtype=torch.int64)
    return correction_X, seen_X


def with_constants(
    model: DataParallelModel, stages: Sequence[nn.Module], *, world: World
) -> DataParallelModel:
    """Add the constants of the stages to a model. The stages must have storage.

    Args:
        model: the model to extend.
        stages: this rank's stages.
        world: this rank's process groups.
    """
    learning: list[TensorSlice] = []
    frozen: list[TensorSlice] = []
    moving: list[MixtureOfExperts] = []
    for stage in stages:
        for name, mixture in corrections(stage):
            learns = any(parameter.requires_grad for parameter in mixture.experts.parameters())
            (learning if learns else frozen).append(_whole(name, mixture.correction, world))
            if learns and mixture.routing.correction_rate:
                moving.append(mixture)
        stored = [_flat(name, each, world) for name, each in persistent_buffers(stage)]
        (learning if _learns_whole(stage) else frozen).extend(stored)
    if frozen:
        model.frozen = (*model.frozen, *frozen)
    if not learning:
        return model
    group = world.group(Axis.DATA)
    return ModelWithConstants(model, learning, moving=moving, group=group)


def _learns_whole(stage: nn.Module) -> bool:
    """Return whether all weights learn. If not, the base of the run fills the buffers."""
    return all(weight.requires_grad for weight in stage.parameters())


def _flat(name: str, buffer: Tensor, world: World) -> TensorSlice:
    """Flatten a buffer of a transformers module: only matrices decay."""
    return _whole(name, buffer.view(-1), world)


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
