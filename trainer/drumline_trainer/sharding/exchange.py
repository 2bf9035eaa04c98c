"""Exchange of rows that some ranks have read and others need, in rounds of bounded size.

Collective over all ranks of the default group. In each round every rank takes rows until a round's
worth of bytes waits for others. Then all exchange their offers, the granted bytes, and the rows
(`exchange_rounds`). So a rank holds three times a round's bytes: those that wait, those that it
sends and those that it receives, independent of the number of ranks and bytes in all. Rows that a
rank needs itself are delivered at once.

All ranks end after the same round: once none has rows left, or once one rejects its rows. Every
message of a round but the rows begins with the round's number. After an abort NCCL's waits return
without an error, and other bytes must not be taken for rows.

Example: rank 0 has read rows 0-3 of a tensor for itself and for rank 1, rank 1 rows 4-7 for both.
Each keeps a copy of its own rows and sends them. Both have the whole tensor after one round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from itertools import chain, islice
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from drumline_trainer.sharding.byte_collectives import Accepted, Rejected, Vote, agree
from drumline_trainer.sharding.exchange_rounds import (
    Backlog,
    Rows,
    SharedRows,
    Tag,
    granted,
    padded,
    rows_within,
)

ROUND_BYTES: Final = 32 << 20
"""Maximum number of bytes that a rank sends, and that it receives, in a round. One row if that is
longer."""
BLOCK_BYTES: Final = 4 << 20
"""Maximum number of bytes of rows that a rank reads, or copies out of a tensor, at once. One row if
that is longer."""

Receive = Callable[[Tag, int, Tensor], None]
"""Called with a tag, the place of the first row and the rows' bytes."""


class _State(IntEnum):
    """State of a rank before a round."""

    RUNNING = auto()
    """It has something for others."""
    DONE = auto()
    REFUSED = auto()


