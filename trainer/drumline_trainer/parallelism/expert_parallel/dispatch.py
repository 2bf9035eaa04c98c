"""Rows travel to the ranks that hold their experts, and come back.

Every rank of the group holds X / size experts, in the order of the ranks. A rank's rows are sorted
by expert, so what goes to a rank is one piece. First the counts are exchanged, so that everyone
knows how much is coming; then the rows, then the results, back in the order in which they left:

    rank 0: rows of experts 0 0 1 2 3 3          gets 0 0 1 | 0 1 1   →   0 0 0 1 1 1
    rank 1: rows of experts 0 1 1 3 3 3          gets 2 3 3 | 3 3 3   →   2 3 3 3 3 3

An expert sees its rows in the order of the ranks, and of each rank's tokens: the order of the
batch, whatever the number of ranks. Any expert, and any rank, may get none.

How many rows travel is known when the router is done, and the host has to know it, as sizes of
messages are its to give: it waits for the counts once a layer, and for nothing else. They leave
first, and what needs no rows from elsewhere (their order, shared experts) is queued behind them, so
that the GPU works on while the host waits. Messages of the largest possible size would need no
waiting, and be as many times as large as the group has ranks.

Shapes: R rows of this rank, D hidden, X experts of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function
from torch.distributed import ProcessGroup

from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.models.mixture import Dispatch


class RemoteDispatch(Dispatch):
    """`models.mixture.Dispatch` where each rank of a group holds a part of the experts."""

    def __init__(self, *, group: ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def exchange_counts(self, counts_X: Tensor) -> Any:
        """Tell the other ranks how many rows come. Collective over the group."""
        sent = counts_X.view(dist.get_world_size(self.group), -1)
        received = torch.empty_like(sent)
        with step_part("all_to_all", Axis.EXPERT):
            dist.all_to_all_single(received, sent, group=self.group)
        return _Counts(here=received.sum(dim=0), both=OnHost(torch.stack((sent, received))))

    def forward(self, rows_RD: Tensor, announced: Any, experts: nn.Module) -> Tensor:
        """Apply the experts to rows [R, D] sorted by expert.

        Return their outputs in the same order.

        Collective over the group. Waits for the counts on the host.

        Args:
            rows_RD: rows sorted by expert [R, D].
            announced: counts that are already on their way.
            experts: this rank's experts.
        """
        # 1. how many rows come and go, by rank and by expert of the rank that gets them
        counts = cast("_Counts", announced)
        sent, received = counts.both.wait()
        sending, receiving = [sum(line) for line in sent], [sum(line) for line in received]
        # 2. rows travel to their experts and arrive by rank, then by expert: put in order by expert
        rows = _Exchange.apply(rows_RD, sending, receiving, self.group)
        rows = transposed(rows, received)
        # 3. the experts that are here
        rows = experts(rows, counts.here)
        # 4. the same way back
        rows = transposed(rows, [list(line) for line in zip(*received, strict=True)])
        return _Exchange.apply(rows, receiving, sending, self.group)


class OnHost:
    """Whole numbers on their way from the device; the host waits for them and nothing behind."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers, self._arrived = numbers, None
        if numbers.device.type == "cuda":
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def wait(self) -> list[list[list[int]]]:
        """Wait for the copy, and return it as nested lists of three dimensions."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return cast("list[list[list[int]]]", self._numbers.tolist())  # pyright: ignore[reportUnknownMemberType] - torch does not say what is in the list


@dataclass(frozen=True, slots=True)
class _Counts:
    """Numbers of rows by expert."""

    here: Tensor
    """Rows for each expert of this rank [X / size], on the device."""
    both: OnHost
    """Sent, by rank and by expert of that rank, and received, by rank and by our expert."""


def transposed(rows_RD: Tensor, counts: list[list[int]]) -> Tensor:
    """Reorder pieces of counts[i][j] rows [rows, hidden] from order (i, j) into (j, i)."""
    lines, columns = len(counts), len(counts[0])
    pieces = cast("tuple[Tensor, ...]", rows_RD.split(list(chain.from_iterable(counts))))  # pyright: ignore[reportUnknownMemberType] - torch gives the sizes no type
    return torch.cat([pieces[i * columns + j] for j in range(columns) for i in range(lines)])


class _Exchange(Function):
    """sending[i] rows to rank i and receiving[i] rows from it; gradients the other way."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sending: list[int], receiving: list[int], group: ProcessGroup
    ) -> Tensor:
        ctx.sending, ctx.receiving, ctx.group = sending, receiving, group
        return _exchanged(rows, sending, receiving, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return _exchanged(grads[0], ctx.receiving, ctx.sending, ctx.group), None, None, None


def _exchanged(
    rows: Tensor, sending: list[int], receiving: list[int], group: ProcessGroup
) -> Tensor:
    received = rows.new_empty((sum(receiving), *rows.shape[1:]))
    with step_part("all_to_all", Axis.EXPERT):
        dist.all_to_all_single(received, rows.contiguous(), receiving, sending, group=group)
    return received
