"""The order in which waiting gangs are considered.

Inside a queue: priority, then age, then uid. This order never changes. So a gang that has to borrow
is not passed by a lower gang of its own queue. Among queues, at every level of the tree from the
root, each member offers its next gang. The member that comes first by these rules is next:

1. borrowing: members that stay within their quota with it come first, because a borrower that
   starts before a gang entitled to the same quota would be preempted at once. An elastic gang that
   stays within quota only at its smallest size comes between these and the borrowers;
2. weighted share, smallest first, under `order: FairShare` (`fair_sharing`);
3. the order inside a queue.

So quota is guaranteed, and weights divide what is borrowed. Queues without a parent are members of
one root. They never borrow.

Example: queues a (4 of 4 GPUs used) and b (0 of 4) share a cohort. A gang of a with priority 10 and
one of b with priority 0 wait, 2 GPUs each. With its gang, a is above quota (1) and b is not (0): b
is first. If b used 4, too, both would borrow, and the shares or the priorities would decide.

Waiting gangs come in chains of equivalent gangs. A gang whose equivalents were rejected is skipped
without a turn. So the cost of a cycle grows with the number of equivalence classes that wait.

Each branch keeps its members in a heap. Ranks in it may be outdated, but only too small: usage and
shares only rise while gangs start. So the first member's rank is computed again and the member
moves to its new position, until a rank is up to date: O(depth x log members) for each turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from operator import add
from typing import Final

from drumline_scheduler.model import Gang, OrderKey, Queue, order_key
from drumline_scheduler.quota.cohorts import QueueTree
from drumline_scheduler.quota.pool_selection import PoolSelector
from drumline_scheduler.quota.quota_ledger import QuotaLedger
from drumline_scheduler.rejections import Rejection

Above = tuple[int, ...]
"""Levels from the root to a leaf, 0 to 2. 0: the branch stays within quota. 1: it is above quota
only with the size that the gang wants. 2: it is above quota with any size."""
_Rank = tuple[Above, float, OrderKey]
_ROOT: Final = -1


class BorrowingLevels:
    """The levels at which a gang would borrow, by pool, and the lowest of them.

    An answer is kept until the usage of quota changes. O(pools x depth).

    Args:
        quota: usage of quota.
        pools: pools that each gang accepts.
        queues: queues by name.
    """

    def __init__(
        self, *, quota: QuotaLedger, pools: PoolSelector, queues: Mapping[str, Queue]
    ) -> None:
        self._quota = quota
        self._pools = pools
        self._queues = queues
        self._known: dict[int, tuple[Gang, Mapping[str, Above], Above]] = {}
        """Levels by pool and the lowest ones, by identity of the gang."""
        self._version = quota.version

    def lowest(self, gang: Gang) -> Above:
        """Return the lowest levels of any pool, by branch from the root to the gang's leaf."""
        return self._levels(gang)[2]

    def is_higher_in(self, pool: str, *, gang: Gang) -> bool:
        """Return whether the gang would borrow more in this pool than where it borrows least."""
        _, levels, lowest = self._levels(gang)
        return pool in levels and levels[pool] > lowest

    def _levels(self, gang: Gang) -> tuple[Gang, Mapping[str, Above], Above]:
        if self._version != self._quota.version:
            self._known.clear()
            self._version = self._quota.version
        known = self._known.get(id(gang))
        if known is None:
            least = gang.gpus_at(gang.sizes[0]) if gang.sizes else gang.gpus
            levels = self._above(gang, least=least)
            path = self._quota.tree.branches[self._quota.tree.leaf_of[gang.queue]].path
            known = (gang, levels, min(levels.values(), default=(0,) * len(path)))
            self._known[id(gang)] = known
        return known

    def _above(self, gang: Gang, *, least: int) -> Mapping[str, Above]:
        leaf, queue = self._quota.tree.leaf_of[gang.queue], self._queues.get(gang.queue)
        pools = () if queue is None else self._pools.select(gang=gang, queue=queue)
        above: dict[str, Above] = {}
        for pool in () if isinstance(pools, Rejection) else pools:
            cohorts = self._quota.cohorts(pool)
            # The sum of two checks: 1 if only the wanted size is above quota,
            # 2 if the smallest one is too.
            wanted = cohorts.above_with(leaf=leaf, gpus=gang.gpus)
            needed = cohorts.above_with(leaf=leaf, gpus=least) if least < gang.gpus else wanted
            above[pool] = tuple(map(add, wanted, needed))
        return above


