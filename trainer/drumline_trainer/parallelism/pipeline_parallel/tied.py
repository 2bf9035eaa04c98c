"""Tied embeddings in a pipeline: one parameter that two stages hold, at both ends of the model.

The first stage looks tokens up in it, the last one scores them with it. Each end only sees its own
part of the gradient, so both are summed over the two, after data parallelism has summed each over
its ranks and before the norm: from equal weights, equal gradients and an equal optimizer both ends
go on being equal to the last bit, as the sum of two numbers knows no order. A V-shaped schedule has
both ends on one rank, and they meet there. Any other way of cutting (by vocabulary, rows, copies)
cuts both ends alike: the n-th rank of one end holds what the n-th rank of the other holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline_trainer.layout import Axis, Layout
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.sharding.slices import Slice
from drumline_trainer.sharding.world import World

TIED = "embedding.weight"
"""The name of the parameter that is tied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """The two ranks at the ends of this rank's pipeline."""

    group: ProcessGroup
    device: torch.device
    """Where the group takes tensors, wherever weights and gradients lie."""


def tied_ends(world: World) -> Ends | None:
    """Of this rank's pipeline, where this rank is one of two; else None.

    Collective over all ranks of the world, also of those that get none. A pipeline whose ends are
    on one rank needs no group.
    """
    if _ends_meet(world.layout):
        return None
    pipelines = world.layout.groups(Axis.PIPELINE)
    group = world.split([(ranks[0], ranks[-1]) for ranks in pipelines])
    return None if group is None else Ends(group=group, device=world.device)


def tied_copies(slices: Iterable[Slice], *, layout: Layout, pipeline: int) -> tuple[Slice, ...]:
    """Slices of a tied model that tell of the other end's copies.

    So the norm counts the parameter once, and checkpoints have it once: copies of the two ends
    take turns. Slices come in the order of this rank's stages; `pipeline` is its place.
    """
    found: list[Slice] = []
    at_last = pipeline > 0  # the first slice on the pipeline's first rank is the first stage's
    for one in slices:
        if one.name == TIED and layout.pipeline > 1:
            found.append(replace(one, copies=2 * one.copies, copy=2 * one.copy + at_last))
            at_last = True
        else:
            found.append(one)
    return tuple(found)


def sum_tied_gradients(
    slices: Sequence[Slice], gradients: Sequence[Tensor], *, ends: Ends | None
) -> None:
    """Make both ends' gradients their sum, in place. Collective over the ends.

    Args:
        slices: all of this rank, untied ones too.
        gradients: theirs, in the same order.
        ends: of `tied_ends`.
    """
    mine = [g for one, g in zip(slices, gradients, strict=True) if one.name == TIED]
    if len(mine) > 1:
        first, last = mine
        first.add_(last)
        last.copy_(first)
    elif mine and ends is not None and mine[0].numel():
        total = mine[0].to(ends.device)
        with step_part("all_reduce", "tied"):
            dist.all_reduce(total, group=ends.group)
        if total is not mine[0]:  # the weights lie in the host's memory
            mine[0].copy_(total)


def refuse_unequal_ends(slices: Iterable[Slice], *, ends: Ends | None) -> None:
    """Raise ValueError unless both ends hold the same elements. Collective over the ends."""
    mine = [one for one in slices if one.name == TIED]
    boxes = [[*one.box.offsets, *one.box.shape] for one in mine]
    if ends is not None:
        box = torch.tensor(boxes[0], device=ends.device)
        both = [torch.empty_like(box) for _ in range(2)]
        dist.all_gather(both, box, group=ends.group)
        boxes = [each.tolist() for each in both]
    if any(box != boxes[0] for box in boxes):
        raise ValueError(
            f"the ends of the pipeline hold different parts of {TIED}: (offsets, shape)"
            f" {boxes[0]} and {boxes[1]}"
        )


def _ends_meet(layout: Layout) -> bool:
    return layout.pipeline == 1 or layout.schedule.is_v_shaped
