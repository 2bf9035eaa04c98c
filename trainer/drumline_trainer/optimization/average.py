"""The exponential moving average of the weights, kept beside an optimizer of any rule.

After each update a = kept · a + (1 - kept) · w. The share that is kept begins at 0, so that the
average begins as the first updated weights, and rises to `decay` as in the published recipes:
kept = min(decay, n / (n + 9)) after n earlier updates. Averages of the last weights of a run are
often better than any of them (Polyak and Juditsky 1992; Izmailov et al. 2018), and without the
noise of single steps.

fp32 and cut as the weights that a rank updates: elementwise, so nothing is communicated.

    bytes for each parameter: 4, shared out as the optimizer's state
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from drumline_trainer.optimization.optimizer import Optimizer
from drumline_trainer.sharding.slices import TensorSlice

AVERAGE: Final = "average"
"""Prefix of its names in a checkpoint."""
_SLOWNESS: Final = 9
"""Updates until half of the average is kept, where `decay` is higher."""


class WeightAverage:
    """An optimizer whose weights are averaged over its updates; see the module.

    Args:
        inner: the optimizer.
        slices: weights to average.
        decay: weight of the old average, from 0 to 1.
    """

    def __init__(self, inner: Optimizer, slices: Sequence[TensorSlice], *, decay: float) -> None:
        """Average these slices, which `inner` updates in place."""
        self._inner = inner
        self._weights = tuple(slices)
        self._decay = decay
        self._updates = 0
        # of the first update nothing of them is kept
        self._averages = [torch.zeros_like(weight.tensor) for weight in slices]

    @torch.no_grad()
    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """Do one step of the inner optimizer, and take its result into the average."""
        self._inner.update(gradients, rate=rate)
        # kept is 0 at the first update, so the zeros of the start do not enter the average.
        kept = min(self._decay, self._updates / (self._updates + _SLOWNESS))
        if self._averages:
            weights = [weight.tensor for weight in self._weights]
            torch._foreach_lerp_(self._averages, weights, 1 - kept)  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage] - the fused kernel
        self._updates += 1

    def set_finished_steps(self, steps: int) -> None:
        """Set the number of updates that the state and the average have seen."""
        self._inner.set_finished_steps(steps)
        self._updates = steps

    def slices(self) -> list[TensorSlice]:
        """Return weights, inner state and the average by their names in a checkpoint."""
        return [
            *self._inner.slices(),
            *(
                weight.like(average, prefix=AVERAGE)
                for weight, average in zip(self._weights, self._averages, strict=True)
            ),
        ]

    @contextmanager
    def as_weights(self) -> Generator[None]:
        """Replace the weights by the average within the context, a tensor at a time.

        The weights have the same bits afterwards. The caller refreshes copies of the weights within
        the context and after it. Before the first update there is no average, and the weights stay.
        """
        # The exchange is its own inverse, so the second call restores the same bits.
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        if not self._updates:
            return
        for average, weight in zip(self._averages, self._weights, strict=True):
            # A swap needs one tensor of extra memory, not a second copy of the model.
            kept = weight.tensor.clone()
            weight.tensor.copy_(average)
            average.copy_(kept)
