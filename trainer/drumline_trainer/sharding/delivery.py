"""What some ranks have read, brought to those that need it: parcels, in rounds of bounded size.

Collective over all ranks of the default group. In each round every rank takes parcels until it has
a round's worth of bytes for others, then all exchange them. So a rank holds one round of what it
sends and of what it is sent, however much there is in all; what a rank has read for itself alone is
handed over at once.

All ranks end after the same round: once all have nothing left, or once one refuses what it has read
or been sent. Each row of a round's counts begins with the round's number: after an abort NCCL's
waits return without an error, and rows of other bytes must be no parcels.

Example: rank 0 has read rows 0-3 of a tensor for itself and for rank 1, rank 1 rows 4-7 for both.
Each keeps a copy of its own parcel and sends it; both have the whole tensor after one round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum, auto
from itertools import accumulate
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from drumline_trainer.sharding.byte_collectives import Accepted, Rejected, Vote, agree

ROUND_BYTES: Final = 32 << 20
"""That a rank sends in a round; one parcel more at most."""
_ALIGNMENT: Final = 8
"""Of a parcel's bytes, so that they can be seen as any type."""

Tag = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """The same bytes for several ranks."""

    tag: Tag
    """By which a receiver knows what it is."""
    ranks: tuple[int, ...]
    """Whom it is for; this rank may be among them."""
    data: Tensor
    """One dimension of bytes, which are not changed any more."""

    @classmethod
    def of(cls, values: Tensor, *, tag: Tag, ranks: tuple[int, ...]) -> Parcel:
        """Of values of any type; copied where they do not lie in order."""
        data = values.contiguous().view(-1).view(torch.uint8)
        return cls(tag=tag, ranks=ranks, data=data)


class _State(IntEnum):
    """Of a sender after a round."""

    GOING_ON = auto()
    DONE = auto()
    REFUSED = auto()


