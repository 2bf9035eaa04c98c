"""I1, I10 and users' caps, read from the definitions: what queues hold, keep, lend and borrow.

Written as recursion over names, where the engine walks arrays: two ways to one figure. A branch of
the tree goes by the name of its queue; where a queue has members, its own jobs are one more of
them, `own jobs of` it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Final

from drumline_scheduler.decisions import BlockReason, Decisions
from drumline_scheduler.model import Gang, Policy, Pool, Queue, Snapshot
from tests.property.invariants.prices import suits

_OWN: Final = "own jobs of "


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueShares:
    """The queues of a cluster and the GPUs of one pool that their own jobs hold."""

    queues: Mapping[str, Queue]
    parents: Mapping[str, str | None]
    """Parent of each queue, by name. None for a root and for a queue in a circle."""
    members: Mapping[str, Sequence[str]]
    """Children of each queue, by name."""
    pool: str
    own: Mapping[str, int]
    past: Mapping[str, float] = field(default_factory=dict[str, float])
    """By queue: GPUs that its own jobs have had, as the policy weighs them."""
    users: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """By queue and user: GPUs that are held."""

    def holding(self, name: str, gpus: int) -> QueueShares:
        """The same with one queue holding so many more."""
        return replace(self, own={**self.own, name: self.own.get(name, 0) + gpus})

    def line(self, name: str) -> list[str]:
        """A queue and its ancestors, nearest first; a queue in a circle has none."""
        line = [name]
        while (parent := self.parents.get(line[-1])) is not None:
            line.append(parent)
        return line

    def quota(self, name: str) -> int:
        """What a queue and its members may hold without borrowing."""
        lent = sum(self.quota(member) - self.keeps(member) for member in self.members.get(name, ()))
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
        members = self.members.get(name, ())
        taken = sum(max(0, self.use(member) - self.keeps(member)) for member in members)
        return self.own.get(name, 0) + taken

    def borrows(self, name: str) -> int:
        """What a queue holds above its quota, its members counted in."""
        return max(0, self.use(name) - self.quota(name))

    def borrows_itself(self, name: str) -> int:
        """What its own jobs hold above its nominal quota."""
        return max(0, self.own.get(name, 0) - self.nominal(name))

    def branches(self) -> list[str]:
        """All places of the tree."""
        names = sorted(self.queues)
        return names + [_OWN + name for name in names if name in self.members]

    def way(self, name: str) -> list[str]:
        """The branches from a queue's own jobs up to the top."""
        return [_OWN + name, *self.line(name)] if name in self.members else self.line(name)

    def upward(self, branch: str) -> list[str]:
        """The branches above one."""
        if branch.startswith(_OWN):
            return self.line(branch.removeprefix(_OWN))
        return self.line(branch)[1:]

    def borrowed(self, branch: str) -> int:
        """What a branch holds above its quota."""
        if branch.startswith(_OWN):
            return self.borrows_itself(branch.removeprefix(_OWN))
        return self.borrows(branch)

    def heaviness(self, branch: str) -> float:
        """What a branch has borrowed and has had, for its weight."""
        if branch.startswith(_OWN):
            own = branch.removeprefix(_OWN)
            return self.borrows_itself(own) + self.past.get(own, 0.0)
        return (self.borrows(branch) + self._had(branch)) / self.queues[branch].weight

    def _had(self, name: str) -> float:
        return self.past.get(name, 0.0) + sum(map(self._had, self.members.get(name, ())))

    def problem(self, name: str, *, before: QueueShares) -> str | None:
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


def shares_of(*, queues: Iterable[Queue], pool: str, own: Mapping[str, int]) -> QueueShares:
    """The shares in a pool where queues hold so many GPUs."""
    by_name = {queue.name: queue for queue in queues}
    parents = {name: _parent(name, by_name) for name in by_name}
    members: dict[str, list[str]] = {}
    for name in sorted(by_name):
        if (parent := parents[name]) is not None:
            members.setdefault(parent, []).append(name)
    return QueueShares(queues=by_name, parents=parents, members=members, pool=pool, own=own)


