"""Local SGD and DiLoCo: copies of the model train alone and synchronize every H steps.

Between two synchronizations no gradient and no weight is communicated between copies: each makes H
steps of the inner optimizer on samples of its own, with a norm, moments and a batch of its own.
Then the average of what the copies have moved since is used as a gradient (DiLoCo, Douillard et al.
2023):

    d = c - mean of w                              c: the weights they had in common
    m = momentum · m + d                           an outer step of SGD with Nesterov's momentum
    c = c - rate · (d + momentum · m)              and w = c on all copies

With a rate of 1 and no momentum c is the mean: local SGD (Stich 2018), which with H = 1 and SGD as
inner optimizer equals summing gradients.

    bytes for each parameter beside a copy's own: 4, with momentum 8
    traffic of a rank in H steps: 2 · 4 · shard · (n - 1) / n for n copies, once

Right after a synchronization weights and m are equal everywhere, so a checkpoint has them once; the
inner optimizer's moments are each copy's own and are saved for each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline_contract.config import LocalSgdConfig
from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.models.decoder import TIED_WEIGHT
from drumline_trainer.optimization.optimizer import Optimizer
from drumline_trainer.parallelism.data_parallel.buckets import BUCKET_BYTES
from drumline_trainer.sharding.slices import TensorSlice


class LocalSgd:
    """An optimizer whose every H-th step ends with an outer step; see the module."""

    def __init__(
        self,
        inner: Optimizer,
        slices: Sequence[TensorSlice],
        config: LocalSgdConfig,
        *,
        copies: ProcessGroup | None,
        steps: int,
    ) -> None:
        """Synchronize after every `config.every_steps` steps and after the last one.

        Args:
            inner: of this copy of the model, over `slices`.
            slices: fp32 weights of this rank, written in place.
            config: configuration of the outer step.
            copies: the ranks that hold the same slices, one in each copy; None where there is one.
            steps: of the whole run.
        """
        self._inner = inner
        self._weights = tuple(slices)
        self._config = config
        self._copies = copies
        self._steps = steps
        self._finished = 0
        self._common = [torch.empty_like(s.tensor) for s in slices]
        self._momenta = [torch.zeros_like(s.tensor) for s in slices]

    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """Step the inner optimizer, and at the end of a round the outer one. Collective then."""
        self._inner.update(gradients, rate=rate)
        self._finished += 1
        if self._finished % self._config.every_steps == 0 or self._finished == self._steps:
            self._outer_step()

    def set_finished_steps(self, steps: int) -> None:
        """Set the number of finished steps.

        The last one was synchronized, so weights are common.
        """
        self._inner.set_finished_steps(steps)
        self._finished = steps
        self._remember()

    def slices(self) -> list[TensorSlice]:
        """Return weights and momentum once, and the inner optimizer's state for each copy."""
        count, number = (self._copies.size(), self._copies.rank()) if self._copies else (1, 0)
        saved: list[TensorSlice] = []
        for held in self._inner.slices():
            if held.name.startswith("model."):
                saved.append(_of_all(held, count=count, number=number))
            else:
                saved.append(replace(held, name=f"copy-{number}.{held.name}"))
        if self._config.outer_momentum:
            for weight, momentum in zip(self._weights, self._momenta, strict=True):
                like = weight.like(momentum, prefix="outer.momentum")
                saved.append(_of_all(like, count=count, number=number))
        return saved

    @torch.no_grad()
    def _outer_step(self) -> None:
        """Make the outer step, a few megabytes at a time.

        Collective over the copies of the model.
        """
        for places in _runs(self._weights, limit=BUCKET_BYTES):
            moved = [self._common[p] - self._weights[p].tensor for p in places]
            if self._copies is not None:
                # One all-reduce for many small tensors.
                row = torch.cat([each.view(-1) for each in moved])
                with step_part("all_reduce", Axis.REPLICATE):
                    dist.all_reduce(row, group=self._copies)
                row /= self._copies.size()
                means = cast("tuple[Tensor, ...]", row.split([each.numel() for each in moved]))  # pyright: ignore[reportUnknownMemberType] - torch gives the sizes no type
                moved = [mean.view_as(each) for mean, each in zip(means, moved, strict=True)]
            for place, mean in zip(places, moved, strict=True):
                outer_step(
                    self._common[place],
                    mean,
                    self._momenta[place],
                    rate=self._config.outer_learning_rate,
                    momentum=self._config.outer_momentum,
                )
                self._weights[place].tensor.copy_(self._common[place])

    def _remember(self) -> None:
        for common, weight in zip(self._common, self._weights, strict=True):
            common.copy_(weight.tensor)


def outer_step(
    common: Tensor, moved: Tensor, velocity: Tensor, *, rate: float, momentum: float
) -> None:
    """Do one step of SGD with Nesterov's momentum, in place; `moved` is the gradient.

    Args:
        common: weights at the last synchronization, fp32. Changed.
        moved: mean over the ranks of old minus new weights.
        velocity: momentum, of the same shape. Changed.
        rate: outer learning rate.
        momentum: factor of the velocity.
    """
    velocity.mul_(momentum).add_(moved)
    common.sub_(moved, alpha=rate).sub_(velocity, alpha=rate * momentum)


def _of_all(held: TensorSlice, *, count: int, number: int) -> TensorSlice:
    """Return the slice as one that every copy of the model has."""
    return replace(held, copies=held.copies * count, copy=number * held.copies + held.copy)


def _runs(slices: Sequence[TensorSlice], *, limit: int) -> Iterator[range]:
    """Yield runs of indices whose bytes add up to at most `limit`, or single indices.

    A tied embedding is a run of its own. The order in which an all-reduce adds depends on an
    element's offset in the row, and both ends of a pipeline must get the same bits.
    """
    start, total = 0, 0
    for place, held in enumerate(slices):
        size = limit if held.name == TIED_WEIGHT else held.tensor.nbytes
        if place > start and total + size > limit:
            yield range(start, place)
            start, total = place, 0
        total += size
    if slices:
        yield range(start, len(slices))
