"""In which order waiting gangs are looked at.

By priority, age and uid, as long as nobody borrows. In a cohort, whoever needs less of what is
others' goes first: a borrower that started in front of one entitled to the same quota would be
sent away for it at once. Inside a queue the order is never changed, so a gang that has to borrow
is not passed by a lower one of its own queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from drumline.scheduling.model import Gang

Turn = tuple[int, float, str]


def turn(gang: Gang) -> Turn:
    """Higher priority, then longer waiting, then uid."""
    return (-gang.priority, gang.queued_at, gang.uid)


def in_turn(gangs: Iterable[Gang], *, borrows: Callable[[Gang], int]) -> Iterator[Gang]:
    """Each gang when it is its turn.

    Args:
        gangs: in the order of `turn`.
        borrows: how far down the tree the gang would borrow, asked again and again: it may rise
            while others start, and never falls.
    """
    lines: dict[str, deque[Gang]] = {}
    for gang in gangs:
        lines.setdefault(gang.queue, deque()).append(gang)
    heads: list[tuple[int, Turn, Gang]] = []
    for line in lines.values():
        _push(heads, line[0], borrows)
    while heads:
        level, _, gang = heappop(heads)
        if borrows(gang) > level:
            _push(heads, gang, borrows)
            continue
        yield gang
        line = lines[gang.queue]
        line.popleft()
        if line:
            _push(heads, line[0], borrows)


def _push(heads: list[tuple[int, Turn, Gang]], gang: Gang, borrows: Callable[[Gang], int]) -> None:
    heappush(heads, (borrows(gang), turn(gang), gang))
