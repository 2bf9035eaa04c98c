"""Context parallelism: every sequence is shared by the ranks along the context axis.

A rank embeds, normalizes and projects its own positions only (`zigzag.context_slices`); where
positions meet, in attention, keys and values travel around the ring (`ring_attention`). The model
only has to know which positions its tokens have. Losses and gradients are parts of sums: those
of all context ranks together are the whole sequence's.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.mixture import MixtureOfExperts
from drumline_trainer.models.replaceable import CoreAttention, Positions
from drumline_trainer.parallelism.context_parallel.ring_attention import ring_attention
from drumline_trainer.sharding.world import World


def context_parallel(model: nn.Module, world: World) -> None:
    """Replace, in place, what in a model or stage depends on positions that other ranks hold.

    Parameters are not touched. Apply after tensor parallelism, whose sequence parallelism cuts the
    positions of a context rank once more; attention always sees all of them.
    """
    group = world.group(Axis.CONTEXT)
    if group is None:
        return
    # A list, because modules are replaced during the walk.
    for module in list(model.modules()):
        if isinstance(module, MixtureOfExperts):
            module.sequence_counts = SummedCounts(group=group)
        for name, child in list(module.named_children()):
            if isinstance(child, CoreAttention):
                ring = RingAttention(group=group, causal=child.causal, scale=child.scale)
                setattr(module, name, ring)
    model.positions = ZigzagPositions(
        cast("Positions", model.get_submodule("positions")),
        size=world.size(Axis.CONTEXT),
        index=world.index(Axis.CONTEXT),
    )


class RingAttention(nn.Module):
    """`models.seams.CoreAttention` over the positions of all ranks of a group.

    Args:
        group: ranks that share a sequence.
        causal: whether later positions are masked.
        scale: factor of the scores. None: 1/√(head size).
    """

    def __init__(self, *, group: ProcessGroup, causal: bool, scale: float | None = None) -> None:
        super().__init__()
        self.group = group
        self.causal = causal
        self.scale = scale

    def forward(
        self, q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, documents: Documents | None = None
    ) -> Tensor:
        """Attend by ring; shape [batch, heads, sequence, head size], of this rank's positions.

        Args:
            q_BHSE: queries [batch, heads, sequence, head size].
            k_BGSE: keys, with G key-value heads.
            v_BGSE: values, with G key-value heads.
            documents: limits of documents in the whole windows.
        """
        if self.scale is not None:  # blocks divide by √E
            q_BHSE = q_BHSE * (self.scale * q_BHSE.shape[-1] ** 0.5)
        return ring_attention(
            q_BHSE, k_BGSE, v_BGSE, group=self.group, causal=self.causal, documents=documents
        )


class ZigzagPositions(Positions):
    """`models.seams.Positions` of the rank at `index`: places in its part become positions.

    Args:
        places: positions of a whole sequence.
        size: number of ranks.
        index: index of this rank.
    """

    def __init__(self, places: Positions, *, size: int, index: int) -> None:
        super().__init__()
        self.places = places
        self.size = size
        self.index = index

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return the positions [sequence], int64, as `zigzag.context_slices` gives them."""
        places_S = self.places(x_BSD)
        chunk = len(places_S) // 2
        first = self.index * chunk
        last = (2 * self.size - 1 - self.index) * chunk
        # The first half is chunk i, the second half chunk 2·size-1-i (see `zigzag`).
        return places_S + torch.where(places_S < chunk, first, last - chunk)

    def length(self, x_BSD: Tensor) -> int:
        """Return the length of the whole sequences, with the parts of all ranks."""
        return self.places.length(x_BSD) * self.size


class SummedCounts(nn.Module):
    """The `sequence_counts` of a mixture: choices of the ranks that share the sequences add up."""

    def __init__(self, *, group: ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, counts_BX: Tensor) -> Tensor:
        """Sum counts [B, X] over the context ranks, for the whole sequences."""
        summed_BX = counts_BX.clone()
        with step_part("all_reduce", Axis.CONTEXT):
            dist.all_reduce(summed_BX, group=self.group)
        return summed_BX
