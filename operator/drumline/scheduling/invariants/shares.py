"""I1, read from the definitions: what queues hold, keep, lend and borrow in one pool.

Written as recursion over names, where the engine walks arrays: two ways to one figure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from drumline.scheduling.decisions import Decisions
from drumline.scheduling.model import Gang, Queue, Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """The queues of a cluster and the GPUs of one pool that their own jobs hold."""

    queues: Mapping[str, Queue]
    pool: str
    own: Mapping[str, int]

    def holding(self, name: str, gpus: int) -> Shares:
        """The same with one queue holding so many more."""
        return replace(self, own={**self.own, name: self.own.get(name, 0) + gpus})

    def line(self, name: str) -> list[str]:
        """A queue and its ancestors, nearest first; a queue in a circle has none."""
        line = [name]
        while (parent := self._parent(line[-1])) is not None:
            line.append(parent)
        return line

    def quota(self, name: str) -> int:
        """What a queue and its members may hold without borrowing."""
        lent = sum(self.quota(member) - self.keeps(member) for member in self._members(name))
        return self.nominal(name) + lent

    def nominal(self, name: str) -> int:
        """What its own jobs may hold without borrowing."""
        queue = self.queues.get(name)
        return queue.nominal.get(self.pool, 0) if queue else 0

    def keeps(self, name: str) -> int:
        """What a queue never lends."""
        limits = self.queues[name].lending_limit or {}
        return max(0, self.quota(name) - limits.get(self.pool, self.quota(name)))

    def use(self, name: str) -> int:
        """What a queue holds, and what its members take of the common part."""
        members = self._members(name)
        taken = sum(max(0, self.use(member) - self.keeps(member)) for member in members)
        return self.own.get(name, 0) + taken

    def borrows(self, name: str) -> int:
        """What a queue holds above its quota, its members counted in."""
        return max(0, self.use(name) - self.quota(name))

    def borrows_itself(self, name: str) -> int:
        """What its own jobs hold above its nominal quota."""
        return max(0, self.own.get(name, 0) - self.nominal(name))

    def all_borrowed(self) -> int:
        """Over all queues and cohorts: the first part of the potential."""
        names = sorted(self.queues)
        cohorts = [name for name in names if self._members(name)]
        return sum(map(self.borrows, names)) + sum(map(self.borrows_itself, cohorts))

    def problem(self, name: str, *, before: Shares) -> str | None:
        """Where on a queue's way up more is borrowed than before and than may be, if anywhere."""
        *below, root = self.line(name)
        for branch in below:
            limit = (self.queues[branch].borrowing_limit or {}).get(self.pool)
            if limit is not None and self.borrows(branch) > max(limit, before.borrows(branch)):
                return (
                    f"queue {branch} holds {self.use(branch)} GPUs of pool {self.pool}, above its"
                    f" quota and the {limit} it may borrow"
                )
        if self.borrows(root) > before.borrows(root):
            kind = "nominal quota" if name == root else "members' quota"
            return f"queue {root} holds {self.use(root)} GPUs of pool {self.pool}, above its {kind}"
        return None

    def _members(self, name: str) -> list[str]:
        return [other for other in sorted(self.queues) if self._parent(other) == name]

    def _parent(self, name: str) -> str | None:
        queue = self.queues.get(name)
        if queue is None or queue.parent not in self.queues or self._circles(name):
            return None
        return queue.parent

    def _circles(self, name: str) -> bool:
        seen: list[str] = []
        above = self.queues[name].parent
        while above is not None and above in self.queues and above not in seen:
            seen.append(above)
            above = self.queues[above].parent
        return name in seen


def shares_of(*, queues: Iterable[Queue], pool: str, own: Mapping[str, int]) -> Shares:
    """The shares in a pool where queues hold so many GPUs."""
    return Shares(queues={queue.name: queue for queue in queues}, pool=pool, own=own)


def quota_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """Queues that this cycle takes above what they may hold."""
    gangs = {gang.uid: gang for gang in pending}
    usage: Counter[tuple[str, str]] = Counter()
    for held in snapshot.admitted:
        usage[held.gang.queue, held.pool] += held.gpus
    running = {held.gang.uid: held for held in snapshot.admitted}
    grown: dict[tuple[str, str], int] = Counter()
    for one in decisions.placed:
        if not one.replaced:
            gang = gangs[one.uid]
            grown[gang.queue, one.pool] += len(one.assignment) * gang.per_pod.gpus
    for one in decisions.resized:
        held = running[one.uid]
        more = len(one.kept) + len(one.added) - held.size
        grown[held.gang.queue, one.pool] += max(0, more) * held.gang.per_pod.gpus
    found: list[str] = []
    for pool in sorted({pool for _, pool in grown}):
        own = {name: count for (name, where), count in usage.items() if where == pool}
        before = after = shares_of(queues=snapshot.queues, pool=pool, own=own)
        more = {name: count for (name, where), count in grown.items() if where == pool}
        for name, gpus in more.items():
            after = after.holding(name, gpus)
        problems = (after.problem(name, before=before) for name in sorted(more) if more[name])
        found += [problem for problem in problems if problem]
    return found