def _parent(name: str, queues: Mapping[str, Queue]) -> str | None:
    parent = queues[name].parent
    return parent if parent in queues and not _circles(name, queues) else None


def _circles(name: str, queues: Mapping[str, Queue]) -> bool:
    seen: list[str] = []
    above = queues[name].parent
    while above is not None and above in queues and above not in seen:
        seen.append(above)
        above = queues[above].parent
    return name in seen


def past_gpus(*, snapshot: Snapshot, policy: Policy, pool: str) -> dict[str, float]:
    """By queue: what it has had, in GPUs of a pool, as the policy weighs it."""
    whole = sum(node.allocatable.gpus for node in snapshot.nodes if node.pool == pool)
    seconds = policy.history_seconds / log(2.0)
    if seconds <= 0:
        return {}
    return {
        name: had * policy.history_weight * whole / seconds
        for name, had in snapshot.history.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """GPUs that a cycle gives a gang beside those it has."""

    gang: Gang
    pool: str
    gpus: int


def quota_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions
) -> list[str]:
    """Queues and users that this cycle takes above what they may hold, and I10."""
    starts = _starts(snapshot=snapshot, pending=pending, decisions=decisions)
    violations = _above_limit(snapshot)
    pools = {pool.name: pool for pool in snapshot.pools}
    for pool in sorted({start.pool for start in starts}):
        here = [start for start in starts if start.pool == pool]
        before = after = _held(snapshot=snapshot, pool=pool)
        for item in here:
            after = after.holding(item.gang.queue, item.gpus)
        names = sorted({each.gang.queue for each in here if each.gpus})
        violations += [line for name in names if (line := after.problem(name, before=before))]
        violations += _caps(before=before, starts=here)
        violations += _denied(
            after=after,
            starts=here,
            pending=pending,
            decisions=decisions,
            pool=pools.get(pool, Pool(name=pool)),
        )
    return violations


def _above_limit(snapshot: Snapshot) -> list[str]:
    """Running gangs of a priority that their queue does not allow: nothing could preempt them."""
    limits = {queue.name: queue.max_priority for queue in snapshot.queues}
    violations: list[str] = []
    for held in snapshot.admitted:
        limit = limits.get(held.gang.queue)
        if limit is not None and held.gang.priority > limit and not held.is_residual:
            violations.append(
                f"{held.gang.key} runs with priority {held.gang.priority}, above the {limit} that"
                f" queue {held.gang.queue} allows"
            )
    return violations


def _held(*, snapshot: Snapshot, pool: str) -> QueueShares:
    own: Counter[str] = Counter()
    users: Counter[tuple[str, str]] = Counter()
    for held in snapshot.admitted:
        if held.pool == pool:
            own[held.gang.queue] += held.gpus
            users[held.gang.queue, held.gang.user] += held.gpus
    return replace(shares_of(queues=snapshot.queues, pool=pool, own=own), users=users)


def _starts(*, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions) -> list[_Start]:
    gangs = {gang.uid: gang for gang in pending}
    running = {held.gang.uid: held for held in snapshot.admitted}
    violations: list[_Start] = []
    for placed in decisions.placed:
        if not placed.replaced:
            gang = gangs[placed.uid]
            gpus = sum(gang.request_of(place).gpus for place in range(len(placed.assignment)))
            violations.append(_Start(gang=gang, pool=placed.pool, gpus=gpus))
    for resized in decisions.resized:
        held = running[resized.uid]
        more = max(0, len(resized.kept) + len(resized.added) - len(held.assignment))
        gpus = more * held.gang.per_pod.gpus
        violations.append(_Start(gang=held.gang, pool=resized.pool, gpus=gpus))
    for move in decisions.moves:
        held = running[move.uid]
        if move.pool != held.pool:
            violations.append(_Start(gang=held.gang, pool=move.pool, gpus=held.gpus))
    return violations


