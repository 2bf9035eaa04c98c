"""Which matrices are exchanged at once, and that nothing gets lost between ranks."""

from __future__ import annotations

from typing import Any
from unittest.mock import create_autospec

import torch
from torch.distributed import ProcessGroup

from drumline_contract.layout import Axis
from drumline_trainer.optimization.matrices import Matrices, MatrixGather
from drumline_trainer.optimization.shared_matrices import turns_of
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice

RANKS = 3


def group() -> Any:
    made = create_autospec(ProcessGroup, instance=True)
    made.size.return_value = RANKS
    made.rank.return_value = 0
    return made


def matrix(
    name: str, rows: int, columns: int, *, of: Any, stack: int | None = None, joins: int = 1
) -> Matrices:
    """This rank has the first third of the rows."""
    shape = (rows, columns) if stack is None else (stack, rows, columns)
    zeros = (0,) * (len(shape) - 1)
    boxes = tuple(
        Box(offsets=(rows * n // RANKS, *zeros), shape=(rows // RANKS, *shape[1:]))
        for n in range(RANKS)
    )
    whole = Box(offsets=(0, *zeros), shape=shape)
    part = TensorSlice(name=name, shape=shape, box=boxes[0], tensor=torch.zeros(boxes[0].shape))
    join = MatrixGather(group=of, axis=Axis.FSDP, boxes=boxes, whole=whole)
    return Matrices(slice=part, gathers=(join,) * joins, box=whole)


def test_as_many_matrices_as_ranks_are_exchanged_at_once_the_largest_first() -> None:
    ranks = group()
    sizes = [(6, 2), (6, 8), (6, 4), (6, 8), (6, 8), (6, 3), (6, 8)]
    matrices = [matrix(f"m{n}", *size, of=ranks) for n, size in enumerate(sizes)]
    assert [turns.numbers for turns in turns_of(matrices)] == [(1, 3, 4), (6, 2, 5), (0,)]


def test_stacks_and_matrices_that_two_axes_cut_are_not() -> None:
    ranks = group()
    matrices = [
        matrix("stack", 6, 2, of=ranks, stack=4),
        matrix("cut twice", 6, 2, of=ranks, joins=2),
        matrix("whole", 6, 2, of=ranks, joins=0),
        matrix("shared", 6, 2, of=ranks),
    ]
    assert [turns.numbers for turns in turns_of(matrices)] == [(3,)]


def test_matrices_of_different_groups_are_not_exchanged_at_once() -> None:
    ranks, neighbours = group(), group()
    matrices = [matrix("a", 6, 4, of=ranks), matrix("b", 6, 2, of=neighbours)]
    assert [turns.numbers for turns in turns_of(matrices)] == [(0,), (1,)]
