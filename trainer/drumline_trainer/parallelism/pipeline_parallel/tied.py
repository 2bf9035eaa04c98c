"""Tied embeddings in a pipeline: one parameter that two stages hold, at both ends of the model.

The first stage embeds tokens with it, the last one scores them with it (Press and Wolf 2017). Each
end only has its own part of the gradient, so both parts are summed over the two ranks, after data
parallelism has summed each over its ranks and before the norm. Both ends have equal weights, equal
gradients and an equal optimizer, so they stay equal to the last bit: the sum of two numbers is the
same in either order. A V-shaped schedule has both ends on one rank, and sums locally. All other
axes (vocabulary, rows, copies) cut both ends alike: the n-th rank of one end holds what the n-th
rank of the other holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline_contract.layout import Axis, Layout
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.models.decoder import TIED_WEIGHT
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class TiedGroup:
    """The two ranks at the ends of this rank's pipeline."""

    group: ProcessGroup
    device: torch.device
    """Device of the group's tensors, independent of where weights and gradients are."""


def tied_group(world: World) -> TiedGroup | None:
    """Return the ends of this rank's pipeline if this rank is one of them, otherwise None.

    Collective over all ranks of the world, also over those that get None. A pipeline whose ends are
    on one rank needs no group.
    """
    if _ends_share_a_rank(world.layout):
        return None
    # All ranks make all groups in the same order, or group creation hangs.
    pipelines = world.layout.groups(Axis.PIPELINE)
    group = world.split([(ranks[0], ranks[-1]) for ranks in pipelines])
    return None if group is None else TiedGroup(group=group, device=world.device)


def tied_copies(
    slices: Iterable[TensorSlice], *, layout: Layout, pipeline: int
) -> tuple[TensorSlice, ...]:
    """Let slices of a tied model count the other end's copies too.

    So the norm counts the parameter once, and checkpoints have it once: copies of the two ends
    alternate. Slices are in the order of this rank's stages; `pipeline` is its index on that axis.

    Args:
        slices: slices of this rank's stages.
        layout: degrees of parallelism.
        pipeline: index of this rank on the pipeline axis.
    """
    counted: list[TensorSlice] = []
    at_last = pipeline > 0  # the first slice on the pipeline's first rank is the first stage's
    for held in slices:
        if held.name == TIED_WEIGHT and layout.pipeline > 1:
            copy = 2 * held.copy + at_last
            counted.append(replace(held, copies=2 * held.copies, copy=copy))
            at_last = True
        else:
            counted.append(held)
    return tuple(counted)


def sum_tied_gradients(
    slices: Sequence[TensorSlice], gradients: Sequence[Tensor], *, tied: TiedGroup | None
) -> None:
    """Replace both ends' gradients by their sum, in place. Collective over the ends.

    Args:
        slices: all of this rank, untied weights too.
        gradients: gradients of the slices, in their order.
        tied: result of `tied_group`.
    """
    mine = [g for s, g in zip(slices, gradients, strict=True) if s.name == TIED_WEIGHT]
    # Both ends are on this rank, as in V-shaped schedules.
    if len(mine) > 1:
        first, last = mine
        first.add_(last)
        last.copy_(first)
    elif mine and tied is not None and mine[0].numel():
        total = mine[0].to(tied.device)
        with step_part("all_reduce", "tied"):
            dist.all_reduce(total, group=tied.group)
        if total is not mine[0]:  # the weights are in the host's memory
            mine[0].copy_(total)


def check_tied_weights(slices: Iterable[TensorSlice], *, tied: TiedGroup | None) -> None:
    """Raise ValueError unless both ends hold the same elements. Collective over the ends."""
    mine = [s for s in slices if s.name == TIED_WEIGHT]
    boxes: list[list[int]] = [[*s.box.offsets, *s.box.shape] for s in mine]
    if tied is not None:
        box = torch.tensor(boxes[0], device=tied.device)
        both = [torch.empty_like(box) for _ in range(2)]
        dist.all_gather(both, box, group=tied.group)
        boxes = [each.tolist() for each in both]  # pyright: ignore[reportUnknownMemberType] - torch does not say what is in the list
    if any(box != boxes[0] for box in boxes):
        raise ValueError(
            f"the ends of the pipeline hold different parts of {TIED_WEIGHT}: (offsets, shape)"
            f" {boxes[0]} and {boxes[1]}"
        )


def _ends_share_a_rank(layout: Layout) -> bool:
    return layout.pipeline == 1 or layout.schedule.is_v_shaped
