"""Whole matrices from slices of them, for an update that is not elementwise.

Data parallelism cuts a weight by rows and the tensor axis by rows or columns, so it is put together
in two all-gathers: over the ranks that share its rows, then over the tensor axis. A step that would
bring nothing new is left out: ranks of ddp already hold all rows, and experts that are shared out
whole are whole. A 3-D weight is a stack of matrices, and only those that this rank holds a part of
are put together.

One matrix at a time, so that the memory is that of the largest one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline_contract.config import DataParallel
from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixGather:
    """One all-gather of the parts of one weight."""

    group: ProcessGroup
    axis: Axis
    boxes: tuple[Box, ...]
    """Part that each rank of the group contributes."""
    whole: Box
    """Part that this rank assembles."""

    def __call__(self, own: Tensor) -> Tensor:
        """Assemble the whole [`whole`.shape] from all ranks' parts. Collective over the group."""
        # all_gather_into_tensor needs equal sizes, so each rank pads its part to the largest box.
        row = own.new_zeros(max(box.elements for box in self.boxes))
        row[: own.numel()] = own.flatten()
        rows = row.new_empty(len(self.boxes), row.numel())
        with step_part("all_gather", self.axis):
            dist.all_gather_into_tensor(rows.view(-1), row, group=self.group)
        whole = own.new_zeros(self.whole.shape)
        # A rank's box can exceed this rank's matrices in a stack of experts. Only the overlap is
        # copied.
        for box, brought in zip(self.boxes, rows, strict=True):
            common = self.whole.intersection(box)
            if common is not None:
                piece = brought[: box.elements].view(box.shape)
                whole[common.slices_within(self.whole)] = piece[common.slices_within(box)]
        return whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrices:
    """Plan to assemble the matrices that a slice of a weight is part of."""

    slice: TensorSlice
    gathers: tuple[MatrixGather, ...]
    box: Box
    """Box of this rank after the gathers: whole matrices, perhaps none."""

    def gather(self, part: Tensor) -> Tensor:
        """Gather whole matrices from a tensor of the slice's shape. Collective."""
        for join in self.gathers:
            part = join(part)
        return part

    def own(self, whole: Tensor) -> Tensor:
        """Return the slice's part of a tensor with the matrices' shape."""
        return whole[self.slice.box.slices_within(self.box)]


def matrices_of(slices: Sequence[TensorSlice], world: World) -> list[Matrices]:
    """Return the matrices of 2-D and 3-D slices.

    Collective; all ranks of a stage get the same ones.

    Raises:
        ValueError: no rank of the groups holds the rest of a matrix.
    """
    # Phase 1: exchange the boxes of each axis. The axis order is fixed, so all ranks call the same
    # collectives.
    sharded = world.layout.data_parallel is DataParallel.FSDP
    gathers: list[list[MatrixGather]] = [[] for _ in slices]
    boxes = [part.box for part in slices]
    for axis in (Axis.FSDP if sharded else Axis.DATA, Axis.TENSOR):
        group = world.group(axis)
        if group is None or not slices:
            continue
        brought = _exchanged(boxes, group=group, device=world.device)
        for place, (own, in_group) in enumerate(zip(boxes, brought, strict=True)):
            # Equal rows and columns on all ranks mean that the gather would bring nothing new.
            if len({(box.offsets[-2:], box.shape[-2:]) for box in in_group}) == 1:
                continue
            whole = _joined(own, in_group)
            gathers[place].append(MatrixGather(group=group, axis=axis, boxes=in_group, whole=whole))
            # The tensor axis then joins the boxes that the first axis has already widened.
            boxes[place] = whole
    # Phase 2: a matrix that is still cut has a layout without the ranks that hold the rest.
    for part, box in zip(slices, boxes, strict=True):
        if part.box.elements and box.shape[-2:] != part.shape[-2:]:
            raise ValueError(
                f"{part.name}: {box} of a weight of shape {part.shape} is not a matrix"
            )
    return [
        Matrices(slice=part, gathers=tuple(steps), box=box)
        for part, steps, box in zip(slices, gathers, boxes, strict=True)
    ]


def _exchanged(
    boxes: Sequence[Box], *, group: ProcessGroup, device: torch.device
) -> list[tuple[Box, ...]]:
    """Return for each of this rank's boxes what the group's ranks have in its place. Collective."""
    # One int64 message carries all boxes: offsets, then shape, for each slice in the same order.
    numbers = [number for box in boxes for number in (*box.offsets, *box.shape)]
    mine = torch.tensor(numbers, device=device)
    rows = mine.new_empty(group.size(), len(mine))
    dist.all_gather_into_tensor(rows.view(-1), mine, group=group)
    dims = [len(box.shape) for box in boxes]
    numbers_of_ranks: list[list[int]] = rows.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - torch says only list
    return list(zip(*(_boxes(row, dims) for row in numbers_of_ranks), strict=True))


def _boxes(numbers: Sequence[int], dims: Sequence[int]) -> list[Box]:
    every = iter(numbers)
    return [
        Box(offsets=tuple(itertools.islice(every, n)), shape=tuple(itertools.islice(every, n)))
        for n in dims
    ]


def _joined(own: Box, boxes: Sequence[Box]) -> Box:
    """Return own matrices of the stack, with all rows and columns that any of the boxes has."""
    # Empty boxes have offset 0 and would widen the range wrongly.
    held = [box for box in boxes if box.elements]
    starts = [min(box.offsets[dim] for box in held) for dim in (-2, -1)]
    ends = [max(box.ends[dim] for box in held) for dim in (-2, -1)]
    return Box(
        offsets=(*own.offsets[:-2], *starts),
        shape=(*own.shape[:-2], *(end - start for start, end in zip(starts, ends, strict=True))),
    )
