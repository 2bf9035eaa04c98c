"""Buckets: gradients that are sent together while the backward pass still runs.

Backward computes gradients from the last layer to the first. So parameters are put into buckets of
some megabytes in reverse order, and a bucket is sent when all its parameters have their last
gradient. Every rank sends the same buckets in the same order, whatever order its gradients came in.
A full bucket waits for those before it. The remaining buckets are sent when the last backward pass
is over, with zeros for unused parameters. So no rank waits for a message that another rank never
sends.

A packed bucket is a matrix with one row for each rank that gets a part of it. Each parameter is cut
by rows (dimension 0) into equal pieces, the last ones shorter or empty, as in `shards`. All first
pieces make the first row, and so on:

        rank 0 │ a[0:2]  b[0:1]  c[0:3] │          a has 4 rows, b has 1, c has 5
        rank 1 │ a[2:4]    --    c[3:5]-│          -- padding

Example: parameters a b c d with buckets 0 (d, c) and 1 (b, a); gradients arrive in the order d b a
c:

        d    bucket 0 lacks c
        b a  bucket 1 is full and waits for bucket 0
        c    bucket 0 is full: 0 is sent, then 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from drumline_trainer.sharding.boxes import Box

BUCKET_BYTES = 25 * 1024 * 1024
"""Bytes of fp32 gradients per bucket. Large enough for the network's full speed, small enough to
start early."""


def piece_of(shape: Sequence[int], *, index: int, parts: int) -> Box:
    """Return the rows of a tensor that belong to piece `index` of `parts`, contiguous in memory.

    A tensor of one row (one expert's weight) is cut along its next dimension.

    Args:
        shape: shape of the tensor.
        index: index of the piece.
        parts: number of pieces.
    """
    # The first dimension with several rows keeps every piece contiguous.
    dim = next((dim for dim, size in enumerate(shape) if size > 1), 0)
    piece = -(-shape[dim] // parts)
    start = min(index * piece, shape[dim])
    rows = min(piece, shape[dim] - start)
    before, after = shape[:dim], shape[dim + 1 :]
    return Box(
        offsets=(*(0 for _ in before), start, *(0 for _ in after)), shape=(*before, rows, *after)
    )


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """The place of each parameter in the packed matrix [parts, width].

    Every step packs and cuts each bucket, so places are computed once. In a tiny model a call of
    torch for each tensor would take as long as its layers.
    """

    parameters: tuple[nn.Parameter, ...]
    parts: int = 1
    """Rows of the matrix: ranks that it is shared out to."""

    @cached_property
    def _sizes(self) -> list[int]:
        """Elements of each parameter's pieces in a row."""
        return [piece_of(p.shape, index=0, parts=self.parts).elements for p in self.parameters]

    @cached_property
    def _boxes(self) -> dict[int, list[Box]]:
        """Pieces of the parameters by index, each computed when it is needed first."""
        return {}

    @cached_property
    def width(self) -> int:
        """Elements of a row."""
        return sum(self._sizes)

    def pack(self, tensors: Iterable[Tensor | None], *, dtype: torch.dtype) -> Tensor:
        """Pack tensors shaped as the parameters into a matrix [parts, width].

        None becomes zeros. Padding is undefined.
        """
        device = self.parameters[0].device
        matrix = torch.empty(self.parts, self.width, dtype=dtype, device=device)
        if self.parts == 1:
            flat = [
                torch.zeros(size, dtype=dtype, device=device) if t is None else t.reshape(-1)
                for t, size in zip(tensors, self._sizes, strict=True)
            ]
            torch.cat(flat, out=matrix[0])
            return matrix
        for tensor, block in zip(tensors, matrix.split_with_sizes(self._sizes, dim=1), strict=True):
            if tensor is None:
                block.zero_()
            else:
                for there, here in _aligned(block, tensor.reshape(-1)):
                    there.copy_(here)
        return matrix

    def unpack(self, matrix: Tensor) -> None:
        """Write a packed matrix of weights into the parameters."""
        for parameter, block in zip(
            self.parameters, matrix.split_with_sizes(self._sizes, dim=1), strict=True
        ):
            for there, here in _aligned(block, parameter.detach().view(-1)):
                here.copy_(there)

    def pieces(self, row: Tensor, *, index: int) -> list[Tensor]:
        """Return piece `index` of each parameter, in its shape, as views of a row [width]."""
        if index not in self._boxes:
            self._boxes[index] = [
                piece_of(p.shape, index=index, parts=self.parts) for p in self.parameters
            ]
        return [
            (place if box.elements == size else place[: box.elements]).view(box.shape)
            for place, size, box in zip(
                row.split_with_sizes(self._sizes), self._sizes, self._boxes[index], strict=True
            )
        ]


def _aligned(block: Tensor, flat: Tensor) -> Iterable[tuple[Tensor, Tensor]]:
    """Yield pairs of equally shaped views: the block's full rows, then the short one."""
    size = block.shape[1]
    if size:
        full, rest = divmod(flat.numel(), size)
        yield block[:full], flat[: full * size].view(full, size)
        # The last row is not full: its padding is left as it is.
        if rest:
            yield block[full, :rest], flat[full * size :]


def buckets_of(
    parameters: Sequence[nn.Parameter], *, parts: int = 1, limit: int = BUCKET_BYTES
) -> list[Bucket]:
    """Fill buckets of at most `limit` bytes of fp32, or of one parameter, from last to first.

    Args:
        parameters: parameters in the order of the model.
        parts: number of ranks that share a bucket.
        limit: size of a bucket in bytes of fp32.
    """
    filled: list[list[nn.Parameter]] = []
    free = 0
    # Reverse order, because backward finishes the last layers first.
    for parameter in reversed(parameters):
        size = 4 * parameter.numel()
        if not filled or size > free:
            filled.append([])
            free = limit
        filled[-1].append(parameter)
        free -= size
    return [Bucket(parameters=tuple(bucket), parts=parts) for bucket in filled]


class BucketSender:
    """Counts the gradients of a step and sends each bucket once it is full, in order.

    With several rounds a step the buckets travel at the end of each backward pass, otherwise after
    the last one.
    """

    def __init__(
        self,
        buckets: Sequence[Bucket],
        *,
        expected: int,
        rounds: int = 1,
        send: Callable[[int], None],
    ) -> None:
        """Watch the parameters of the buckets.

        Args:
            buckets: the same on all ranks of the group.
            expected: how many gradients each parameter gets in a round.
            rounds: how often in a step every bucket is sent.
            send: starts the exchange of the bucket with this number.
        """
        self._buckets = buckets
        self._expected = expected
        self._rounds = rounds
        self._send = send
        # Lists by place: each gradient is counted in the backward pass.
        self._number_of = [
            number for number, bucket in enumerate(buckets) for _ in bucket.parameters
        ]
        self._places: dict[Tensor, int] = {
            parameter: place
            for place, parameter in enumerate(p for bucket in buckets for p in bucket.parameters)
        }
        self._finished = 0
        self._ending = False
        self._begin_round()
        for parameter, place in self._places.items():
            parameter.register_post_accumulate_grad_hook(partial(self._count, place))  # pyright: ignore[reportUnknownMemberType] - torch gives the hook no type

    def finish(self) -> None:
        """Send what has not been sent. The backward passes of the step are over."""
        while self._finished < self._rounds:
            self._end_round()
        self._finished = 0
        self._begin_round()

    def complete(self, parameters: Iterable[Tensor]) -> None:
        """Mark parameters as complete for this round, whatever autograd has reported."""
        for parameter in parameters:
            place = self._places.get(parameter)
            if place is not None and self._missing[place]:
                self._missing[place] = 0
                self._open[self._number_of[place]] -= 1
        self._send_full()

    def _count(self, place: int, _parameter: Tensor) -> None:
        # An unannounced pass would be added to gradients that were already sent.
        if not self._missing[place] or self._finished == self._rounds:
            raise RuntimeError("more backward passes than were announced: a gradient came too late")
        # 1. with several rounds a step, the end of this backward pass ends the round
        self._missing[place] -= 1
        if self._rounds > 1 and not self._ending:
            self._ending = True
            engine = torch.autograd.Variable._execution_engine  # noqa: SLF001 - as FSDP2 does # pyright: ignore[reportPrivateUsage] - as FSDP2 does
            engine.queue_callback(self._end_round)
        # 2. the parameter's last gradient may fill its bucket, and let later full ones go too
        if not self._missing[place]:
            self._open[self._number_of[place]] -= 1
            self._send_full()

    def _send_full(self) -> None:
        # In order: all ranks must call the collectives in the same sequence.
        while self._next < len(self._open) and not self._open[self._next]:
            self._send_next()

    def _send_next(self) -> None:
        self._send(self._next)
        self._next += 1

    def _begin_round(self) -> None:
        self._next = 0
        self._missing = [self._expected] * len(self._number_of)
        self._open = [len(bucket.parameters) for bucket in self._buckets]

    def _end_round(self) -> None:
        # Unused parameters never report, so their buckets are sent now, as zeros.
        while self._next < len(self._open):
            self._send_next()
        self._ending = False
        self._finished += 1
        self._begin_round()
