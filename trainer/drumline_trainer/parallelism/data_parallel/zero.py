"""ZeRO-1 and ZeRO-2: all weights on every rank, each rank updates its own rows of them.

Rajbhandari et al. 2020. The optimizer's state, and with a low precision the fp32 weights, exist
once in the group: every parameter is cut by rows. A reduce-scatter gives each rank the summed
gradient of its rows; after the update an all-gather gives all ranks the new weights, in the type
that the model computes in.

    ZeRO-1  adds up whole gradients over the micro-batches, one reduce-scatter a step
    ZeRO-2  one reduce-scatter a micro-batch; whole gradients live from their backward to their
            bucket's departure, only sums of own rows stay. In a pipeline, where backward passes
            of micro-batches overlap, it adds up whole gradients too.

    bytes for each parameter, n ranks, bf16: ZeRO-1 2 + 4 + 12/n, ZeRO-2 2 + 16/n
    traffic of a rank in a step: as DDP; ZeRO-2 sends gradients once for each micro-batch
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.parallelism.data_parallel.buckets import (
    BUCKET_BYTES,
    InOrder,
    buckets_of,
    piece_of,
)
from drumline_trainer.parallelism.data_parallel.weights import MasterHome, Weight, masters
from drumline_trainer.sharding.slices import Slice

_IN_FLIGHT = 2
"""Buckets that are on the wire at once: their memory is that of whole gradients."""


class SharedUpdates:
    """Weights whose update is shared out among the ranks of a group, by rows."""

    def __init__(
        self,
        weights: Sequence[Weight],
        *,
        group: ProcessGroup,
        backwards: int,
        every_backward: bool,
        bucket_bytes: int = BUCKET_BYTES,
        home: MasterHome | None = None,
    ) -> None:
        """Watch the gradients of these weights.

        Args:
            weights: with storage, in the order of the model.
            group: among which the update is shared out.
            backwards: how many backward passes a step has.
            every_backward: ZeRO-2: send the gradients of each of them.
            bucket_bytes: of the gradients that are sent at once.
            home: of fp32 weights beside the model's own; None for the device.
        """
        self._group, self._axis = group, weights[0].axis
        self._index, parts = group.rank(), group.size()
        self.slices = _own_rows(weights, index=self._index, parts=parts, home=home)
        self._parameters = [weight.parameter for weight in weights]
        self._own = dict(zip(self._parameters, self.slices, strict=True))
        self._buckets = buckets_of(self._parameters, parts=parts, limit=bucket_bytes)
        self._order = InOrder(
            self._buckets,
            expected=1 if every_backward else backwards,
            rounds=backwards if every_backward else 1,
            send=self._scatter,
        )
        self._flying: deque[tuple[int, Tensor, Tensor, dist.Work]] = deque()
        self._sums: dict[int, Tensor] = {}

    def gradients(self) -> list[Tensor]:
        """Of the slices, summed over the group. Once a step, after the last backward pass."""
        self._order.finish()
        while self._flying:
            self._land()
        summed: dict[Tensor, Tensor] = {}
        for number, bucket in enumerate(self._buckets):
            rows = bucket.pieces(self._sums[number], index=self._index)
            summed.update(zip(bucket.parameters, rows, strict=True))
        return [summed[parameter] for parameter in self._parameters]

    @torch.no_grad()
    def publish(self) -> None:
        """Give all ranks what each has written into its slices; one bucket ahead on the wire."""
        gathering: deque[tuple[int, Tensor, Tensor, dist.Work]] = deque()
        for number in range(len(self._buckets)):
            gathering.append(self._gather(number))
            if len(gathering) == _IN_FLIGHT:
                self._take(*gathering.popleft())
        while gathering:
            self._take(*gathering.popleft())

    def stage_done(self, stage: nn.Module) -> None:
        """Send what is left of a stage whose backward passes are over."""
        self._order.complete(stage.parameters())

    def zero(self) -> None:
        """Drop the gradients."""
        self._sums.clear()
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def _scatter(self, number: int) -> None:
        bucket = self._buckets[number]
        matrix = bucket.pack((p.grad for p in bucket.parameters), dtype=torch.float32)
        for parameter in bucket.parameters:
            parameter.grad = None
        row = matrix.new_empty(bucket.width)
        work = dist.reduce_scatter_tensor(row, matrix.view(-1), group=self._group, async_op=True)
        assert work is not None  # noqa: S101 - this rank is in the group
        self._flying.append((number, row, matrix, work))
        if len(self._flying) > _IN_FLIGHT:
            self._land()

    @torch.no_grad()
    def _land(self) -> None:
        number, row, _, work = self._flying.popleft()
        with step_part("reduce_scatter", self._axis):
            work.wait()
        if number in self._sums:
            self._sums[number].add_(row)
        else:
            self._sums[number] = row

    def _gather(self, number: int) -> tuple[int, Tensor, Tensor, dist.Work]:
        bucket = self._buckets[number]
        dtype = bucket.parameters[0].dtype
        row = torch.empty(bucket.width, dtype=dtype, device=bucket.parameters[0].device)
        pieces = bucket.pieces(row, index=self._index)
        for parameter, piece in zip(bucket.parameters, pieces, strict=True):
            own = self._own[parameter]
            piece.copy_(own.tensor)
            if own.home is not None:
                own.home.let_go([own.tensor])
        matrix = row.new_empty(bucket.parts, bucket.width)
        work = dist.all_gather_into_tensor(matrix.view(-1), row, group=self._group, async_op=True)
        assert work is not None  # noqa: S101 - this rank is in the group
        return number, matrix, row, work

    def _take(self, number: int, matrix: Tensor, _row: Tensor, work: dist.Work) -> None:
        with step_part("all_gather", self._axis):
            work.wait()
        self._buckets[number].unpack(matrix)


def _own_rows(
    weights: Sequence[Weight], *, index: int, parts: int, home: MasterHome | None
) -> tuple[Slice, ...]:
    """In fp32 the rows of the model's parameters themselves, else fp32 tensors beside them."""
    boxes = [piece_of(w.parameter.shape, index=index, parts=parts) for w in weights]
    rows = [
        w.parameter.detach()[tuple(map(slice, box.offsets, box.ends))]
        for w, box in zip(weights, boxes, strict=True)
    ]
    return tuple(
        w.part(tensor, box=box, copies=1, copy=0, home=its_home)
        for w, box, (tensor, its_home) in zip(weights, boxes, masters(rows, home=home), strict=True)
    )
