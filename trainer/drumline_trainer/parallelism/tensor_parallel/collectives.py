"""The collectives of tensor parallelism as functions that autograd can go back through.

Each is linear; its backward is its adjoint, so a gradient is right whatever lies between them:

| function           | forward                     | backward                    |
|--------------------|-----------------------------|-----------------------------|
| `replicated`       | nothing                     | sum over the ranks          |
| `total`            | sum over the ranks          | nothing                     |
| `gathered`         | all positions of all ranks  | own positions of the sum    |
| `scattered_total`  | own positions of the sum    | all positions of all ranks  |
| `own_positions`    | own positions               | all positions of all ranks  |
| `all_features`     | all features of all ranks   | own features                |
| `shared_gradient`  | nothing                     | divide by the ranks         |
| `sum_neighbours`   | nothing                     | sum over some neighbours    |

The first four follow Megatron-LM (Shoeybi et al. 2019, Korthikanti et al. 2022). The next three are
for what every rank does on its own and alike: its gradient is whole on every rank already. The last
is for weights that some of the ranks have in common.

Sequences are cut into equal parts by rank, along the dimension before the last.
Shapes: B batch, S sequence, D hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function
from torch.distributed import ProcessGroup, Work

from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part


def copy_to_region(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return a replicated tensor (any shape) for work that differs by rank.

    Its gradient is the sum of all ranks' contributions. For activations, and for weights that all
    ranks hold.
    """
    return cast("Tensor", _Replicated.apply(x, group))


def reduce_from_region(x: Tensor, group: ProcessGroup) -> Tensor:
    """Sum a tensor (any shape) over the ranks. All ranks must use the result in the same way."""
    return cast("Tensor", _Total.apply(x, group))


def gather_positions(x_BSD: Tensor, group: ProcessGroup) -> Tensor:
    """Gather all positions from a tensor that has this rank's, for work that differs by rank."""
    return cast("Tensor", _Gathered.apply(x_BSD, group))


def reduce_scatter_positions(x_BSD: Tensor, group: ProcessGroup) -> Tensor:
    """Sum [B, S, D] over the ranks and return this rank's positions [B, S / ranks, D]."""
    return cast("Tensor", _ScatteredTotal.apply(x_BSD, group))


def scatter_positions(x_BSD: Tensor, group: ProcessGroup) -> Tensor:
    """Return this rank's positions [B, S / ranks, D] of a replicated tensor [B, S, D]."""
    return cast("Tensor", _OwnPositions.apply(x_BSD, group))


def gather_features(x: Tensor, group: ProcessGroup, *, pieces: Sequence[range]) -> Tensor:
    """Return the features of all ranks [..., F] of a tensor that has this rank's.

    All ranks must use the result in the same way.

    Args:
        x: this rank's features.
        group: process group of the tensor axis.
        pieces: range of features of each rank.
    """
    return cast("Tensor", _AllFeatures.apply(x, group, pieces))


def divide_gradient(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return a replicated tensor (any shape) for work that is equal on all ranks.

    Its gradient is divided by the number of ranks. So one sum over the ranks is right for it and
    for work that differs by rank.
    """
    return cast("Tensor", _SharedGradient.apply(x, group))


def sum_neighbours(weight: Tensor, group: ProcessGroup, *, count: int) -> Tensor:
    """Return a weight of which each run of `count` ranks holds a copy.

    Its gradient is the sum of their contributions. It is computed with those of all other ranks in
    one sum over the group, so these ranks need no group of their own.

    Args:
        weight: this rank's copy.
        group: process group of the tensor axis.
        count: number of consecutive ranks with the same copy.
    """
    return weight if count == 1 else cast("Tensor", _SumOfNeighbours.apply(weight, group, count))


class _SumOfNeighbours(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, count: int) -> Tensor:
        ctx.group, ctx.count = group, count
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        place = ctx.group.rank() // ctx.count
        every = gradients[0].new_zeros((ctx.group.size() // ctx.count, *gradients[0].shape))
        every[place] = gradients[0]
        return summed(every, ctx.group)[place], None, None


class _Replicated(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return summed(gradients[0], ctx.group), None


class _Total(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        del ctx
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        del ctx
        return gradients[0], None


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return all_positions(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return scattered_sum(gradients[0], ctx.group), None


class _ScatteredTotal(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return scattered_sum(x, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return all_positions(gradients[0], ctx.group), None


class _OwnPositions(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.chunk(group.size(), dim=-2)[group.rank()].contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return all_positions(gradients[0], ctx.group), None


class _AllFeatures(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup, pieces: Sequence[range]) -> Tensor:
        ctx.own = pieces[group.rank()]
        # A collective takes equal parts. The last features of narrower ones are not used.
        widest = max(map(len, pieces))
        parts = x.new_empty((group.size(), *x.shape[:-1], widest))
        with step_part("all_gather", Axis.TENSOR):
            own = F.pad(x, (0, widest - x.shape[-1])).contiguous()
            dist.all_gather_into_tensor(parts.flatten(0, 1), own, group=group)
        used = [part[..., : len(piece)] for part, piece in zip(parts, pieces, strict=True)]
        return torch.cat(used, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][..., ctx.own.start : ctx.own.stop], None, None


class _SharedGradient(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.ranks = group.size()
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] / ctx.ranks, None


def summed(x: Tensor, group: ProcessGroup) -> Tensor:
    """Return the sum of `x` (any shape) over the ranks as a new tensor. No gradient."""
    result, work = start_sum(x, group)
    with step_part("all_reduce", Axis.TENSOR):
        work.wait()
    return result


def start_sum(x: Tensor, group: ProcessGroup) -> tuple[Tensor, Work]:
    """Start the sum of `x` over the ranks. The result is valid after waiting. No gradient."""
    result = x.clone(memory_format=torch.contiguous_format)
    return result, _begun(dist.all_reduce(result, group=group, async_op=True))


def all_positions(x_BSD: Tensor, group: ProcessGroup) -> Tensor:
    """Concatenate the ranks' positions [B, S, D] to [B, S · ranks, D]. No gradient."""
    parts = x_BSD.new_empty((group.size(), *x_BSD.shape))
    with step_part("all_gather", Axis.TENSOR):
        dist.all_gather_into_tensor(parts.flatten(0, 1), x_BSD.contiguous(), group=group)
    return parts.movedim(0, -3).flatten(-3, -2)


def scattered_sum(x_BSD: Tensor, group: ProcessGroup) -> Tensor:
    """Sum [B, S, D] over the ranks; return this rank's positions [B, S / ranks, D]. No gradient."""
    result, work = start_scattered_sum(x_BSD, group)
    with step_part("reduce_scatter", Axis.TENSOR):
        work.wait()
    return result


def start_scattered_sum(x_BSD: Tensor, group: ProcessGroup) -> tuple[Tensor, Work]:
    """Start `scattered_sum`. The result is valid after waiting. No gradient."""
    by_rank = cast("Tensor", x_BSD.unflatten(-2, (group.size(), -1)))
    parts = by_rank.movedim(-3, 0).contiguous()
    result = torch.empty_like(parts[0])
    work = dist.reduce_scatter_tensor(result, parts.flatten(0, 1), group=group, async_op=True)
    return result, _begun(work)


def _begun(work: Work | None) -> Work:
    """Narrow the type: torch returns None only for a group without this rank."""
    assert work is not None  # noqa: S101 - every rank is in its own groups
    return work
