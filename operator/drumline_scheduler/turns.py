"""Turns of pending gangs: the scheduling order, and gangs that are asked before their turn.

The order ranks a gang by the pool in which it borrows least (`queueing.order`). In another pool,
gangs behind it may be entitled to the quota that it would borrow. So such a pool comes after all
others in which it could start. Before it starts there, the heads of other queues that are entitled
to this quota are asked, one after the other. Within a queue no gang is passed.

Example: queues x and y share pools a and b. A gang of x (pools a, b) has quota in a, but no node
there. In b it would borrow. A gang of y that came later has quota in b, so it is asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from drumline_scheduler.cycle_session import CycleSession
from drumline_scheduler.model import Gang, WaitingRule, order_key
from drumline_scheduler.queueing.order import BorrowingLevels, SchedulingOrder
from drumline_scheduler.quota.entitlement import Entitlements


class Turns:
    """The order of one cycle.

    Args:
        session: the cycle.
        passed: whether a gang is skipped; asked when it is its turn.
        closed: whether the rest of a gang's chain is skipped.
        admits: whether its queue admits a gang at all.
    """

    def __init__(
        self,
        session: CycleSession,
        *,
        passed: Callable[[Gang], bool],
        closed: Callable[[Gang], bool],
        admits: Callable[[Gang], bool],
    ) -> None:
        self._session = session
        self._admits = admits
        self._quota = session.projection.current.quota
        self._early: set[str] = set()
        """Uids of gangs that were asked before their turn."""
        self._together: set[str] = set()
        """Uids of gangs that were decided with their group."""
        self._borrowing = BorrowingLevels(
            quota=self._quota, pools=session.pools, queues=session.queues
        )
        self._order = SchedulingOrder(
            _chains(session),
            quota=self._quota,
            borrowing=self._borrowing.lowest,
            passed=lambda gang: (
                gang.uid in self._early or gang.uid in self._together or passed(gang)
            ),
            closed=closed,
            keeps_ranks=session.policy.waiting is WaitingRule.BEST_EFFORT,
        )

    def __iter__(self) -> Iterator[Gang]:
        """Yield the gangs in scheduling order, except those asked early, passed or deferred.

        A gang of a group that is decided may still come, if it was the next one of another queue.
        """
        return iter(self._order)

    def take_out(self, gangs: Iterable[Gang]) -> None:
        """Take the gangs of a group that is decided out of the order."""
        self._together.update(gang.uid for gang in gangs)

    def ask_early(self, gang: Gang) -> None:
        """Record that a gang is asked now, and take it out of the order."""
        self._early.add(gang.uid)
        self._order.rank_again()

    def is_early(self, gang: Gang) -> bool:
        """Return whether a gang was asked before its turn."""
        return gang.uid in self._early

    def first_deprived_by(self, gang: Gang, *, pool: str, size: int) -> Gang | None:
        """Return the gang to ask before another starts in a pool with `size` main pods.

        None if the gang borrows no more than in the pool that gave it its turn, because the order
        has already asked the others. A gang that was itself asked early waits for no other gang.
        Under the strict rule no gang is passed.

        Args:
            gang: the gang that would start.
            pool: name of the pool.
            size: number of main pods.
        """
        if (
            self.is_early(gang)
            or self._session.policy.waiting is WaitingRule.STRICT
            or not self._borrowing.is_higher_in(pool, gang=gang)
        ):
            return None
        return self._entitled_heads().first_deprived_by(gang, pool=pool, size=size)

    def _entitled_heads(self) -> Entitlements:
        """Return the entitlements of the next gangs of all queues.

        Groups have a turn of their own.
        """
        heads = self._order.heads()
        return Entitlements(
            waiting=[head for head in heads if not head.group and self._admits(head)],
            quota=self._quota,
            pools=self._session.pools,
            queues=self._session.queues,
        )


def _chains(session: CycleSession) -> Iterator[Sequence[Gang]]:
    """Yield the pending gangs of one queue each, in scheduling order, without deferred groups.

    The gangs of a group are one chain, because they are mostly decided together.
    """
    pending, deferred = session.pending, session.rejections.deferral.groups
    yield from (chain for _, chain in pending.chains_by_class)
    yield from ((gang,) for gang in pending.individual if not gang.group)
    for key, members in pending.groups:
        by_queue: dict[str, list[Gang]] = {}
        for gang in () if key in deferred else members:
            by_queue.setdefault(gang.queue, []).append(gang)
        for gangs in by_queue.values():
            gangs.sort(key=order_key)
            yield gangs
