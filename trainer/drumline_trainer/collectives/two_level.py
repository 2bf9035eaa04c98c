"""All-reduce in two levels: the slow network between nodes carries 1 / k of the tensor.

The k ranks of a node sum their tensors, a piece each (reduce-scatter); each sums its piece with the
ranks of the same local rank on the other nodes (all-reduce); the node gathers the pieces
(all-gather). All k network cards of a node work at once.
"""

from __future__ import annotations

import torch
from torch.distributed import ProcessGroup

from drumline_trainer.collectives.ring import (
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
)


def two_level_all_reduce(
    tensor: torch.Tensor, *, inside: ProcessGroup | None, between: ProcessGroup | None
) -> None:
    """Sum a contiguous tensor over all ranks, in place.

    Args:
        tensor: of the same shape on all ranks.
        inside: the ranks of this node; equally many on every node.
        between: the ranks with this local rank on all nodes.
    """
    if inside is None:
        ring_all_reduce(tensor, between)
        return
    pieces = tensor.view(-1).tensor_split(inside.size())
    ring_reduce_scatter(pieces, inside)
    ring_all_reduce(pieces[inside.rank()], between)
    ring_all_gather(pieces, inside)