class GangQueue:
    """The waiting gangs of one leaf, as chains in the order of `order_key`.

    Args:
        passed: returns whether a gang is skipped.
        closed: returns whether the rest of a gang's chain is skipped.
    """

    def __init__(self, *, passed: Callable[[Gang], bool], closed: Callable[[Gang], bool]) -> None:
        self._passed = passed
        self._closed = closed
        self._heads: list[tuple[OrderKey, int, Sequence[Gang]]] = []
        """A heap with key and position of the next gang of each chain."""

    def add(self, chain: Sequence[Gang]) -> None:
        """Add a chain."""
        heappush(self._heads, (order_key(chain[0]), 0, chain))

    def head(self) -> Gang | None:
        """Return the next gang; None if no gang is left."""
        while self._heads:
            _, position, chain = self._heads[0]
            if not self._passed(chain[position]):
                return chain[position]
            self.pop()
        return None

    def pop(self) -> None:
        """Remove the next gang."""
        _, position, chain = self._heads[0]
        if self._closed(chain[position]):
            heappop(self._heads)
            return
        position += 1
        while position < len(chain) and self._passed(chain[position]):
            position += 1
        if position == len(chain):
            heappop(self._heads)
        else:
            heapreplace(self._heads, (order_key(chain[position]), position, chain))


class SchedulingOrder:
    """The gangs in their order; gangs of unknown queues first.

    Args:
        chains: gangs of one queue each, in the order of `order_key`.
        quota: ledger of the current view; gangs that start in between change it, and its fair
            shares decide, if it has any.
        borrowing: returns whether a gang would take branches above their quota
            (`BorrowingLevels.lowest`).
        passed: returns whether a gang is skipped; asked when it is its turn.
        closed: returns whether the rest of a gang's chain is skipped.
        keeps_ranks: whether gangs are passed only by turns of their own queue. Then a branch is
            ranked again only if the usage changes or a gang below it had its turn.
    """

    def __init__(
        self,
        chains: Iterable[Sequence[Gang]],
        *,
        quota: QuotaLedger,
        borrowing: Callable[[Gang], Above],
        passed: Callable[[Gang], bool],
        closed: Callable[[Gang], bool],
        keeps_ranks: bool = False,
    ) -> None:
        tree, shares = quota.tree, quota.shares
        # Without cohorts and fair shares the order is the one inside a
        # queue, so one heap is enough.
        together = tree.is_flat and shares is None
        self._unknown = GangQueue(passed=passed, closed=closed)
        self._queues: dict[int, GangQueue] = {}
        branches: dict[int, _Branch] = {_ROOT: _Branch()}
        for chain in chains:
            queue = chain[0].queue
            if together or queue not in tree.leaf_of:
                self._unknown.add(chain)
            else:
                leaf = tree.leaf_of[queue]
                if leaf not in self._queues:
                    self._queues[leaf] = GangQueue(passed=passed, closed=closed)
                    branches[leaf] = _Branch(line=self._queues[leaf])
                self._queues[leaf].add(chain)
        _enter_in_parents(branches=branches, tree=tree)
        share = shares.share if shares is not None else _equal_share
        self._order = _FairOrder(branches=branches, share=share, borrowing=borrowing)
        self._version = quota.version if keeps_ranks else None
        """Version of the ledger for which the ranks hold. None: ranks are not kept."""
        self._quota = quota
        self._paths = [branch.path for branch in tree.branches]

    def __iter__(self) -> Iterator[Gang]:
        """Yield the gangs one after the other. Starts in between decide which gang is next."""
        while (gang := self._unknown.head()) is not None:
            yield gang
            self._unknown.pop()
        self._order.sort(_ROOT, depth=0)
        while (following := self._order.next_leaf()) is not None:
            leaf, gang = following
            yield gang
            self._queues[leaf].pop()
            if self._version == self._quota.version:
                self._order.forget(self._paths[leaf])
                continue
            self._order.current.clear()
            if self._version is not None:
                self._version = self._quota.version

    def rank_again(self) -> None:
        """Rank all branches again, because a gang is asked before its turn."""
        self._order.current.clear()

    def heads(self) -> list[Gang]:
        """Return the next gang of each queue; none if no queue can borrow.

        They are in the order inside a queue.
        """
        heads = (queue.head() for queue in self._queues.values())
        return sorted((head for head in heads if head is not None), key=order_key)


