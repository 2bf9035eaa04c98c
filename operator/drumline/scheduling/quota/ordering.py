"""In which order waiting gangs are looked at.

Inside a queue by priority, age and uid; this is never changed, so a gang that has to borrow is not
passed by a lower one of its own queue. Of different queues, at every level of their tree, from the
top, whoever is next of

1. the members that stay within their quota with it: a borrower that started in front of one
   entitled to the same quota would be sent away for it at once. Of elastic gangs, those that stay
   within it at their smallest size only come after those that do at the size they want: they take
   what these leave, and still get what their queue is sure of in front of all who must borrow;
2. where the policy asks for fair shares, the members that have the least for their weight;
3. higher priority, then age, then uid.

So quota is what a queue is sure of, and weights divide what is borrowed. Queues without a parent
are members of one whole; they never borrow.

Gangs come in chains of alike ones. Who need not come forward, as those alike were rejected already,
is passed over without a turn: a cycle costs as much as there are kinds of gangs that wait.

Each branch keeps its members in a heap. What stands there may be out of date, but never too large:
usage and shares only rise while gangs start. So the first of a heap is asked again and goes back
where it belongs until one is found whose figures are right: O(depth x log members) for each turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from operator import add
from typing import Final

from drumline.scheduling.model import Gang, Queue
from drumline.scheduling.quota.cohorts import QueueTree
from drumline.scheduling.quota.pool_selection import PoolSelector
from drumline.scheduling.quota.quota_ledger import QuotaLedger
from drumline.scheduling.rejections import Rejection

OrderKey = tuple[int, float, str]
Above = tuple[int, ...]
"""From the top of the tree down to a leaf, whether branches would be above their quota: 0 no, 1
with the size that is wanted, 2 with any."""
_Rank = tuple[Above, float, OrderKey]
_EVERYBODY: Final = -1


def order_key(gang: Gang) -> OrderKey:
    """Higher priority, then longer waiting, then uid."""
    return (-gang.priority, gang.queued_at, gang.uid)


class BorrowingLevels:
    """Whether each gang would borrow, in the pool where it would borrow least.

    Equal gangs are looked at once until somebody starts. O(pools x depth).
    """

    def __init__(
        self, *, quota: QuotaLedger, pools: PoolSelector, queues: Mapping[str, Queue]
    ) -> None:
        self._quota = quota
        self._pools = pools
        self._queues = queues
        self._known: dict[tuple[object, ...], Above] = {}
        self._version = quota.version

    def of(self, gang: Gang) -> Above:
        """Whether branches on the gang's way up would be above their quota; from the top."""
        if self._version != self._quota.version:
            self._known.clear()
            self._version = self._quota.version
        least = gang.gpus_at(gang.sizes[0]) if gang.sizes else gang.gpus
        key = (gang.queue, least, gang.gpus, gang.pool, gang.pools)
        if key not in self._known:
            self._known[key] = self._above(gang, least=least)
        return self._known[key]

    def _above(self, gang: Gang, *, least: int) -> Above:
        leaf, queue = self._quota.tree.leaf_of[gang.queue], self._queues.get(gang.queue)
        nowhere = (0,) * len(self._quota.tree.branches[leaf].path)
        pools = () if queue is None else self._pools.of(gang=gang, queue=queue)
        if isinstance(pools, Rejection):
            return nowhere
        above: list[Above] = []
        for cohorts in map(self._quota.cohorts, pools):
            wanted = cohorts.above_with(leaf=leaf, gpus=gang.gpus)
            needed = cohorts.above_with(leaf=leaf, gpus=least) if least < gang.gpus else wanted
            above.append(tuple(map(add, wanted, needed)))
        return min(above, default=nowhere)


class GangQueue:
    """Those who wait in one place, by chains of gangs, each chain in the order of `order_key`.

    Args:
        passed: who need not come forward.
        closed: of whose chain nobody need.
    """

    def __init__(self, *, passed: Callable[[Gang], bool], closed: Callable[[Gang], bool]) -> None:
        self._passed = passed
        self._closed = closed
        self._heads: list[tuple[OrderKey, int, Sequence[Gang]]] = []
        """A heap: of each chain the turn and the position of who comes next in it."""

    def add(self, chain: Sequence[Gang]) -> None:
        """Let a chain wait here too."""
        heappush(self._heads, (order_key(chain[0]), 0, chain))

    def head(self) -> Gang | None:
        """Who comes next."""
        while self._heads:
            _, position, chain = self._heads[0]
            if not self._passed(chain[position]):
                return chain[position]
            self.pop()
        return None

    def pop(self) -> None:
        """Go on to the one after that."""
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


