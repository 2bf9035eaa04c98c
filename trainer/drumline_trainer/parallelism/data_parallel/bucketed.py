"""The common part of DDP and ZeRO: gradients packed into buckets that are sent in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from drumline_trainer.parallelism.data_parallel.buckets import BucketSender, buckets_of
from drumline_trainer.parallelism.data_parallel.weights import ModelWeight


class BucketedModel:
    """Parameters whose gradients leave in buckets; a subclass says by which collective."""

    def __init__(
        self,
        weights: Sequence[ModelWeight],
        *,
        parts: int,
        bucket_bytes: int,
        expected: int,
        rounds: int,
        send: Callable[[int], None],
    ) -> None:
        """Install hooks on the parameters of these weights.

        Args:
            weights: weights with storage, in the order of the model.
            parts: ranks that a bucket is scattered to; 1 where it is summed whole, and 0 where
                there is a single rank: then there is no bucket.
            bucket_bytes: bytes of the gradients that are sent at once.
            expected: how many gradients each parameter gets in a round.
            rounds: how often in a step every bucket is sent.
            send: starts the collective of the bucket with this number.
        """
        self._parameters = [weight.parameter for weight in weights]
        self._axis = weights[0].axis
        self._buckets = (
            buckets_of(self._parameters, parts=parts, limit=bucket_bytes) if parts else []
        )
        self._sender = BucketSender(self._buckets, expected=expected, rounds=rounds, send=send)

    def stage_done(self, stage: nn.Module) -> None:
        """Send the remaining gradients of a stage whose backward passes are finished."""
        self._sender.complete(stage.parameters())

    def zero(self) -> None:
        """Drop the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def _take_gradients(self, number: int) -> Tensor:
        """Move a bucket's gradients out of the parameters into an fp32 matrix [parts, width]."""
        bucket = self._buckets[number]
        matrix = bucket.pack((p.grad for p in bucket.parameters), dtype=torch.float32)
        # Free the memory at once, and let the next backward pass begin from nothing.
        for parameter in bucket.parameters:
            parameter.grad = None
        return matrix
