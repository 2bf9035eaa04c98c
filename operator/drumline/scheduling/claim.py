"""The law of preemption: which running gangs a waiting one may send away.

A set of victims is lawful for a gang if, with them gone and the gang in their place:

1. the gang's queue has the quota, all the way up;
2. no branch of the tree on the gang's way up has borrowed more than before: nobody is sent away
   so that somebody else can borrow;
3. each victim is of lower priority in the gang's own queue, or it was reclaimed:
   * the gang is entitled: on its side of the branch that it shares with the victim, every branch
     stays within its quota;
   * the victim was borrowed: on its side of that branch, every branch holds more than its quota
     and, where several are taken from one branch, still did before the largest of them was taken.

So there is no thrash (I5). Take the pair of all that is borrowed in the tree and the running
priorities, highest first. A reclaim lowers what is borrowed, by 2 and 3; any other preemption
leaves it or lowers it, by 2, and puts a higher priority in the place of lower ones. So every
preemption moves that pair the same way, and no chain of them can come back to where it began.
Without rule 2 two queues can push each other out for ever (a test shows it).
"""

from __future__ import annotations

from bisect import bisect_left, insort

from drumline.scheduling.cohorts import Balance
from drumline.scheduling.decisions import VictimReason


class Claim:
    """A gang's claim to quota while victims are picked and put back; all moves O(depth).

    Args:
        balance: the accounts of the pool; victims are taken out of them and put back.
        leaf: of the gang's queue.
        gpus: what it asks for.
    """

    def __init__(self, *, balance: Balance, leaf: int, gpus: int) -> None:
        self._balance = balance
        self._leaf = leaf
        self._gpus = gpus
        self._path = balance.paths[leaf]
        self._borrowed = [balance.borrowed(branch) for branch in self._path]
        self._above = dict(zip(self._path, range(len(self._path)), strict=True))
        self._reclaimed: dict[int, list[int]] = {}
        """By branch off the gang's way up: GPUs of the victims reclaimed there, ascending."""
        self._sums: dict[int, int] = {}
        """By the same: all of them."""
        self._limits: dict[int, int] = {}
        """By the same: what it had borrowed."""
        self._excesses = 0
        """In how many of these more was reclaimed than is lawful."""
        self._shared = [0] * len(self._path)
        """By branch of the gang's way up: victims whose way joins it there."""
        self._count = 0

    def reason(self, *, leaf: int, gpus: int, lower_priority: bool) -> VictimReason | None:
        """Why a gang of some leaf may be a victim at all, if it may.

        Without GPUs nothing is borrowed, and nothing is there to be claimed.
        """
        if leaf == self._leaf:
            return VictimReason.LOWER_PRIORITY if lower_priority else None
        path = self._balance.paths[leaf]
        if path[-1] != self._path[-1] or not gpus or not self._gpus:
            return None
        off = [branch for branch in path if branch not in self._above]
        return VictimReason.BORROWED if all(map(self._balance.borrowed, off)) else None

    def entitled(self, *, freed: int) -> bool:
        """Whether the queue itself could be within its quota, if it freed that much of its own."""
        usage = self._balance.usage[self._leaf] - freed + self._gpus
        return usage <= self._balance.quota[self._leaf]

    def take(self, *, leaf: int, gpus: int) -> None:
        """Add a victim."""
        self._count += 1
        if leaf != self._leaf:
            for branch in self._off(leaf):
                taken = self._reclaimed.setdefault(branch, [])
                if not taken:
                    self._limits[branch] = self._balance.borrowed(branch)
                    self._sums[branch] = 0
                before = self._exceeds(branch)
                insort(taken, gpus)
                self._sums[branch] += gpus
                self._excesses += self._exceeds(branch) - before
        self._balance.add(leaf=leaf, gpus=-gpus)

    def give_back(self, *, leaf: int, gpus: int) -> None:
        """Remove a victim again."""
        self._count -= 1
        self._balance.add(leaf=leaf, gpus=gpus)
        if leaf != self._leaf:
            for branch in self._off(leaf, sign=-1):
                taken = self._reclaimed[branch]
                before = self._exceeds(branch)
                del taken[bisect_left(taken, gpus)]
                self._sums[branch] -= gpus
                self._excesses += self._exceeds(branch) - before

    @property
    def within_reach(self) -> bool:
        """Whether nothing was reclaimed that may not be."""
        return not self._excesses

    @property
    def has_room(self) -> bool:
        """Whether the quota suffices, lawfully or not."""
        return not self._gpus or self._balance.room(self._leaf) >= self._gpus

    @property
    def is_unconditional(self) -> bool:
        """Whether only capacity is missing: quota there is, and none of it would be borrowed."""
        self._balance.add(leaf=self._leaf, gpus=self._gpus)
        borrows = any(map(self._balance.borrowed, self._path))
        self._balance.add(leaf=self._leaf, gpus=-self._gpus)
        return self.has_room and not borrows

    def holds(self) -> bool:
        """Whether the gang may take what the victims leave."""
        if self._excesses or not self.has_room:
            return False
        if not self._count:
            return True
        self._balance.add(leaf=self._leaf, gpus=self._gpus)
        borrowed = [self._balance.borrowed(branch) for branch in self._path]
        self._balance.add(leaf=self._leaf, gpus=-self._gpus)
        if any(now > before for now, before in zip(borrowed, self._borrowed, strict=True)):
            return False
        joined = max((i for i, victims in enumerate(self._shared) if victims), default=0)
        return not any(borrowed[:joined])

    def _off(self, leaf: int, sign: int = 1) -> list[int]:
        """The branches of a way up that the gang does not share; counts where they meet."""
        off: list[int] = []
        for branch in self._balance.paths[leaf]:
            if branch in self._above:
                self._shared[self._above[branch]] += sign
                break
            off.append(branch)
        return off

    def _exceeds(self, branch: int) -> bool:
        taken = self._reclaimed[branch]
        return bool(taken) and self._sums[branch] - taken[-1] >= self._limits[branch]
