"""All-reduce in a ring: every rank sends to the next one only (Patarasuk and Yuan 2009).

The tensor is cut into n pieces. In n - 1 steps the pieces travel around the ring and are summed,
until rank r holds the whole sum of piece r; in n - 1 more steps the sums travel around.
Each rank sends 2 (n - 1) / n of the tensor, whatever n is, in 2 (n - 1) messages: best for large
tensors, slow to start for many ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.distributed import ProcessGroup

from drumline_trainer.collectives.point_to_point import exchange


def ring_all_reduce(tensor: torch.Tensor, group: ProcessGroup | None) -> None:
    """Sum a contiguous tensor over the group, in place."""
    if group is None:
        return
    pieces = tensor.view(-1).tensor_split(group.size())
    ring_reduce_scatter(pieces, group)
    ring_all_gather(pieces, group)


def ring_reduce_scatter(pieces: Sequence[torch.Tensor], group: ProcessGroup) -> None:
    """Make rank r's piece r the sum of all ranks' pieces r; other pieces hold partial sums."""
    rank, size = group.rank(), group.size()
    for step in range(size - 1):
        passed_on = pieces[(rank - step - 1) % size]
        summed = pieces[(rank - step - 2) % size]
        received = torch.empty_like(summed)
        exchange(
            group,
            send=passed_on,
            to=(rank + 1) % size,
            receive=received,
            source=(rank - 1) % size,
        )
        summed += received


def ring_all_gather(pieces: Sequence[torch.Tensor], group: ProcessGroup) -> None:
    """Send rank r's piece r to all ranks, for all r."""
    rank, size = group.rank(), group.size()
    for step in range(size - 1):
        exchange(
            group,
            send=pieces[(rank - step) % size],
            to=(rank + 1) % size,
            receive=pieces[(rank - step - 1) % size],
            source=(rank - 1) % size,
        )
