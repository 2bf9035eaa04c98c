"""No rank sends or is sent more in a round than its limit, and all bytes arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_trainer.sharding.exchange_rounds import (
    HEADER_BYTES,
    Backlog,
    Rows,
    SharedRows,
    granted,
    rows_within,
)

LIMIT = 32 << 20
VALUES = torch.arange(1 << 20, dtype=torch.int64).view(-1, 512)  # rows of 4 KiB


@dataclass(kw_only=True)
class Rounds:
    """An exchange between ranks of which each does what `exchange` does, without processes."""

    outgoing: Sequence[Sequence[SharedRows]]
    """By rank."""
    limit: int
    number: int = 0
    sent: list[int] = field(default_factory=list[int])
    """The most that a rank sends in a round, by round."""
    received: list[int] = field(default_factory=list[int])
    headers: int = 0
    """The most bytes of headers that a rank is sent in a round."""
    kept: int = 0
    """The most bytes that a rank keeps to be sent, rows for several counted once."""
    arrived: dict[tuple[object, int], list[tuple[int, torch.Tensor]]] = field(
        default_factory=dict[tuple[object, int], list[tuple[int, torch.Tensor]]]
    )
    """First rows and bytes, by what they are of and receiver."""

    def run(self) -> None:
        world = len(self.outgoing)
        sources = [iter(outgoing) for outgoing in self.outgoing]
        backlogs = [Backlog(limit=self.limit, world_size=world) for _ in sources]
        while True:
            for rank, backlog in enumerate(backlogs):
                for shared in backlog.fill(sources[rank], own_rank=rank):
                    self.take(rank, shared.rows, shared.data)
                self.measure(backlog)
            if not any(backlog.waiting for backlog in backlogs):
                return
            self.number += 1
            self.run_round(backlogs)

    def measure(self, backlog: Backlog) -> None:
        sizes: dict[object, int] = {}
        for queue in backlog._queues.values():
            for rows, _ in queue:
                sizes[rows.tag] = max(sizes.get(rows.tag, 0), rows.size)
        self.kept = max(self.kept, sum(sizes.values()))

    def run_round(self, backlogs: Sequence[Backlog]) -> None:
        world = len(backlogs)
        offers = [b.offers(start=rank + self.number) for rank, b in enumerate(backlogs)]
        offered: list[dict[int, list[Rows]]] = [{} for _ in backlogs]
        for sender, by_receiver in enumerate(offers):
            for receiver, rows in by_receiver.items():
                offered[receiver][sender] = rows
        sent, received = [0] * world, [0] * world
        for receiver, by_sender in enumerate(offered):
            headers = HEADER_BYTES * sum(len(rows) for rows in by_sender.values())
            self.headers = max(self.headers, headers)
            start = receiver + self.number
            accepted = granted(by_sender, limit=self.limit, start=start, world_size=world)
            assert bool(accepted) == bool(by_sender)  # each round brings the end nearer
            for sender, rows in accepted.items():
                size = sum(part.padded for part in rows)
                assert rows_within(offers[sender][receiver], size) == rows  # both know which
                parts = backlogs[sender].take(receiver, rows)
                for part, data in zip(rows, parts, strict=True):
                    self.take(receiver, part, data)
                sent[sender] += size
                received[receiver] += size
        self.sent.append(max(sent))
        self.received.append(max(received))

    def take(self, rank: int, rows: Rows, data: torch.Tensor) -> None:
        assert data.numel() == rows.size > 0
        self.arrived.setdefault((rows.tag, rank), []).append((rows.first, data))

    def check(self) -> None:
        """All has arrived, each byte once; no round was larger than allowed."""
        self.run()
        outgoing = [
            shared for of_rank in self.outgoing for shared in of_rank if shared.data.numel()
        ]
        for shared in outgoing:
            for rank in shared.ranks:
                parts = self.arrived.pop((shared.rows.tag, rank))
                row = shared.rows.first
                for first, data in parts:
                    assert first == row
                    row += data.numel() // shared.rows.row_bytes
                assert torch.equal(torch.cat([data for _, data in parts]), shared.data)
        assert not self.arrived
        longest = max((-(-shared.rows.row_bytes // 8) * 8 for shared in outgoing), default=0)
        bound = max(self.limit, longest)
        assert max([*self.sent, *self.received], default=0) <= bound
        assert self.headers <= max(self.limit, HEADER_BYTES * len(self.outgoing))
        assert self.kept <= self.limit + max(
            (shared.data.numel() for shared in outgoing), default=0
        )


def numbered(sender: int, number: int, *, rows: int, ranks: Sequence[int]) -> SharedRows:
    values = VALUES[sender : sender + rows]
    return SharedRows.of(values, tag=(sender, number, 0), ranks=tuple(ranks), first=7)


def from_one_to_all(world: int) -> list[list[SharedRows]]:
    everyone = range(world)
    outgoing = [numbered(0, number, rows=2048 // world, ranks=everyone) for number in range(8)]
    return [outgoing, *([] for _ in range(world - 1))]


def from_all_to_one(world: int) -> list[list[SharedRows]]:
    return [[numbered(sender, 0, rows=64, ranks=[world - 1])] for sender in range(world)]


@pytest.mark.parametrize("world", [2, 16, 256, 1024])
@pytest.mark.parametrize("made", [from_one_to_all, from_all_to_one])
def test_rounds_are_bounded_whatever_the_number_of_ranks(
    made: Callable[[int], list[list[SharedRows]]], world: int
) -> None:
    rounds = Rounds(outgoing=made(world), limit=LIMIT)
    rounds.check()
    whole = sum(p.data.numel() * (len(p.ranks)) for of_rank in rounds.outgoing for p in of_rank)
    assert rounds.number <= 2 * whole // LIMIT + 1  # and no smaller than need be
    if whole > 4 * LIMIT:
        assert rounds.number >= 4


@pytest.mark.parametrize("world", [2, 8, 24])
def test_all_to_all_fills_every_round(world: int) -> None:
    everyone = range(world)
    outgoing = [
        [numbered(sender, number, rows=32, ranks=everyone) for number in range(4)]
        for sender in everyone
    ]
    limit = world << 16
    rounds = Rounds(outgoing=outgoing, limit=limit)
    rounds.check()
    whole = 4 * 32 * 4096 * (world - 1)
    assert whole / limit <= rounds.number <= 1.3 * whole / limit + 2


@settings(max_examples=60, deadline=None)
@given(data=st.data(), world=st.integers(2, 6), limit=st.sampled_from([8, 20, 64, 500]))
def test_any_rows_arrive_whole_within_the_limits(
    data: st.DataObject, world: int, limit: int
) -> None:
    """Rows may be longer than the limit, of no multiple of eight bytes, or without any."""
    shapes = st.lists(st.integers(0, 12), min_size=0, max_size=2)
    ranks = st.lists(st.integers(0, world - 1), min_size=1, unique=True)
    several = st.lists(st.tuples(shapes, ranks), max_size=4)
    outgoing = [
        [
            SharedRows.of(
                torch.randint(0, 256, tuple(shape), dtype=torch.uint8),
                tag=(sender, number, 0),
                ranks=tuple(to),
            )
            for number, (shape, to) in enumerate(data.draw(several))
        ]
        for sender in range(world)
    ]
    Rounds(outgoing=outgoing, limit=limit).check()