def _caps(*, before: QueueShares, starts: Sequence[_Start]) -> list[str]:
    grown: Counter[tuple[str, str]] = Counter()
    for start in starts:
        grown[start.gang.queue, start.gang.user] += start.gpus
    violations: list[str] = []
    for (name, user), more in sorted(grown.items()):
        queue = before.queues.get(name)
        limit = queue and (queue.user_limit or {}).get(before.pool)
        held = before.users.get((name, user), 0)
        if limit is not None and more and held + more > limit:
            violations.append(
                f"user {user!r} holds {held + more} GPUs of pool {before.pool} in queue {name},"
                f" above the {limit} that each user may"
            )
    return violations


def _denied(
    *,
    after: QueueShares,
    starts: Sequence[_Start],
    pending: Sequence[Gang],
    decisions: Decisions,
    pool: Pool,
) -> list[str]:
    """I10: who starts by borrowing what keeps one waiting that was entitled to it.

    Not judged where places are kept for somebody, and groups have a turn of their own. Nobody
    passes another one of his queue, so whoever stands behind one that waits is not judged either,
    nor whoever stood behind one when the other started.
    """
    if any(gang.nominated or gang.group for gang in pending) or decisions.preemptions:
        return []
    gangs, placed = (
        {gang.uid: gang for gang in pending},
        {placed.uid for placed in decisions.placed},
    )
    reasons = {blocked.uid: blocked.reason for blocked in decisions.blocked}
    violations: list[str] = []
    behind: set[str] = set()
    turn = {uid: turn for turn, uid in enumerate(decisions.order)}
    for gang in (gangs[uid] for uid in decisions.order if uid not in placed):
        waits = reasons.get(gang.uid) is BlockReason.QUOTA_EXHAUSTED
        if waits and gang.queue not in behind and _may_use(gang=gang, shares=after, pool=pool):
            ahead = [turn.get(each.uid, -1) for each in pending if _is_ahead(each, of=gang)]
            last = max(ahead, default=-1)
            judged = [each for each in starts if turn.get(each.gang.uid, last) >= last]
            if gang.pool is None and len(gang.pools) != 1:
                # Its reason may be of another pool; who was asked before a start had no room here.
                mine = turn[gang.uid]
                judged = [each for each in judged if turn.get(each.gang.uid, mine) < mine]
            violations += _takers(gang=gang, after=after, starts=starts, judged=judged)
        behind.add(gang.queue)
    return violations


def _is_ahead(gang: Gang, *, of: Gang) -> bool:
    """Whether a gang comes before another one in their queue."""
    keys = [(-each.priority, each.queued_at, each.uid) for each in (gang, of)]
    return gang.queue == of.queue and keys[0] < keys[1]


def _may_use(*, gang: Gang, shares: QueueShares, pool: Pool) -> bool:
    named = (gang.pool,) if gang.pool is not None else gang.pools
    queue = shares.queues[gang.queue]
    return (
        (gang.pool is not None or not pool.partitions)
        and pool.name in (named or queue.nominal)
        and all(suits(pool, rule, gang=gang) for rule in (queue.price_rule, gang.price_rule))
    )


def _takers(
    *, gang: Gang, after: QueueShares, starts: Sequence[_Start], judged: Sequence[_Start]
) -> list[str]:
    """Those of the judged starts that borrow, when they start, what the gang is entitled to."""
    mine = after.holding(gang.queue, gang.gpus)
    if any(mine.borrowed(branch) for branch in after.way(gang.queue)[:-1]):
        return []
    if mine.problem(gang.queue, before=after) is None:
        return []
    way, violations = after.way(gang.queue), list[str]()
    for start in judged:
        then = after
        for later in starts[starts.index(start) + 1 :]:
            then = then.holding(later.gang.queue, -later.gpus)
        off = [branch for branch in after.way(start.gang.queue) if branch not in way]
        without = after.holding(start.gang.queue, -start.gpus)
        with_it = without.holding(gang.queue, gang.gpus)
        borrows = bool(off) and then.borrowed(off[-1]) > 0
        if borrows and start.gpus and with_it.problem(gang.queue, before=without) is None:
            violations.append(f"{start.gang.key} borrows what {gang.key} is entitled to")
    return violations