def exchange(
    outgoing: Iterator[SharedRows],
    *,
    receive: Receive,
    refusals: tuple[type[Exception], ...],
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> Vote:
    """Bring every rank's rows to where they belong.

    Args:
        outgoing: what this rank has for others and for itself, made as it is asked for; rows
            without bytes are not sent.
        receive: takes what is for this rank, some rows at a time; they lie on the device, or where
            they did if they are this rank's own.
        refusals: errors of `outgoing` and `receive` that end the exchange on all ranks alike.
        device: device of the tensors that travel.
        progress: called in every round.

    Returns:
        Rejected on all ranks, with the reason of the lowest rank that refused.

    Raises:
        ConnectionError: a collective was aborted.
    """
    running = _RowExchange(
        outgoing=outgoing,
        receive=receive,
        refusals=refusals,
        device=device,
        backlog=Backlog(limit=ROUND_BYTES, world_size=dist.get_world_size()),
    )
    progress()
    while running.run_round():
        progress()
    reason = running.reason
    # The exchange ends on all ranks in the same round, so this final vote is collective.
    vote = Rejected(f"rank {dist.get_rank()}: {reason}") if reason else Accepted()
    return agree(vote, device=device)


@dataclass(slots=True, kw_only=True)
class _RowExchange:
    """See `exchange`."""

    outgoing: Iterator[SharedRows]
    receive: Receive
    refusals: tuple[type[Exception], ...]
    device: torch.device
    backlog: Backlog
    reason: str = ""
    """Reason for which this rank refuses. Empty: it does not refuse."""
    _rounds: int = 0
    _ranks: range = field(default_factory=lambda: range(dist.get_world_size()))

    def run_round(self) -> bool:
        """Read, exchange, hand over; whether another round follows. Collective."""
        # Phase 1: fill. A rank that refuses reads no further but joins the last round.
        if not self.reason:
            self._fill_backlog()
        self._rounds += 1
        start = dist.get_rank() + self._rounds  # senders begin with different receivers
        # Phase 2: offers and states in one all-to-all, so that all ranks see the same states.
        offers = self.backlog.offers(start=start)
        counts = [[[self._state, len(offers.get(rank, ()))]] for rank in self._ranks]
        answers = [row for [row] in self._exchanged(counts, width=2)]
        states = {_State(state) for state, _ in answers}  # the same on all ranks
        # One refusal ends the exchange. Otherwise it ends when no rank has rows for others.
        if _State.REFUSED in states or states == {_State.DONE}:
            return False
        # Phase 3: grants. Receiver and sender apply the same rule, so only byte counts travel back.
        offered = self._exchanged_offers(offers, counts=[count for _, count in answers])
        accepted = granted(
            {rank: rows for rank, rows in enumerate(offered) if rows},
            limit=self.backlog.limit,
            start=start,
            world_size=len(self._ranks),
        )
        sizes = [sum(rows.padded for rows in accepted.get(rank, ())) for rank in self._ranks]
        grants = [limit for [[limit]] in self._exchanged([[[size]] for size in sizes], width=1)]
        # Phase 4: rows. The sender derives the accepted rows from its own offer and the granted
        # bytes.
        sent = [
            self.backlog.take(rank, rows_within(offers.get(rank, ()), limit)) if limit else []
            for rank, limit in enumerate(grants)
        ]
        data = self._exchanged_data(sent, sizes=sizes)
        # Received bytes are in sender order, and so are the accepted rows.
        self._hand_over([*chain.from_iterable(accepted[rank] for rank in sorted(accepted))], data)
        return True

    @property
    def _state(self) -> _State:
        if self.reason:
            return _State.REFUSED
        return _State.RUNNING if self.backlog.waiting else _State.DONE

    def _fill_backlog(self) -> None:
        try:
            for shared in self.backlog.fill(self.outgoing, own_rank=dist.get_rank()):
                self.receive(shared.rows.tag, shared.rows.first, shared.data)
        except self.refusals as error:
            self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        self.reason = str(error) or type(error).__name__
        # Rows of a refused exchange are not sent, so their memory is freed at once.
        self.backlog.clear()

    def _exchanged_offers(
        self, offers: Mapping[int, Sequence[Rows]], *, counts: Sequence[int]
    ) -> list[list[Rows]]:
        """Return the offers of each rank to this one.

        `counts` has the number of each rank's offers.
        """
        ours = [
            [[*rows.tag, rows.first, rows.count, rows.row_bytes] for rows in offers.get(rank, ())]
            for rank in self._ranks
        ]
        return [
            [
                Rows(tag=(a, b, c), first=first, count=count, row_bytes=row_bytes)
                for a, b, c, first, count, row_bytes in theirs
            ]
            for theirs in self._exchanged(ours, width=6, counts=counts)
        ]

    def _exchanged(
        self,
        ours: Sequence[Sequence[Sequence[int]]],
        *,
        width: int,
        counts: Sequence[int] | None = None,
    ) -> list[list[list[int]]]:
        """Exchange messages of some numbers each: given by receiver, returned by sender.

        Args:
            ours: messages of this rank, by receiver.
            width: how many numbers each has.
            counts: how many messages each rank has for this one; None: one each.
        """
        counts = counts or [1] * len(ours)
        # The round's number precedes each message. Stale bytes of an aborted round fail the check
        # below.
        flat = [[self._rounds, *message] for messages in ours for message in messages]
        # int64 holds byte counts beyond 2 GiB and the tags without a conversion.
        mine = torch.tensor(flat, dtype=torch.int64, device=self.device).view(-1)
        wide = width + 1
        theirs = torch.empty(sum(counts) * wide, dtype=torch.int64, device=self.device)
        dist.all_to_all_single(
            theirs,
            mine,
            [count * wide for count in counts],
            [len(messages) * wide for messages in ours],
        )
        # tolist waits for the device, so the numbers are complete when they are checked.
        rows: list[list[int]] = theirs.view(-1, wide).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - torch says only list
        if any(row[0] != self._rounds for row in rows):
            raise ConnectionError("a round has not arrived whole: its collective was aborted")
        stream = iter(rows)
        return [[row[1:] for row in islice(stream, count)] for count in counts]

    def _exchanged_data(self, sent: Sequence[Sequence[Tensor]], *, sizes: Sequence[int]) -> Tensor:
        """Exchange the rows' bytes. Return those received, uint8 [sum(sizes)].

        Args:
            sent: rows for each receiver.
            sizes: bytes from each sender.
        """
        # The size is at most the granted limit, or one longer row.
        data = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        dist.all_to_all_single(
            data,
            _packed([*chain.from_iterable(sent)], device=self.device),
            [*sizes],
            [sum(padded(part.numel()) for part in parts) for parts in sent],
        )
        return data

    def _hand_over(self, received: Sequence[Rows], data: Tensor) -> None:
        start = 0
        try:
            for rows in received:
                # The slice leaves out the padding. `padded` moves to the next aligned row.
                self.receive(rows.tag, rows.first, data[start : start + rows.size])
                start += rows.padded
        except self.refusals as error:
            self._refuse(error)


def _packed(parts: Sequence[Tensor], *, device: torch.device) -> Tensor:
    """Concatenate the bytes, uint8 [n]. Data for several ranks is copied to the device once."""
    # Keyed by address and size: several receivers share one copy to the device.
    there: dict[tuple[int, int], Tensor] = {}
    buffer = torch.empty(
        sum(padded(part.numel()) for part in parts), dtype=torch.uint8, device=device
    )
    start = 0
    for part in parts:
        key = (part.data_ptr(), part.numel())
        if key not in there:
            there[key] = part.to(device)
        buffer[start : start + part.numel()] = there[key]
        start += padded(part.numel())
    return buffer
