"""Distribution of the rows of every weight over the servers, in host memory.

Copies of the model are workers. With `copies_per_node` above 1 the copies of a node are one worker,
whose first rank, its leader, pushes and pulls for all (hierarchical). Each parameter is cut by rows
into a piece for each server, so servers hold equal numbers of bytes. All pieces of a server are
sent as one row of numbers. Servers are leaders themselves, spread evenly. Of 8 leaders, 3 servers
are the first, third and sixth.

    leaders     0     1     2     3     4     5     6     7
    servers     0           1                 2

Leaders communicate in a Gloo group of their own, independent of the devices' backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from drumline_contract.config import ServerConfig
from drumline_contract.layout import Axis
from drumline_trainer.parallelism.data_parallel.buckets import piece_of
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World


def server_places(leaders: int, servers: int) -> list[int]:
    """Return the indices of the leaders that are servers."""
    return [number * leaders // servers for number in range(servers)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTopology:
    """Workers and servers among the ranks that hold the same parts of the model.

    Tensor and pipeline neighbours have servers of their own.
    """

    rank: int
    leaders: tuple[int, ...]
    """A rank of each worker, by its number in the whole world."""
    servers: tuple[int, ...]
    group: ProcessGroup | None
    """Group of the leaders. None on other ranks, and with a single leader."""
    node: ProcessGroup | None
    """Group of the ranks of this worker. None for a single rank."""
    leader: int
    """Global rank of this worker's leader."""

    @classmethod
    def of(cls, config: ServerConfig, *, whole: World, worker: World) -> ServerTopology:
        """Make the groups of leaders and workers. Collective over all ranks.

        Args:
            config: configuration of the servers.
            whole: all ranks.
            worker: the ranks of this rank's worker.
        """
        together = worker.size(Axis.DATA)
        sets = [ranks[::together] for ranks in whole.layout.groups(Axis.DATA)]
        group = whole.split(sets, backend="gloo") if len(sets[0]) > 1 else None
        leaders = whole.layout.group_of(Axis.DATA, whole.rank)[::together]
        places = server_places(len(leaders), config.servers)
        own = worker.global_ranks(worker.layout.group_of(Axis.DATA, worker.rank))
        return cls(
            rank=whole.rank,
            leaders=leaders,
            servers=tuple(leaders[place] for place in places),
            group=group,
            node=worker.group(Axis.DATA),
            leader=own[0],
        )

    @property
    def leads(self) -> bool:
        """True if this rank pushes and pulls."""
        return self.rank == self.leader

    @property
    def number(self) -> int:
        """Index of this rank's server.

        Other ranks get the index after the last, with empty pieces.
        """
        return self.servers.index(self.rank) if self.rank in self.servers else len(self.servers)

    def broadcast_in_node(self, row: Tensor) -> None:
        """Broadcast the leader's row [n] to all ranks of the worker. Collective over the worker."""
        if self.node is not None:
            dist.broadcast(row, src=self.leader, group=self.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRows:
    """Slices of a worker, and which part of each lies on which server."""

    slices: tuple[TensorSlice, ...]
    servers: int

    def pieces(self, server: int) -> list[Box]:
        """Return the server's part of each slice, relative to the slice."""
        return [piece_of(s.tensor.shape, index=server, parts=self.servers) for s in self.slices]

    def size(self, server: int) -> int:
        """Return how many numbers a row of this server has."""
        return sum(piece.elements for piece in self.pieces(server))

    def pack(self, tensors: Sequence[Tensor], server: int) -> Tensor:
        """Pack tensors shaped as the slices into the server's row [n], in host memory."""
        parts = zip(tensors, self.pieces(server), strict=True)
        return torch.cat([_of(tensor, piece).reshape(-1) for tensor, piece in parts]).cpu()

    def unpack(self, row: Tensor, server: int) -> list[Tensor]:
        """Split a row [n] into views with the shapes of the server's pieces."""
        pieces = self.pieces(server)
        parts = cast("tuple[Tensor, ...]", row.split([piece.elements for piece in pieces]))  # pyright: ignore[reportUnknownMemberType] - torch gives the sizes no type
        return [part.view(piece.shape) for part, piece in zip(parts, pieces, strict=True)]

    @torch.no_grad()
    def write(self, row: Tensor, server: int) -> None:
        """Copy a server's row [n] of weights into the slices."""
        parts = zip(self.slices, self.pieces(server), self.unpack(row, server), strict=True)
        for held, piece, part in parts:
            _of(held.tensor, piece).copy_(part)

    def held(self, row: Tensor, server: int, *, copies: int) -> tuple[TensorSlice, ...]:
        """Return the slices that a server has in this row [n].

        Args:
            row: numbers of the server.
            server: its index.
            copies: number of ranks with each of the worker's slices. The remaining copies are on
                the servers of tensor neighbours.
        """
        parts = zip(self.slices, self.pieces(server), self.unpack(row, server), strict=True)
        return tuple(
            replace(
                held,
                box=Box(
                    offsets=tuple(map(sum, zip(held.box.offsets, piece.offsets, strict=True))),
                    shape=piece.shape,
                ),
                tensor=part,
                copies=held.copies // copies,
                copy=held.copy % (held.copies // copies),
            )
            for held, piece, part in parts
        )


def _of(tensor: Tensor, piece: Box) -> Tensor:
    return tensor[tuple(map(slice, piece.offsets, piece.ends))]
