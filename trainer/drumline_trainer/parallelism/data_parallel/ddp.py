"""Distributed data parallelism: every rank holds all weights and works on other samples.

Gradients are packed into fp32 buckets and summed by all-reduces that start during the last backward
pass (Li et al. 2020). They are sums, not means: the loss is divided by the tokens of the global
batch. Every rank then makes the same update.

    bytes for each parameter: 16 (weight 4, gradient 4, moments 8); in bf16 2 more for the copy
    traffic of a rank in a step: 2 · gradients · (n - 1) / n

With one rank there is nothing to sum: a plain model, no bucket, no collective.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.parallelism.data_parallel.buckets import BUCKET_BYTES, InOrder, buckets_of
from drumline_trainer.parallelism.data_parallel.weights import MasterHome, Weight, masters


class Replicas:
    """Weights of which all ranks of a group have a copy."""

    def __init__(
        self,
        weights: Sequence[Weight],
        *,
        group: ProcessGroup | None,
        backwards: int,
        bucket_bytes: int = BUCKET_BYTES,
        home: MasterHome | None = None,
    ) -> None:
        """Watch the gradients of these weights.

        Args:
            weights: with storage, in the order of the model.
            group: over which gradients are summed; None for one rank.
            backwards: how many backward passes a step has.
            bucket_bytes: of the gradients that are sent at once.
            home: of fp32 weights beside the model's own; None for the device.
        """
        self._parameters = [weight.parameter for weight in weights]
        copies, copy = (group.size(), group.rank()) if group else (1, 0)
        whole = masters([w.parameter.detach() for w in weights], home=home)
        self.slices = tuple(
            w.part(tensor, copies=copies, copy=copy, home=its_home)
            for w, (tensor, its_home) in zip(weights, whole, strict=True)
        )
        self._group, self._axis = group, weights[0].axis
        self._buckets = buckets_of(self._parameters, limit=bucket_bytes) if group else []
        self._order = InOrder(
            self._buckets,
            expected=backwards,
            send=self._sum,
        )
        self._sums: list[tuple[Tensor, dist.Work]] = []

    def gradients(self) -> list[Tensor]:
        """Of the slices, summed over the group. Once a step, after the last backward pass."""
        self._order.finish()
        summed = {p: p.grad for p in self._parameters if p.grad is not None}  # of one rank
        for bucket, (row, work) in zip(self._buckets, self._sums, strict=True):
            with step_part("all_reduce", self._axis):
                work.wait()
            summed.update(zip(bucket.parameters, bucket.pieces(row, index=0), strict=True))
        return [
            summed[parameter]
            if parameter in summed
            else torch.zeros_like(own.tensor, device=parameter.device)  # it may be at home
            for parameter, own in zip(self._parameters, self.slices, strict=True)
        ]

    @torch.no_grad()
    def publish(self) -> None:
        """Compute with what has been written into the slices."""
        for parameter, own in zip(self._parameters, self.slices, strict=True):
            if parameter.dtype is not torch.float32:
                parameter.copy_(own.tensor)
            if own.home is not None:
                own.home.let_go([own.tensor])

    def stage_done(self, stage: nn.Module) -> None:
        """Send what is left of a stage whose backward passes are over."""
        self._order.complete(stage.parameters())

    def zero(self) -> None:
        """Drop the gradients."""
        self._sums.clear()
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def _sum(self, number: int) -> None:
        bucket = self._buckets[number]
        row = bucket.pack((p.grad for p in bucket.parameters), dtype=torch.float32).view(-1)
        for parameter in bucket.parameters:
            parameter.grad = None
        work = dist.all_reduce(row, group=self._group, async_op=True)
        assert work is not None  # noqa: S101 - this rank is in the group
        self._sums.append((row, work))
