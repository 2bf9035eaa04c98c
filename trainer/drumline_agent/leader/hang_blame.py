"""Attribution of a hang, from the progress of all ranks in their collectives; pure.

On a GPU a process runs ahead of its device. All processes wait in the same line for their devices,
so their positions do not help. PyTorch's flight recorder has more detail. A rank whose device is in
a collective waits for the ranks of the group that have not reached it. Those may wait themselves,
in another group. The culprits are at the ends of these chains.

    group tp: ranks 0 and 1   #7 started on 0, on 1 only #6
    group dp: ranks 1 and 3   #4 started on 3, on 1 only #3
    rank 0 waits for 1, rank 3 waits for 1, rank 1 is in no collective   <- its device hangs

If every rank of a group is in the collective and it does not complete, the network is the cause and
not a rank. Ranks that wait for each other in a circle call collectives in different orders.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from drumline_agent.rank_protocol.collective_progress import CollectiveProgress

MAX_NAMED = 8
"""Ranks in a sentence."""


class HangCause(StrEnum):
    """Reason why the other ranks wait."""

    PROCESS = "process"
    """The process called fewer collectives than other ranks. Its device completed all of them."""
    DEVICE = "device"
    """The process called collectives that its device did not reach, because a kernel hangs."""
    SILENT = "silent"
    """The process does not report its progress."""
    LINK = "link"
    """All ranks are in the collective, but no data arrives."""
    ORDER = "order"
    """Each waits for another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """The verdict."""

    cause: HangCause
    ranks: tuple[int, ...]
    """The culprits; of a link those that it connects."""
    where: str
    """The operation that waits, such as `all_reduce #7 of group 3`."""

    @property
    def culprits(self) -> tuple[int, ...]:
        """The ranks whose restart helps; none where it is the network or the program."""
        return () if self.cause in (HangCause.LINK, HangCause.ORDER) else self.ranks

    @property
    def reason(self) -> str:
        """A sentence for logs and the incident."""
        ranks = named_ranks(self.ranks)
        match self.cause:
            case HangCause.PROCESS:
                return f"{ranks} did not call {self.where}, which the others wait in"
            case HangCause.DEVICE:
                return f"the device of {ranks} did not come to {self.where}: a kernel before hangs"
            case HangCause.SILENT:
                return f"{ranks} did not say how far it is; the others wait in {self.where}"
            case HangCause.LINK:
                return f"{self.where} has begun on all of {ranks} and does not end: the network"
            case HangCause.ORDER:
                return f"{ranks} wait for each other: they call collectives in different orders"


def named_ranks(ranks: Sequence[int]) -> str:
    """Return `rank 3` or `ranks 0, 1, 2`, with at most `MAX_NAMED` numbers."""
    named = ", ".join(map(str, ranks[:MAX_NAMED]))
    more = f" and {len(ranks) - MAX_NAMED} more" if len(ranks) > MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {named}{more}"


def blame(progress: Mapping[int, CollectiveProgress], *, ranks: Collection[int]) -> Blame | None:
    """Find the culprit of a hang.

    Args:
        progress: progress by rank, for the ranks that have reported it.
        ranks: all ranks that are expected to make progress.

    Returns:
        None if no rank is in an incomplete collective. Also None if torch did not record starts
        and all ranks have called the same collectives.
    """
    waits = _waits(progress, ranks=ranks)
    if not waits:
        return None
    waiting = {wait.rank for wait in waits}
    # Culprits are at the ends of the chains: awaited by others, waiting for no rank themselves.
    ends = _union(wait.awaited for wait in waits) - waiting
    if ends:
        return _blamed(ends, waits, progress=progress)
    # No ends: every rank of a collective has entered it, or ranks wait in a circle.
    stuck = [wait for wait in waits if not wait.awaited]
    if stuck and not _timed(progress):
        return None  # one of these devices may not have come to it
    # All are inside and it does not complete: only the network is left as a cause.
    if stuck:
        first = stuck[0]
        inside = _union(wait.inside for wait in stuck if wait.where == first.where)
        return Blame(cause=HangCause.LINK, ranks=tuple(sorted(inside)), where=first.where)
    return Blame(cause=HangCause.ORDER, ranks=tuple(sorted(_circle(waits))), where=waits[0].where)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    """A rank's device is in an operation."""

    rank: int
    where: str
    inside: frozenset[int]
    """Ranks that are in it too."""
    awaited: frozenset[int]
    """Ranks that have not reached it."""


