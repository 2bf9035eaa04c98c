"""Matrices that several ranks hold parts of, each computed by one of these ranks.

If every rank assembles every matrix, all ranks do the same arithmetic. Here n ranks take n matrices
at a time, one each. An all-to-all brings the parts of a matrix to its rank, and another returns the
results. So each rank does an n-th of the arithmetic and receives 2 N / n · (n - 1) / n elements of
N. All-gathers bring it N (n - 1) / n (Liu et al. 2025, distributed Muon).

    ranks 0 1, matrices A B       parts A0 B0 | A1 B1
    to the rank of each matrix          A0 A1 | B0 B1
    results back                        a0 b0 | a1 b1
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.optimization.matrices import Matrices, MatrixGather
from drumline_trainer.sharding.boxes import Box


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixTurns:
    """Matrices that are exchanged at once; the k-th is the turn of the group's k-th rank."""

    numbers: tuple[int, ...]
    """Indices of the matrices among all, at most one for each rank."""
    gathers: tuple[MatrixGather, ...]
    """Gather that would assemble each of them, over one group."""

    def to_turn(self, parts: Sequence[Tensor]) -> Tensor | None:
        """Return this rank's matrix, assembled from all ranks' parts.

        None: it has none. Collective.

        Args:
            parts: this rank's part of each of the matrices.
        """
        mine = self._mine
        boxes = () if mine is None else mine.boxes
        pieces = self._exchanged(
            [part.flatten() for part in parts],
            sizes=[box.elements for box in boxes],
            like=parts[0],
        )
        # A rank without a matrix still joined the exchange, because the all-to-all is collective.
        if mine is None:
            return None
        whole = pieces[0].new_zeros(mine.whole.shape)
        for box, piece in zip(boxes, pieces, strict=True):
            if box.elements:
                whole[box.slices_within(mine.whole)] = piece.view(box.shape)
        return whole

    def to_parts(self, whole: Tensor | None, *, like: Sequence[Tensor]) -> list[Tensor]:
        """Return this rank's parts of all ranks' results. Collective.

        Args:
            whole: result of this rank's matrix, or None.
            like: tensors with the shapes of the parts.
        """
        mine = self._mine
        # Cut the result into the boxes that `to_whole` received. Empty boxes keep the order of
        # the messages.
        sent: list[Tensor] = []
        if mine is not None and whole is not None:
            sent = [
                whole[box.slices_within(mine.whole)].flatten()
                if box.elements
                else whole.new_zeros(0)
                for box in mine.boxes
            ]
        # Each rank k < len(like) sends one piece, so the sizes follow the order of the parts.
        pieces = self._exchanged(sent, sizes=[part.numel() for part in like], like=like[0])
        return [piece.view(part.shape) for piece, part in zip(pieces, like, strict=True)]

    @property
    def _mine(self) -> MatrixGather | None:
        # The k-th matrix belongs to the group's k-th rank. The last turn can have fewer matrices.
        rank = self.gathers[0].group.rank()
        return self.gathers[rank] if rank < len(self.gathers) else None

    def _exchanged(
        self, sent: Sequence[Tensor], *, sizes: Sequence[int], like: Tensor
    ) -> list[Tensor]:
        """Exchange flat pieces.

        Return those for this rank, of these sizes; later ranks send none.
        """
        first = self.gathers[0]
        ranks = first.group.size()
        # all_to_all_single wants one length for each rank. Trailing zeros mark ranks without a
        # piece.
        outgoing = [len(piece) for piece in sent] + [0] * (ranks - len(sent))
        incoming = [*sizes, *[0] * (ranks - len(sizes))]
        # Pieces lie back to back in rank order, so the running sums of the sizes give their places.
        room = like.new_empty(sum(incoming))
        packed = torch.cat(list(sent)) if sent else like.new_empty(0)
        with step_part("all_to_all", first.axis):
            dist.all_to_all_single(room, packed, incoming, outgoing, group=first.group)
        ends = list(itertools.accumulate(sizes))
        return [room[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def turns_of(matrices: Sequence[Matrices]) -> list[MatrixTurns]:
    """Plan turns for matrices that one all-gather would join; those of like size share a turn.

    Every rank of a group has the same ones, in the same order.
    """
    shared = [number for number, matrix in enumerate(matrices) if _is_shared(matrix)]
    # The sort is stable, so ranks that see equal sizes choose the same order. Like sizes waste
    # little time, since a turn lasts as long as its largest matrix.
    shared.sort(key=lambda number: -matrices[number].box.elements)
    turns: list[MatrixTurns] = []
    # A turn uses one group, since its all-to-all runs over one group.
    for group, members in itertools.groupby(
        shared, key=lambda number: matrices[number].gathers[0].group
    ):
        every = iter(members)
        while numbers := tuple(itertools.islice(every, group.size())):
            gathers = tuple(matrices[number].gathers[0] for number in numbers)
            turns.append(MatrixTurns(numbers=numbers, gathers=gathers))
    return turns


def _is_shared(matrix: Matrices) -> bool:
    """Return whether all ranks of one group would compute the same from it."""
    # A second gather (tensor axis) or a stack of experts does not fit the one-matrix-per-rank plan.
    if len(matrix.gathers) != 1 or len(matrix.slice.shape) != 2:
        return False
    return matrix.box == Box(offsets=(0, 0), shape=tuple(matrix.slice.shape))
