"""What each rank sends in a round of an exchange, and what each lets others send it: within bounds.

A sender offers rows to as many receivers as a round's bytes allow, and each receiver grants as many
of them as a round allows it. Both use the same rule (`shares`), and both know from the offer and
the granted bytes which rows these are (`rows_within`). What was not granted is offered again.

Example: of rows of 4 MiB that are for 1,023 others, each is sent some 32 KiB in a round.
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
"""Of the message by which rows are offered."""
_ALIGNMENT: Final = 8
"""Of the rows' bytes, so that they can be seen as any type."""

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
    """Whom it is for; its sender may be among them."""
    data: Tensor
    """One dimension of bytes, which are not changed any more."""

    @classmethod
    def of(cls, values: Tensor, *, tag: Tag, ranks: tuple[int, ...], first: int = 0) -> SharedRows:
        """Of values of any type; copied where they do not lie in order.

        Args:
            values: rows; a value without dimensions is one.
            tag: by which a receiver knows what they are of.
            ranks: whom they are for.
            first: the place of the first row.
        """
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
    """What a rank has for others and has not sent yet, in order for each of them."""

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
        while self.waiting < self.limit:
            shared = next(outgoing, None)
            if shared is None:
                return
            if not shared.data.numel():
                continue
            for rank in shared.ranks:
                if rank != own_rank:
                    self._queues.setdefault(rank, deque()).append((shared.rows, shared.data))
                    self.waiting += shared.rows.padded + HEADER_BYTES
            if own_rank in shared.ranks:
                yield shared

    def clear(self) -> None:
        """Send nothing of it."""
        self._queues.clear()
        self.waiting = 0

    def offers(self, *, start: int) -> dict[int, list[Rows]]:
        """By receiver, what could be sent next: something, as long as anything waits."""
        most = max(1, self.limit // (HEADER_BYTES * self.world_size))
        heads = {
            rank: [rows for rows, _ in islice(queue, most)] for rank, queue in self._queues.items()
        }
        return granted(heads, limit=self.limit, start=start, world_size=self.world_size)

    def take(self, rank: int, accepted: Sequence[Rows]) -> list[Tensor]:
        """The bytes of what a receiver accepts of its offer, which wait no longer."""
        queue = self._queues[rank]
        taken: list[Tensor] = []
        for rows in accepted:
            head, data = queue.popleft()
            taken.append(data[: rows.size])
            self.waiting -= head.padded + HEADER_BYTES
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
    """By rank, the first of what it offers, within the limit in all, or one row that is longer.

    Args:
        offers: by rank, none of nothing.
        limit: in bytes.
        start: the rank whose turn it is, or the next that has something.
        world_size: number of ranks.
    """
    order = sorted(offers, key=lambda rank: (rank - start) % world_size)
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
    """Bytes for each of several who want some, as even as what they want allows.

    Args:
        wanted: bytes in all, and the least that is of use. The first of them gets at least that.
        limit: of the sum; more only if the first needs it.
    """
    given = [0] * len(wanted)
    rest, even = limit, limit // max(1, len(wanted))
    for place, (whole, least) in enumerate(wanted):
        share = min(whole, max(even, least))
        if place == 0 or share <= rest:
            given[place] = share
            rest -= share
    for place, (whole, least) in enumerate(wanted):
        share = min(whole, given[place] + max(0, rest))
        if share >= least:
            rest -= max(0, share - given[place])
            given[place] = max(given[place], share)
    return given


def rows_within(offered: Sequence[Rows], limit: int) -> list[Rows]:
    """The first of the rows that fit into so many bytes."""
    taken: list[Rows] = []
    for rows in offered:
        count = min(rows.count, limit // _ALIGNMENT * _ALIGNMENT // rows.row_bytes)
        if count:
            taken.append(replace(rows, count=count))
            limit -= taken[-1].padded
        if count < rows.count:
            break
    return taken


def padded(size: int) -> int:
    """Bytes that rows of this size take in a round."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT
