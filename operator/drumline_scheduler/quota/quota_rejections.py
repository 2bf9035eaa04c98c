"""Rejections for lack of quota or at a user limit: the figures, the blockers, and the remedy.

Blockers are searched among the user's own jobs if the user limit is reached, then in the queue,
then in the queues that have borrowed most. Each time, gangs with the lowest priority and the most
GPUs come first. All resulting blockers are necessary. O(leaves of the tree + gangs considered).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import is_

from drumline_scheduler.decisions import BlockReason, Remedy, RemedyKind
from drumline_scheduler.model import Queue
from drumline_scheduler.quota.cohorts import CohortQuota, QueueTree
from drumline_scheduler.quota.usage import GangUsage, QueueUsage, UsageByQueue
from drumline_scheduler.quota.user_limits import UserLimits
from drumline_scheduler.rejections import Rejection, counted, named
from drumline_scheduler.undo import Undo, minimal_subset


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A request for GPUs of a pool by a queue and a user, and the usage that it exceeds."""

    queue: Queue
    user: str
    pool: str
    gpus: int
    leaf: int
    tree: QueueTree
    cohorts: CohortQuota
    user_limits: UserLimits
    usage: UsageByQueue

    @property
    def root(self) -> int:
        """The root of the queue's tree."""
        return self.cohorts.paths[self.leaf][-1]

    @property
    def capped(self) -> bool:
        """True if the user limit is exceeded."""
        return self.user_limits.room(leaf=self.leaf, user=self.user) < self.gpus

    @property
    def request(self) -> tuple[object, ...]:
        """Equal for requests with the same rejection at any one time."""
        if self.leaf not in self.user_limits.limits:
            return (self.leaf, self.pool, self.gpus)
        return (self.leaf, self.pool, self.gpus, self.user)

    @property
    def figures(self) -> tuple[int, ...]:
        """The usage that limits the request: of the queue and its cohorts, and of the user."""
        usage = self.cohorts.usage
        figures = [usage[branch] for branch in self.cohorts.paths[self.leaf]]
        if self.leaf in self.user_limits.limits:
            figures.append(self.user_limits.held(leaf=self.leaf, user=self.user))
        return tuple(figures)

    def fits(self) -> bool:
        """Return whether quota and user limit suffice now."""
        return self.cohorts.room(self.leaf) >= self.gpus and not self.capped

    def reject(
        self,
        reason: BlockReason,
        message: str,
        *,
        available: int,
        remedy: Remedy | None,
        blockers: tuple[str, ...] = (),
    ) -> Rejection:
        """Return a rejection of this request.

        Args:
            reason: reason of the rejection.
            message: message of the rejection.
            available: GPUs that the request could have now.
            remedy: the change with which it would be admitted.
            blockers: keys of the jobs whose end would make room.
        """
        return Rejection(
            reason=reason,
            message=message,
            blockers=blockers,
            needed=self.gpus,
            available=available,
            remedy=remedy,
        )


def infeasible_rejection(asked: Shortage, *, gone: Sequence[str] = ()) -> Rejection | None:
    """Return the rejection of a request that exceeds quota or limit even without other usage.

    Args:
        asked: the request.
        gone: pools that do not exist, of those that the gang or the queue's quotas name.
    """
    most, queue, pool = asked.cohorts.most(asked.leaf), asked.queue, asked.pool
    limit = asked.user_limits.limits.get(asked.leaf)
    # 1. More than the queue could hold in an empty cohort.
    if asked.gpus > most:
        remedy = raise_quota(asked)
        if not most:
            return no_quota(queue=queue, pool=pool, gpus=asked.gpus, gone=gone, remedy=remedy)
        nominal = queue.nominal.get(pool, 0)
        borrowed = f" and can borrow {most - nominal}" if most > nominal else ""
        return asked.reject(
            BlockReason.EXCEEDS_QUOTA,
            f"needs {counted(asked.gpus, 'GPU')}; queue {queue.name} has a nominal quota of"
            f" {nominal} in pool {pool}{borrowed}: request less or raise the quota",
            available=most,
            remedy=remedy,
        )
    # 2. More than one user may hold.
    if limit is not None and asked.gpus > limit:
        return asked.reject(
            BlockReason.EXCEEDS_QUOTA,
            f"needs {counted(asked.gpus, 'GPU')}; queue {queue.name} allows each user {limit} in"
            f" pool {pool}: request less or raise that limit",
            available=limit,
            remedy=_raise_user_limit(asked),
        )
    return None


def while_nodes_are_out(asked: Shortage, *, lasting: CohortQuota) -> Rejection | None:
    """Return the rejection of a request that exceeds a quota in percent only for a while.

    Such a quota follows the healthy nodes. None: the request exceeds it with all nodes, too.

    Args:
        asked: the request.
        lasting: the quotas while every node is healthy.
    """
    now, later = asked.cohorts.most(asked.leaf), lasting.most(asked.leaf)
    if not now < asked.gpus <= later:
        return None
    return asked.reject(
        BlockReason.NODES_UNAVAILABLE,
        f"needs {counted(asked.gpus, 'GPU')}; queue {asked.queue.name} may hold {now} in pool"
        f" {asked.pool} while nodes are out of service, and {later} once all are back: its quota"
        " is a percentage",
        available=now,
        remedy=raise_quota(asked),
    )


def raise_quota(asked: Shortage) -> Remedy | None:
    """Return the smallest sufficient increase of the quota; None if the user limit is short."""
    if asked.capped:
        return None
    amount = asked.cohorts.shortfall(leaf=asked.leaf, gpus=asked.gpus)
    return Remedy(
        kind=RemedyKind.RAISE_QUOTA, amount=amount, where=asked.queue.name, pool=asked.pool
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedShortage:
    """The rejection of a request that has to wait for other jobs, and the usage that it read."""

    rejection: Rejection
    figures: tuple[int, ...]
    gangs: tuple[QueueUsage | None, ...]
    """The gangs among which blockers were searched, by leaf. They are compared by identity."""
    searched: tuple[int, ...]
    """These leaves."""

    def holds_for(self, asked: Shortage) -> bool:
        """Return whether the usage is the same, so that the rejection of the request is, too."""
        return self.figures == asked.figures and all(
            map(is_, self.gangs, map(asked.usage.gangs, self.searched))
        )


def explained(
    asked: Shortage, *, before: ExplainedShortage | None, names: bool
) -> ExplainedShortage:
    """Return the rejection of a request that has to wait for other jobs to end.

    Args:
        asked: the request.
        before: its last rejection. If the new one is equal, the old object is returned.
        names: whether to search for the jobs that hold the quota.
    """
    searched = [asked.leaf]
    blockers = _find_blockers(asked, searched=searched) if names else ()
    rejection = _exhausted_rejection(asked, blockers=blockers)
    if before is not None and before.rejection == rejection:
        rejection = before.rejection
    return ExplainedShortage(
        rejection=rejection,
        figures=asked.figures,
        gangs=tuple(map(asked.usage.gangs, searched)),
        searched=tuple(searched),
    )


def _exhausted_rejection(asked: Shortage, *, blockers: Sequence[GangUsage]) -> Rejection:
    # 1. Name the jobs that hold the quota, and pods that should have ended.
    gpus_of: Counter[str] = Counter()
    for held in blockers:  # a job may hold more than its places: pods that run on
        gpus_of[held.gang.key] += held.gpus
    held_by = named([f"{key} ({gpus})" for key, gpus in gpus_of.items()])
    if hanging := [pod for held in blockers for pod in held.gang.hanging]:
        held_by += f"; should have ended: {named(hanging)}"
    # 2. State the limit that is reached, and what may still be taken.
    if asked.capped:
        left = max(0, asked.user_limits.room(leaf=asked.leaf, user=asked.user))
        reason, text = BlockReason.USER_LIMIT, _cap_text(asked, left=left)
    else:
        left = max(0, asked.cohorts.room(asked.leaf))
        reason, text = BlockReason.QUOTA_EXHAUSTED, _room_text(asked, left=left)
    return asked.reject(
        reason,
        f"{text}; needs {asked.gpus}; held by {held_by}",
        blockers=tuple(gpus_of),
        available=left,
        remedy=Remedy(kind=RemedyKind.WAIT_FOR, pool=asked.pool),
    )


def no_quota(
    *,
    queue: Queue,
    pool: str | None,
    gpus: int,
    gone: Sequence[str] = (),
    remedy: Remedy | None = None,
) -> Rejection:
    """Return the rejection of a gang whose queue has no quota in the pool.

    Args:
        queue: the gang's queue.
        pool: name of the pool. None means any pool.
        gpus: GPUs that the gang needs.
        gone: pools that do not exist, of those that the gang or the queue's quotas name.
        remedy: a change that lets the gang start.
    """
    has = sorted(name for name, gpus in queue.nominal.items() if gpus and name not in gone)
    listed = named(has) or "no pool"
    where = f"pool {pool}" if pool else "any existing pool"
    text = f"queue {queue.name} has no quota in {where}; it has quota in {listed}"
    if gone:
        which = f"pool {gone[0]} does" if len(gone) == 1 else f"pools {named(gone)} do"
        text = f"{text}; {which} not exist (deleted?)"
    return Rejection(
        reason=BlockReason.NO_QUOTA_IN_POOL,
        message=text,
        needed=gpus,
        remedy=remedy,
    )


def _raise_user_limit(asked: Shortage) -> Remedy | None:
    if asked.cohorts.room(asked.leaf) < asked.gpus:
        return None
    amount = asked.gpus - asked.user_limits.room(leaf=asked.leaf, user=asked.user)
    return Remedy(
        kind=RemedyKind.RAISE_USER_LIMIT, amount=amount, where=asked.queue.name, pool=asked.pool
    )


def _cap_text(asked: Shortage, *, left: int) -> str:
    limit = asked.user_limits.limits[asked.leaf]
    held = asked.user_limits.held(leaf=asked.leaf, user=asked.user)
    holder = f"user {asked.user}" if asked.user else "jobs without a user"
    return (
        f"{holder} holds {held} GPUs of pool {asked.pool} in queue {asked.queue.name}, which"
        f" allows each user {limit}; {left} more are allowed"
    )


def _room_text(asked: Shortage, *, left: int) -> str:
    cohorts, queue, leaf, root = asked.cohorts, asked.queue, asked.leaf, asked.root
    nominal = queue.nominal.get(asked.pool, 0)
    if leaf == root:
        return f"queue {queue.name} has {left} of {nominal} nominal GPUs free in pool {asked.pool}"
    free = max(0, cohorts.quota[root] - cohorts.usage[root])
    taken = (queue.overridden or {}).get(asked.pool, 0)
    override = f" without the {taken} that an override takes" if taken else ""
    return (
        f"queue {queue.name} holds {cohorts.usage[leaf]} GPUs of pool {asked.pool}, nominal"
        f" {nominal}{override}; {left} more are allowed (cohort"
        f" {asked.tree.branches[root].name}: {free} of {cohorts.quota[root]} free)"
    )


def _find_blockers(asked: Shortage, *, searched: list[int]) -> list[GangUsage]:
    """Return the gangs that must end. Add the leaves that are searched beside the own one."""

    def leave(held: GangUsage) -> Undo:
        def count(gpus: int) -> None:
            asked.cohorts.add(leaf=held.leaf, gpus=gpus)
            asked.user_limits.add(leaf=held.leaf, user=held.gang.user, gpus=gpus)

        count(-held.gpus)
        return lambda: count(held.gpus)

    candidates = _blocker_candidates(asked, searched=searched)
    return minimal_subset(candidates=candidates, remove=leave, fits=asked.fits)


def _blocker_candidates(asked: Shortage, *, searched: list[int]) -> Iterator[GangUsage]:
    """Yield gangs of the tree whose end may help. Reads the usage while candidates are removed."""
    own = asked.usage.in_eviction_order(asked.leaf)
    if asked.capped:
        yield from (held for held in own if held.gang.user == asked.user)
        yield from (held for held in own if held.gang.user != asked.user)
    else:
        yield from own
    cohorts = asked.cohorts
    further = [leaf for leaf in asked.tree.leaf_of.values() if leaf != asked.leaf]
    further = [leaf for leaf in further if cohorts.paths[leaf][-1] == asked.root]
    searched += further
    for leaf in sorted(further, key=lambda leaf: (-cohorts.borrowed(leaf), leaf)):
        for held in asked.usage.in_eviction_order(leaf):
            if cohorts.usage[leaf] <= cohorts.kept[leaf]:
                break  # other queues cannot use the quota that it keeps
            yield held
