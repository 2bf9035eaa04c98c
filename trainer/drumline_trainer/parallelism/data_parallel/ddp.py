"""Distributed data parallelism: every rank holds all weights and sees other samples.

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
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.parallelism.data_parallel.bucketed import BucketedModel
from drumline_trainer.parallelism.data_parallel.buckets import BUCKET_BYTES
from drumline_trainer.parallelism.data_parallel.weights import ModelWeight, master_weights
from drumline_trainer.sharding.storage import OpenStore


class DdpModel(BucketedModel):
    """Weights of which all ranks of a group have a copy."""

    def __init__(
        self,
        weights: Sequence[ModelWeight],
        *,
        group: ProcessGroup | None,
        backwards: int,
        bucket_bytes: int = BUCKET_BYTES,
        open_store: OpenStore | None = None,
    ) -> None:
        """Install hooks on the parameters of these weights.

        Args:
            weights: weights with storage, in the order of the model.
            group: over which gradients are summed; None for one rank.
            backwards: how many backward passes a step has.
            bucket_bytes: bytes of the gradients that are sent at once.
            open_store: opens a store for additional fp32 weights. None: they stay on the device.
        """
        super().__init__(
            weights,
            parts=1 if group else 0,
            bucket_bytes=bucket_bytes,
            expected=backwards,
            rounds=1,
            send=self._sum,
        )
        copies, copy = (group.size(), group.rank()) if group else (1, 0)
        masters = master_weights([w.parameter.detach() for w in weights], open_store=open_store)
        self.slices = tuple(
            w.part(tensor, copies=copies, copy=copy, store=store)
            for w, (tensor, store) in zip(weights, masters, strict=True)
        )
        self._group = group
        self._sums: list[tuple[Tensor, dist.Work]] = []

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the slices in fp32, summed over the group.

        Call it once per step, after the last backward pass. Collective over the group.
        """
        # Send the rest first, then wait: the sums overlap.
        self._sender.finish()
        summed = {p: p.grad for p in self._parameters if p.grad is not None}  # of one rank
        for bucket, (row, work) in zip(self._buckets, self._sums, strict=True):
            with step_part("all_reduce", self._axis):
                work.wait()
            summed.update(zip(bucket.parameters, bucket.pieces(row, index=0), strict=True))
        return [
            summed[parameter]
            if parameter in summed
            else torch.zeros_like(own.tensor, device=parameter.device)  # the slice may be offloaded
            for parameter, own in zip(self._parameters, self.slices, strict=True)
        ]

    @torch.no_grad()
    def refresh_copies(self) -> None:
        """Compute with what has been written into the slices."""
        for parameter, own in zip(self._parameters, self.slices, strict=True):
            # An fp32 parameter is its own master.
            if parameter.dtype is not torch.float32:
                parameter.copy_(own.tensor)
            if own.store is not None:
                own.store.release([own.tensor])

    def zero(self) -> None:
        """Drop the gradients."""
        self._sums.clear()
        super().zero()

    def _sum(self, number: int) -> None:
        row = self._take_gradients(number).view(-1)
        # Asynchronous, beside the backward pass of earlier layers.
        work = dist.all_reduce(row, group=self._group, async_op=True)
        assert work is not None  # noqa: S101 - this rank is in the group
        self._sums.append((row, work))