def _waits(progress: Mapping[int, CollectiveProgress], *, ranks: Collection[int]) -> list[_Wait]:
    return [*_collective_waits(progress, ranks=ranks), *_transfer_waits(progress)]


def _collective_waits(
    progress: Mapping[int, CollectiveProgress], *, ranks: Collection[int]
) -> list[_Wait]:
    # 1. The last operation that each rank has reached, by group.
    reached: dict[str, dict[int, int]] = defaultdict(dict)
    # 2. A rank waits if it has entered an operation that is not complete.
    # See `_waits`: transfers are handled apart, because their counters differ by side.
    for rank, known in progress.items():
        for group in known.groups:
            reached[group.group][rank] = group.reached
    # Ranks without a report may be the ones that the others wait for.
    silent = set(ranks) - progress.keys()
    sides: dict[tuple[str, int], tuple[frozenset[int], frozenset[int]]] = {}
    waits: list[_Wait] = []
    for rank, known in progress.items():
        for group in known.groups:
            number, members = group.completed + 1, reached[group.group]
            if group.reached < number:
                continue
            operation = (group.group, number)
            if operation not in sides:  # computed once for all that are in it
                behind = {other for other, at in members.items() if at < number}
                missing = silent if len(members) < group.size else set[int]()
                sides[operation] = (
                    frozenset(members.keys() - behind),
                    frozenset(behind | missing),
                )
            inside, awaited = sides[operation]
            waits.append(
                _Wait(
                    rank=rank,
                    where=f"{group.operation} #{number} of group {group.group}",
                    inside=inside,
                    awaited=awaited,
                )
            )
    return waits


def _transfer_waits(progress: Mapping[int, CollectiveProgress]) -> list[_Wait]:
    started = {
        (rank, transfer.source, transfer.target)
        for rank, known in progress.items()
        for transfer in known.transfers
        if transfer.started
    }
    waits: list[_Wait] = []
    for rank, source, target in sorted(started):
        # A started transfer needs both ends. One that is missing is awaited by the other.
        peer = target if rank == source else source
        there = (peer, source, target) in started
        waits.append(
            _Wait(
                rank=rank,
                where=f"send from rank {source} to {target}",
                inside=frozenset({rank, peer} if there else {rank}),
                awaited=frozenset() if there else frozenset({peer}),
            )
        )
    return waits


def _circle(waits: Iterable[_Wait]) -> set[int]:
    """Return the ranks that wait for each other, without those that only wait for them."""
    awaited: dict[int, set[int]] = defaultdict(set)
    for wait in waits:
        awaited[wait.rank] |= wait.awaited
    circle = set(awaited)
    # Remove ranks that no remaining rank waits for, until nothing changes.
    while len(kept := circle & set[int]().union(*(awaited[rank] for rank in circle))) < len(circle):
        circle = kept
    return circle


def _blamed(
    ends: set[int], waits: list[_Wait], *, progress: Mapping[int, CollectiveProgress]
) -> Blame:
    causes: dict[HangCause, dict[int, str]] = defaultdict(dict)
    for wait in waits:
        for rank in wait.awaited & ends:
            causes[_cause(rank, progress=progress)][rank] = wait.where
    # a rank that has called nothing is behind whatever else is missing
    for cause in (HangCause.SILENT, HangCause.PROCESS, HangCause.DEVICE):
        if causes[cause]:
            named = causes[cause]
            return Blame(cause=cause, ranks=tuple(sorted(named)), where=named[min(named)])
    raise AssertionError("an end is awaited by definition")


def _union(sets: Iterable[frozenset[int]]) -> set[int]:
    """Join the sets, and visit each once: thousands of ranks may share one of a few sets."""
    return set[int]().union(*set(sets))


def _cause(rank: int, *, progress: Mapping[int, CollectiveProgress]) -> HangCause:
    """Return why a rank in no operation does not move.

    Its device may not have reached an operation that the process has called.
    """
    known = progress.get(rank)
    if known is None:
        return HangCause.SILENT
    called = any(group.enqueued > group.reached for group in known.groups)
    if called or any(not transfer.started for transfer in known.transfers):
        return HangCause.DEVICE
    return HangCause.PROCESS


def _timed(progress: Mapping[int, CollectiveProgress]) -> bool:
    return all(group.started is not None for each in progress.values() for group in each.groups)