def scheduling_order(
    chains: Iterable[Sequence[Gang]],
    *,
    quota: QuotaLedger,
    borrowing: Callable[[Gang], Above],
    passed: Callable[[Gang], bool],
    closed: Callable[[Gang], bool],
) -> Iterator[Gang]:
    """Each gang when it is its turn; those of no known queue first.

    Args:
        chains: gangs of one queue each, in the order of `order_key`.
        quota: the current view; whoever starts meanwhile is written down in it, and the shares
            that it keeps, if any, decide.
        borrowing: whether a gang would take branches above their quota (`BorrowingLevels.of`).
        passed: who need not come forward; asked when it would be its turn.
        closed: of whose chain nobody need come forward any more.
    """
    tree, shares = quota.tree, quota.shares
    together = tree.is_flat and shares is None
    lost = GangQueue(passed=passed, closed=closed)
    lanes: dict[int, GangQueue] = {}
    branches: dict[int, _Branch] = {_EVERYBODY: _Branch()}
    for chain in chains:
        queue = chain[0].queue
        if together or queue not in tree.leaf_of:
            lost.add(chain)
        else:
            leaf = tree.leaf_of[queue]
            if leaf not in lanes:
                lanes[leaf] = GangQueue(passed=passed, closed=closed)
                branches[leaf] = _Branch(line=lanes[leaf])
            lanes[leaf].add(chain)
    while (gang := lost.head()) is not None:
        yield gang
        lost.pop()
    _hang(branches=branches, tree=tree)
    share = shares.share if shares is not None else _alike
    turns = _Turns(branches=branches, share=share, borrowing=borrowing)
    turns.sort(_EVERYBODY, depth=0)
    while (following := turns.next_leaf()) is not None:
        leaf, gang = following
        yield gang
        lanes[leaf].pop()


def _alike(_: int) -> float:
    return 0.0


@dataclass(slots=True, kw_only=True)
class _Branch:
    """Those who wait below a branch."""

    line: GangQueue | None = None
    """Of a leaf."""
    members: list[tuple[_Rank, int]] = field(default_factory=list[tuple[_Rank, int]])
    """Of a cohort: a heap."""


def _hang(*, branches: dict[int, _Branch], tree: QueueTree) -> None:
    """Make the cohorts of all who wait."""
    for leaf in [branch for branch in branches if branch != _EVERYBODY]:
        path = tree.branches[leaf].path
        for branch, above in zip(path, (*path[1:], _EVERYBODY), strict=True):
            known = above in branches
            cohort = branches.setdefault(above, _Branch())
            cohort.members.append((((), 0.0, (0, 0.0, "")), branch))
            if known:
                break


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turns:
    """Whose turn it is."""

    branches: dict[int, _Branch]
    share: Callable[[int], float]
    borrowing: Callable[[Gang], Above]

    def sort(self, identity: int, *, depth: int) -> None:
        """Rank all members of a branch, and theirs; `depth` is that of the members."""
        branch = self.branches[identity]
        for _, member in branch.members:
            self.sort(member, depth=depth + 1)
        ranked = ((self._next(member, depth=depth), member) for _, member in branch.members)
        branch.members = [
            (following[0], member) for following, member in ranked if following is not None
        ]
        heapify(branch.members)

    def next_leaf(self) -> tuple[int, Gang] | None:
        """The leaf whose first gang is next, and that gang, if anybody waits still."""
        gang = self._first(_EVERYBODY, depth=0)
        if gang is None:
            return None
        identity = _EVERYBODY
        while self.branches[identity].members:
            identity = self.branches[identity].members[0][1]
        return identity, gang

    def _next(self, identity: int, *, depth: int) -> tuple[_Rank, Gang] | None:
        """Who is next below a branch, and where that puts the branch among its siblings."""
        branch = self.branches[identity]
        head = branch.line.head() if branch.line else self._first(identity, depth=depth + 1)
        if head is None:
            return None
        return (self.borrowing(head)[: depth + 1], self.share(identity), order_key(head)), head

    def _first(self, identity: int, *, depth: int) -> Gang | None:
        """Who is next in a cohort; its heap is right at the top then."""
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
