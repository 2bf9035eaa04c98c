"""The process groups of a layout, as this rank sees them.

Every rank makes all groups of all axes in the same order, so that no rank waits for one that never
arrives. An axis of one rank has no group, so its collectives are skipped. A world of one rank runs
no collective at all. An axis over all ranks is the default group.

If copies of the model work independently for a while (`workers`), each of them is a world of its
own: the same code, fewer ranks, counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from drumline_contract.layout import Axis, Layout

_PEER_LOST_WORDS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "socket closed",
    "remote process exited",
    "ncclremoteerror",
    "ncclsystemerror",
    "ncclinternalerror",
    "nccl communicator was aborted",
    "nccl communicator encountered error",
    "timed out waiting",
)
"""Gloo and NCCL raise plain RuntimeErrors: only their messages tell a lost peer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Layout, rank, device and groups: the input of code that works on one axis."""

    layout: Layout
    rank: int
    device: torch.device
    groups: Mapping[Axis, ProcessGroup] = field(default_factory=dict[Axis, ProcessGroup])
    """Groups of this rank. Axes of one rank are left out."""
    everyone: ProcessGroup | None = None
    """All ranks of this world; None: the default group, or there is one rank."""
    siblings: tuple[tuple[int, ...], ...] = ()
    """Global ranks of each of several worlds of one layout, ordered by their rank there. Empty for
    the one world of all ranks."""
    sibling: int = 0
    """Index of this world among those."""

    @classmethod
    def join(cls, layout: Layout, *, device: torch.device) -> World:
        """Make the groups of the initialized default group's ranks. Collective.

        Raises:
            ValueError: the layout is one of another number of ranks.
        """
        if layout.world_size != dist.get_world_size():
            raise ValueError(f"{layout} has {layout.world_size} ranks, not {dist.get_world_size()}")
        # The groups need the rank and the layout, so the world is made in two steps.
        whole = cls(layout=layout, rank=dist.get_rank(), device=device)
        return replace(whole, groups=_groups_of_axes(whole))

    def subworld(self, copies: int) -> World:
        """Return the world of `copies` neighbours on the axis `dp_replicate`.

        Collective over all ranks.
        """
        layout = self.layout.with_replicas(copies)
        # All siblings make their groups at once: new_group is collective over the default group.
        siblings = self.layout.replica_blocks(copies)
        sibling = next(n for n, ranks in enumerate(siblings) if self.rank in ranks)
        part = replace(
            self,
            layout=layout,
            rank=siblings[sibling].index(self.rank),
            groups={},
            siblings=siblings,
            sibling=sibling,
        )
        # One sibling of several has no default group of its own, so it makes one.
        everyone = part.split([range(layout.world_size)]) if layout.world_size > 1 else None
        return replace(part, everyone=everyone, groups=_groups_of_axes(part))

    def split(
        self, sets: Sequence[Sequence[int]], *, backend: str | None = None
    ) -> ProcessGroup | None:
        """Make a group of each set of ranks, in all siblings alike; the one this rank is in.

        Collective over all ranks of the default group.
        """
        mine: ProcessGroup | None = None
        # Every rank calls new_group for every set, also for sets it is not in (torch's rule).
        for each in self.siblings or (range(dist.get_world_size()),):
            for ranks in sets:
                group = dist.new_group([each[rank] for rank in ranks], backend=backend)
                if isinstance(group, ProcessGroup):  # a rank that is not in it gets a token
                    mine = group
        return mine

    def global_ranks(self, ranks: Iterable[int]) -> list[int]:
        """Map ranks to their numbers in the default group."""
        return [self.siblings[self.sibling][rank] if self.siblings else rank for rank in ranks]

    def group(self, axis: Axis) -> ProcessGroup | None:
        """Return this rank's group along an axis. None: the axis has one rank."""
        return self.groups.get(axis)

    def size(self, axis: Axis) -> int:
        """Return the number of ranks along an axis."""
        return len(self.layout.group_of(axis, self.rank))

    def index(self, axis: Axis) -> int:
        """Return this rank's index along an axis."""
        return self.layout.group_of(axis, self.rank).index(self.rank)

    @property
    def random_rank(self) -> int:
        """Ranks that must draw the same random numbers have the same.

        Along the tensor axis everyone holds the same activations, unless they are cut by position.
        """
        layout = self.layout
        # Ranks of a tensor group are neighbours, so division by its size gives one number per
        # group.
        return self.rank if layout.sequence_parallel else self.rank // layout.tensor

    def mesh(self, *axes: Axis) -> DeviceMesh:
        """Return a device mesh of these axes, slowest first, for PyTorch's own parallelisms."""
        inner = self.layout.group_of(axes[-1], self.rank)
        ranks = torch.tensor(self.global_ranks(inner))
        if len(axes) > 1:
            # A column of the mesh is one group of the slower axis, hence the transpose.
            rows = [self.global_ranks(self.layout.group_of(axes[0], rank)) for rank in inner]
            ranks = torch.tensor(rows).T.contiguous()
        groups = [self._group_or_single(axis) for axis in axes]
        return DeviceMesh.from_group(
            groups if len(groups) > 1 else groups[0],
            self.device.type,
            mesh=ranks if len(groups) > 1 else None,
            mesh_dim_names=tuple(map(str, axes)),
        )

    def _group_or_single(self, axis: Axis) -> ProcessGroup:
        group = self.group(axis)
        if group is None:
            # Local synchronization: only this rank joins, since others may not need the single
            # group.
            group = dist.new_group([dist.get_rank()], use_local_synchronization=True)
            return cast("ProcessGroup", group)  # else: this rank is not in it
        return group


def _groups_of_axes(world: World) -> dict[Axis, ProcessGroup]:
    made: dict[tuple[tuple[int, ...], ...], ProcessGroup | None] = {}
    groups: dict[Axis, ProcessGroup] = {}
    for axis in Axis:
        # All groups along an axis have the same size, so one of them suffices.
        sets = world.layout.groups(axis)
        if len(sets[0]) == 1:
            continue
        # Axes with the same sets share one communicator, which saves NCCL's buffers.
        if sets not in made:
            whole = len(sets) == 1 and not world.siblings
            made[sets] = dist.group.WORLD if whole else world.split(sets)
        group = made[sets]
        assert group is not None  # noqa: S101 - every rank is in one of the sets
        groups[axis] = group
    return groups


def tells_lost_peer(error: RuntimeError) -> bool:
    """Return whether the message of an error of Gloo or NCCL is that of a lost peer."""
    return any(words in str(error).lower() for words in _PEER_LOST_WORDS)