def deliver(
    parcels: Iterator[Parcel],
    *,
    receive: Callable[[Tag, Tensor], None],
    refusals: tuple[type[Exception], ...],
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> Vote:
    """Bring every rank's parcels to where they belong.

    Args:
        parcels: of this rank, made as they are asked for.
        receive: called with the tag and the bytes of each parcel for this rank; they lie on the
            device, or where the parcel's do if it is this rank's own.
        refusals: errors of `parcels` and `receive` that end the delivery on all ranks alike.
        device: of the tensors that travel.
        progress: called in every round.

    Returns:
        Rejected on all ranks, with the reason of the lowest rank that refused.

    Raises:
        ConnectionError: a collective was aborted.
    """
    courier = _Courier(parcels=parcels, receive=receive, refusals=refusals, device=device)
    while courier.goes_on:
        progress()
        courier.run_round()
    reason = courier.reason
    vote = Rejected(f"rank {dist.get_rank()}: {reason}") if reason else Accepted()
    return agree(vote, device=device)


@dataclass(frozen=True, slots=True)
class _Load:
    """What a rank sends to others in one round."""

    parcels: dict[int, list[Parcel]] = field(default_factory=dict[int, list[Parcel]])
    """By receiver."""

    def add(self, parcel: Parcel, rank: int) -> None:
        self.parcels.setdefault(rank, []).append(parcel)

    def tags(self, device: torch.device) -> Tensor:
        """A row of each parcel: its tag and the number of its bytes."""
        rows = [
            [*parcel.tag, parcel.data.numel()]
            for rank in sorted(self.parcels)
            for parcel in self.parcels[rank]
        ]
        return torch.tensor(rows, dtype=torch.int64, device=device).flatten()

    def sizes(self) -> dict[int, tuple[int, int]]:
        """Number of parcels and of their bytes, by receiver."""
        return {
            rank: (len(parcels), sum(_padded(parcel.data.numel()) for parcel in parcels))
            for rank, parcels in self.parcels.items()
        }

    def packed(self, device: torch.device) -> Tensor:
        """The bytes in order; what is for several ranks passes to the device once."""
        there = {
            id(parcel.data): parcel.data.to(device)
            for group in self.parcels.values()
            for parcel in group
        }
        buffer = torch.empty(
            sum(size for _, size in self.sizes().values()), dtype=torch.uint8, device=device
        )
        start = 0
        for rank in sorted(self.parcels):
            for parcel in self.parcels[rank]:
                data = there[id(parcel.data)]
                buffer[start : start + data.numel()] = data
                start += _padded(data.numel())
        return buffer


@dataclass(slots=True, kw_only=True)
class _Courier:
    """See `deliver`."""

    parcels: Iterator[Parcel]
    receive: Callable[[Tag, Tensor], None]
    refusals: tuple[type[Exception], ...]
    device: torch.device
    goes_on: bool = True
    reason: str = ""
    """Why this rank refuses; empty: it does not."""
    _rounds: int = 0
    _state: _State = _State.GOING_ON

    def run_round(self) -> None:
        """Read, exchange, hand over. Collective."""
        load = self._loaded()
        theirs = self._exchanged_counts(load.sizes())
        if any(int(row[-1]) for row in theirs):  # the same on all ranks
            self._exchange(load, theirs)
        states = {_State(row[1]) for row in theirs}
        self.goes_on = _State.REFUSED not in states and states != {_State.DONE}

    def _loaded(self) -> _Load:
        load = _Load()
        if self._state is not _State.GOING_ON:
            return load
        own_rank, filled = dist.get_rank(), 0
        try:
            while filled < ROUND_BYTES:
                parcel = next(self.parcels, None)
                if parcel is None:
                    self._state = _State.DONE
                    break
                receivers = [rank for rank in parcel.ranks if rank != own_rank]
                for rank in receivers:
                    load.add(parcel, rank)
                if len(receivers) < len(parcel.ranks):
                    self.receive(parcel.tag, parcel.data)
                filled += parcel.data.numel() * len(receivers)
        except self.refusals as error:
            self._refuse(error)
            return _Load()
        return load

    def _refuse(self, error: Exception) -> None:
        self._state, self.reason = _State.REFUSED, str(error) or type(error).__name__

    def _exchanged_counts(self, sizes: dict[int, tuple[int, int]]) -> list[list[int]]:
        """Of every rank: its state, what it has for this rank and whether it has any for any."""
        self._rounds += 1
        rows = [
            [self._rounds, self._state, *sizes.get(rank, (0, 0)), bool(sizes)]
            for rank in range(dist.get_world_size())
        ]
        mine = torch.tensor(rows, dtype=torch.int64, device=self.device)
        theirs = torch.empty_like(mine)
        dist.all_to_all_single(theirs, mine)
        counts: list[list[int]] = theirs.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - torch says only list
        if any(row[0] != self._rounds for row in counts):
            raise ConnectionError("a round of parcels has not arrived: its collective was aborted")
        return counts

    def _exchange(self, load: _Load, theirs: list[list[int]]) -> None:
        ranks = range(dist.get_world_size())
        sizes = load.sizes()
        ours = [sizes.get(rank, (0, 0)) for rank in ranks]
        width = 5
        received = [row[2] for row in theirs]
        tags = torch.empty(sum(received) * width, dtype=torch.int64, device=self.device)
        dist.all_to_all_single(
            tags,
            load.tags(self.device),
            [count * width for count in received],
            [count * width for count, _ in ours],
        )
        incoming = [row[3] for row in theirs]
        data = torch.empty(sum(incoming), dtype=torch.uint8, device=self.device)
        dist.all_to_all_single(data, load.packed(self.device), incoming, [size for _, size in ours])
        self._hand_over(tags.view(-1, width), data)

    def _hand_over(self, tags: Tensor, data: Tensor) -> None:
        rows: list[list[int]] = tags.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - torch says only list
        starts = accumulate((_padded(row[-1]) for row in rows), initial=0)
        try:
            for (a, b, c, d, size), start in zip(rows, starts, strict=False):
                self.receive((a, b, c, d), data[start : start + size])
        except self.refusals as error:
            self._refuse(error)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
