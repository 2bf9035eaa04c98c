"""The line of waiting gangs: in the order in which they would start if all of them fitted.

A cycle considers one gang of each equivalence class and skips the others. The skipped ones stand
behind the considered gangs of their queue that come before them, and before those that come later.

Example: a1, a2, a3 and b of one queue, the a equivalent. The cycle considers a1, then b. The line
is a1, a2, a3, b.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import takewhile

from drumline_scheduler.model import Gang, OrderKey, order_key


def line_of(pending: Iterable[Gang], *, order: Sequence[str], considered: int) -> Iterator[Gang]:
    """Yield the waiting gangs as a line. O(gangs x log queues).

    Args:
        pending: the waiting gangs.
        order: `Decisions.order` of their cycle.
        considered: `Decisions.considered` of that cycle.
    """
    by_uid = {gang.uid: gang for gang in pending}
    asked = [by_uid.pop(uid) for uid in order[:considered] if uid in by_uid]
    skipped: dict[str, list[Gang]] = defaultdict(list)
    for gang in sorted(by_uid.values(), key=order_key, reverse=True):
        skipped[gang.queue].append(gang)
    heads: list[tuple[OrderKey, str]] = []

    def enter(queue: str) -> None:
        """Put the first skipped gang of a queue among the heads."""
        if skipped[queue]:
            heappush(heads, (order_key(skipped[queue][-1]), queue))

    def until(key: OrderKey | None) -> Iterator[Gang]:
        """Yield the skipped gangs of entered queues before a key. None: all of them."""
        while heads and (key is None or heads[0][0] < key):
            _, queue = heappop(heads)
            yield skipped[queue].pop()
            enter(queue)

    # Nominated gangs come first, and say nothing about the turns of their queues.
    first = list(takewhile(lambda gang: gang.nominated, asked))
    yield from first
    entered: set[str] = set()
    for gang in asked[len(first) :]:
        if gang.queue not in entered:
            entered.add(gang.queue)
            enter(gang.queue)
        yield from until(order_key(gang))
        yield gang
    for queue in skipped.keys() - entered:
        enter(queue)
    yield from until(None)