def _equal_share(_: int) -> float:
    return 0.0


@dataclass(slots=True, kw_only=True)
class _Branch:
    """The waiting gangs below a branch."""

    line: GangQueue | None = None
    """The gangs of a leaf."""
    members: list[tuple[_Rank, int]] = field(default_factory=list[tuple[_Rank, int]])
    """The members of a cohort: a heap of rank and branch."""


def _enter_in_parents(*, branches: dict[int, _Branch], tree: QueueTree) -> None:
    """Enter each branch in its parent's members, up to the root."""
    for leaf in [branch for branch in branches if branch != _ROOT]:
        path = tree.branches[leaf].path
        for branch, above in zip(path, (*path[1:], _ROOT), strict=True):
            known = above in branches
            cohort = branches.setdefault(above, _Branch())
            cohort.members.append((((), 0.0, (0, 0.0, "")), branch))
            if known:
                break


@dataclass(slots=True, kw_only=True)
class _FairOrder:
    """Selects the next gang among branches."""

    branches: dict[int, _Branch]
    share: Callable[[int], float]
    borrowing: Callable[[Gang], Above]
    current: dict[int, tuple[_Rank, Gang]] = field(default_factory=dict[int, tuple[_Rank, Gang]])
    """Next gangs and ranks of branches, while neither the usage nor their gangs change."""

    def forget(self, path: Iterable[int]) -> None:
        """Rank these branches again, because a gang below them had its turn."""
        for branch in path:
            self.current.pop(branch, None)

    def sort(self, identity: int, *, depth: int) -> None:
        """Rank the members of a branch and of all branches below it.

        Args:
            identity: the branch.
            depth: depth of its members.
        """
        branch = self.branches[identity]
        for _, member in branch.members:
            self.sort(member, depth=depth + 1)
        ranked = ((self._next(member, depth=depth), member) for _, member in branch.members)
        branch.members = [
            (following[0], member) for following, member in ranked if following is not None
        ]
        heapify(branch.members)

    def next_leaf(self) -> tuple[int, Gang] | None:
        """Return the leaf whose gang is next, and that gang; None if no gang waits."""
        gang = self._first(_ROOT, depth=0)
        if gang is None:
            return None
        identity = _ROOT
        while self.branches[identity].members:
            identity = self.branches[identity].members[0][1]
        return identity, gang

    def _next(self, identity: int, *, depth: int) -> tuple[_Rank, Gang] | None:
        """Return the next gang below a branch, and the rank that it gives the branch."""
        known = self.current.get(identity)
        if known is not None:
            return known
        branch = self.branches[identity]
        head = branch.line.head() if branch.line else self._first(identity, depth=depth + 1)
        if head is None:
            return None
        rank = (self.borrowing(head)[: depth + 1], self.share(identity), order_key(head))
        self.current[identity] = rank, head
        return rank, head

    def _first(self, identity: int, *, depth: int) -> Gang | None:
        """Return the next gang of a cohort.

        The first entry of its heap is up to date afterwards.
        """
        members = self.branches[identity].members
        while members:
            rank, member = members[0]
            following = self._next(member, depth=depth)
            if following is None:
                heappop(members)
            elif following[0] == rank:
                return following[1]
            else:
                heapreplace(members, (following[0], member))
        return None
