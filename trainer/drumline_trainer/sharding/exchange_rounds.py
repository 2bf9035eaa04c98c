"""Bounds on the bytes that each rank sends and receives in a round of an exchange.

A sender offers rows to as many receivers as a round's bytes allow. Each receiver grants as many
rows as a round allows it. Both use the same rule (`shares`). Both derive the same rows from the
offer and the granted bytes (`rows_within`). Rows that were not granted are offered again.

Example: 4 MiB of small rows go to each of 1,023 others. A round of 32 MiB gives each 32 KiB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

import torch
from torch import Tensor

HEADER_BYTES: Final = 56
"""Bytes of the message by which rows are offered."""
_ALIGNMENT: Final = 8
"""Alignment of the rows' bytes, so that they can be viewed as any type."""

Tag = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Some rows of a tensor, or of a part of it, as they are offered."""

    tag: Tag
    first: int
    count: int
    row_bytes: int

    @property
    def size(self) -> int:
        """Bytes, without padding."""
        return self.count * self.row_bytes

    @property
    def padded(self) -> int:
        """Bytes in a round."""
        return padded(self.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRows:
    """Rows of a tensor for several ranks."""

    rows: Rows
    ranks: tuple[int, ...]
    """Receivers of the rows. The sender may be among them."""
    data: Tensor
    """One dimension of bytes, which are not changed any more."""

    @classmethod
    def of(cls, values: Tensor, *, tag: Tag, ranks: tuple[int, ...], first: int = 0) -> SharedRows:
        """Make shared rows from values of any type. Non-contiguous values are copied.

        Args:
            values: rows; a scalar is one row.
            tag: identifies the rows for their receivers.
            ranks: the receivers.
            first: index of the first row.
        """
        # A flat uint8 view lets rows of every dtype travel in one buffer.
        data = values.contiguous().view(-1).view(torch.uint8)
        count = values.shape[0] if values.dim() else 1
        row_bytes = data.numel() // max(1, count)
        return cls(
            rows=Rows(tag=tag, first=first, count=count, row_bytes=row_bytes),
            ranks=ranks,
            data=data,
        )


@dataclass(slots=True, kw_only=True)
class Backlog:
    """Rows that a rank has not sent yet, in order for each receiver."""

    limit: int
    """Bytes of a round, for a rank that sends and for one that is sent."""
    world_size: int
    waiting: int = 0
    """Bytes to be sent, those of the headers included."""
    _queues: dict[int, deque[tuple[Rows, Tensor]]] = field(
        default_factory=dict[int, "deque[tuple[Rows, Tensor]]"]
    )

    def fill(self, outgoing: Iterator[SharedRows], *, own_rank: int) -> Iterator[SharedRows]:
        """Take rows until a round's worth waits; gives those that are for this rank too."""
        # The limit counts what waits for others. Rows for this rank alone do not count.
        while self.waiting < self.limit:
            shared = next(outgoing, None)
            if shared is None:
                return
            # Rows without bytes would make a round without progress.
            if not shared.data.numel():
                continue
            for rank in shared.ranks:
                if rank != own_rank:
                    self._queues.setdefault(rank, deque()).append((shared.rows, shared.data))
                    # The header counts, because many tiny rows would otherwise exceed the round in
                    # offers.
                    self.waiting += shared.rows.padded + HEADER_BYTES
            if own_rank in shared.ranks:
                yield shared

    def clear(self) -> None:
        """Send nothing of it."""
        self._queues.clear()
        self.waiting = 0

    def offers(self, *, start: int) -> dict[int, list[Rows]]:
        """Return rows to offer next, by receiver. Not empty as long as any rows wait."""
        # The bound limits the offer messages of all receivers together to one round's bytes.
        most = max(1, self.limit // (HEADER_BYTES * self.world_size))
        heads = {
            rank: [rows for rows, _ in islice(queue, most)] for rank, queue in self._queues.items()
        }
        return granted(heads, limit=self.limit, start=start, world_size=self.world_size)

    def take(self, rank: int, accepted: Sequence[Rows]) -> list[Tensor]:
        """Remove the rows that a receiver accepts from the backlog, and return their bytes."""
        queue = self._queues[rank]
        taken: list[Tensor] = []
        for rows in accepted:
            head, data = queue.popleft()
            taken.append(data[: rows.size])
            self.waiting -= head.padded + HEADER_BYTES
            # A partial grant returns the rest to the head of the queue, so rows stay in order.
            if rows.count < head.count:
                rest = replace(head, first=head.first + rows.count, count=head.count - rows.count)
                queue.appendleft((rest, data[rows.size :]))
                self.waiting += rest.padded + HEADER_BYTES
        if not queue:
            del self._queues[rank]
        return taken


def granted(
    offers: Mapping[int, Sequence[Rows]], *, limit: int, start: int, world_size: int
) -> dict[int, list[Rows]]:
    """Return the first rows of each rank's offer, within the limit in all, or one longer row.

    Args:
        offers: offers by rank. Each has at least one row.
        limit: limit in bytes.
        start: the rank whose turn it is, or the next that has rows.
        world_size: number of ranks.
    """
    # Rotating by `start` gives each rank the first place in turn, so none starves.
    order = sorted(offers, key=lambda rank: (rank - start) % world_size)
    # The least useful share is one row, since rows are never cut.
    wanted = [
        (sum(rows.padded for rows in offers[rank]), padded(offers[rank][0].row_bytes))
        for rank in order
    ]
    given = shares(wanted, limit=limit)
    return {
        rank: rows_within(offers[rank], share)
        for rank, share in zip(order, given, strict=True)
        if share
    }


def shares(wanted: Sequence[tuple[int, int]], *, limit: int) -> list[int]:
    """Divide bytes among several who want some, as evenly as what they want allows.

    Args:
        wanted: bytes in all, and the least that is of use. The first of them gets at least that.
        limit: limit of the sum; more only if the first needs it.
    """
    given = [0] * len(wanted)
    rest, even = limit, limit // max(1, len(wanted))
    # Pass 1: equal shares. The first rank may exceed the limit, so that a long row makes progress.
    for place, (whole, least) in enumerate(wanted):
        share = min(whole, max(even, least))
        if place == 0 or share <= rest:
            given[place] = share
            rest -= share
    # Pass 2: bytes that others did not want go to those that want more, in order.
    for place, (whole, least) in enumerate(wanted):
        share = min(whole, given[place] + max(0, rest))
        if share >= least:
            rest -= max(0, share - given[place])
            given[place] = max(given[place], share)
    return given


def rows_within(offered: Sequence[Rows], limit: int) -> list[Rows]:
    """Return the first rows that fit into `limit` bytes."""
    taken: list[Rows] = []
    for rows in offered:
        # Round down to the alignment first: the padding of the last row must also fit.
        count = min(rows.count, limit // _ALIGNMENT * _ALIGNMENT // rows.row_bytes)
        if count:
            taken.append(replace(rows, count=count))
            limit -= taken[-1].padded
        # Later rows wait for this one, because a receiver's queue keeps its order.
        if count < rows.count:
            break
    return taken


def padded(size: int) -> int:
    """Return the bytes that rows of this size take in a round."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT
