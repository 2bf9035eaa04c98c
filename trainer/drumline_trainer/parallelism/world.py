"""This rank among the others: a layout made real as process groups.

Every rank makes all groups of all axes in the same order, so that nobody waits for a rank that is
not coming. An axis of one rank has no group: code that asks for it does nothing, and a world of one
rank runs no collective at all. An axis over all ranks is the default group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from drumline_trainer.layout import Axis, Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What code that works on one axis needs of it."""

    layout: Layout
    rank: int
    device: torch.device
    groups: Mapping[Axis, ProcessGroup] = field(default_factory=dict[Axis, ProcessGroup])
    """Of this rank; axes of one rank are left out."""

    @classmethod
    def join(cls, layout: Layout, *, device: torch.device) -> World:
        """Make the groups of the initialized default group's ranks. Collective.

        Raises:
            ValueError: the layout is one of another number of ranks.
        """
        if layout.world_size != dist.get_world_size():
            raise ValueError(f"{layout} has {layout.world_size} ranks, not {dist.get_world_size()}")
        rank = dist.get_rank()
        made: dict[tuple[tuple[int, ...], ...], ProcessGroup] = {}
        groups: dict[Axis, ProcessGroup] = {}
        for axis in Axis:
            sets = layout.groups(axis)
            if len(sets[0]) == 1:
                continue
            if sets not in made:
                made[sets] = _make(sets, rank=rank)
            groups[axis] = made[sets]
        return cls(layout=layout, rank=rank, device=device, groups=groups)

    def group(self, axis: Axis) -> ProcessGroup | None:
        """This rank's group along an axis; None for an axis of one rank."""
        return self.groups.get(axis)

    def size(self, axis: Axis) -> int:
        """Number of ranks along an axis."""
        return len(self.layout.group_of(axis, self.rank))

    def index(self, axis: Axis) -> int:
        """This rank's place along an axis."""
        return self.layout.group_of(axis, self.rank).index(self.rank)

    @property
    def random_rank(self) -> int:
        """Ranks that must draw the same random numbers have the same.

        Along the tensor axis everyone holds the same activations, unless they are cut by position.
        """
        layout = self.layout
        return self.rank if layout.sequence_parallel else self.rank // layout.tensor

    def mesh(self, *axes: Axis) -> DeviceMesh:
        """A device mesh of these axes, slowest first, as torch's own parallelisms want it."""
        ranks = torch.tensor(self.layout.group_of(axes[-1], self.rank))
        if len(axes) > 1:
            rows = [self.layout.group_of(axes[0], int(rank)) for rank in ranks]
            ranks = torch.tensor(rows).T.contiguous()
        groups = [self._group_or_one(axis) for axis in axes]
        return DeviceMesh.from_group(
            groups if len(groups) > 1 else groups[0],
            self.device.type,
            mesh=ranks if len(groups) > 1 else None,
            mesh_dim_names=tuple(map(str, axes)),
        )

    def _group_or_one(self, axis: Axis) -> ProcessGroup:
        group = self.group(axis)
        if group is None:
            group = dist.new_group([self.rank], use_local_synchronization=True)
            return cast("ProcessGroup", group)  # else: this rank is not in it
        return group


def _make(sets: tuple[tuple[int, ...], ...], *, rank: int) -> ProcessGroup:
    """All of them; the one that this rank is in."""
    if len(sets) == 1:
        assert dist.group.WORLD is not None  # noqa: S101 - it is initialized
        return dist.group.WORLD
    made = {ranks: dist.new_group(list(ranks)) for ranks in sets}
    own = next(group for ranks, group in made.items() if rank in ranks)
    return cast("ProcessGroup", own)
