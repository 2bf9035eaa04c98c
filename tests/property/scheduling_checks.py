"""Whether one cycle's decisions are right, said by brute force.

The judge goes through the answers in the order in which the engine says it looked. Whoever starts
must be allowed to and sit lawfully, in the first pool and at the largest size that anything fits
in; whoever is rejected for want of room or quota must not be able to start in any way; whoever
sends others away must need each of them, and whoever could lawfully do so must not be rejected.
What a decision takes is taken before the next one is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, takewhile

from drumline_scheduler import (
    Admitted,
    Blocked,
    BlockReason,
    Decisions,
    Gang,
    Placed,
    Queue,
    Resized,
    WaitingRule,
)
from drumline_scheduler.decisions import NEVER_FITS
from drumline_scheduler.model import CapacityType, SpotRule
from drumline_scheduler.overrides import with_overrides
from tests.property.invariants import violations
from tests.property.invariants.policy_check import RunningGang, policy_violations
from tests.property.invariants.quota import shares_of
from tests.property.scheduling_backfill import Stay, beginning
from tests.property.scheduling_placements import (
    Amounts,
    Table,
    amounts,
    can_sit,
    free_now,
    minus,
    path_at,
    request_at,
    table,
    unlawful_places,
)
from tests.property.scheduling_reservations import Calendar
from tests.property.scheduling_worlds import World

SHORT = {
    BlockReason.QUOTA_EXHAUSTED,
    BlockReason.USER_LIMIT,
    BlockReason.EXCEEDS_QUOTA,
    *NEVER_FITS,
    BlockReason.NODES_UNAVAILABLE,
    BlockReason.INSUFFICIENT_GPUS,
    BlockReason.INSUFFICIENT_RESOURCES,
    BlockReason.TOPOLOGY_DOES_NOT_FIT,
    BlockReason.TOPOLOGY_LEVEL_UNKNOWN,
}
"""Rejections that say there is no place or no quota."""


@dataclass(slots=True, kw_only=True)
class Judge:
    """The world as it is when the next answer is given."""

    world: World
    decisions: Decisions
    free: dict[str, Amounts] = field(default_factory=dict[str, Amounts])
    held: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    """By pool: GPUs by queue."""
    by_user: Counter[tuple[str, str, str]] = field(default_factory=Counter[tuple[str, str, str]])
    ratios: list[float] = field(default_factory=list[float])
    """What was paid for each unit of the cheapest lawful victims."""
    started: list[Stay] = field(default_factory=list[Stay])
    answered: set[str] = field(default_factory=set[str])
    """Uids of the pending gangs whose turn has come."""
    quiet: bool = True
    """Nobody leaves and no place is kept: what is free is anybody's, and no more will be soon."""

    def problems(self) -> list[str]:
        """Everything that is wrong, in words."""
        world, decisions = self.world, self.decisions
        given = world.snapshot
        result = list(
            violations(
                snapshot=world.snapshot,
                pending=world.pending,
                decisions=decisions,
                policy=world.policy,
                now=world.now,
            )
        )
        if result or any(gang.group for gang in world.pending):
            return result + self._groups()
        applied = with_overrides(given, pending=world.pending, now=world.now)
        world = replace(world, snapshot=applied.snapshot, pending=applied.pending)
        self.world = world
        self.free = free_now(world.snapshot)
        for held in world.snapshot.admitted:
            self._charge(held.gang, held.pool, held.gpus)
        self.quiet = not (
            any(
                held.leaving or held.lost or held.giving_up or held.displaced
                for held in world.snapshot.admitted
            )
            or bool(decisions.evictions)
            or any(gang.nominated for gang in world.pending)
            or any(any(amounts(node.terminating).values()) for node in world.snapshot.nodes)
        )
        answers = {each.uid: each for each in (*decisions.placed, *decisions.blocked)}
        gangs = {gang.uid: gang for gang in world.pending}
        asking = {preemption.uid: preemption for preemption in decisions.preemptions}
        for uid in decisions.order:
            answer = answers[uid]
            self.answered.add(uid)
            if isinstance(answer, Placed):
                result += self._placed(gangs[uid], answer)
            elif uid in asking:
                result += self._preempts(gangs[uid], [v.uid for v in asking[uid].victims])
                self.quiet = False
            else:
                result += self._blocked(gangs[uid], answer)
        for resized in decisions.resized:
            self._resized(resized)
        if self.quiet and self._reserves() and not decisions.resized:
            result += self._calendar().problems()
        result += self._surplus()
        if self.quiet and not decisions.blocked:
            result += [problem for held in world.snapshot.admitted for problem in self._grown(held)]
        return result

    def _groups(self) -> list[str]:
        """Groups of which some gangs start or get places, and others do not."""
        given = {each.uid for each in self.decisions.placed if not each.replaced}
        kept = {each.uid for each in self.decisions.preemptions}
        members: dict[str, set[str]] = {}
        for gang in self.world.pending:
            if gang.group:
                members.setdefault(gang.group, set()).add(gang.uid)
        return [
            f"group {name}: {sorted(uids & got)} of {sorted(uids)} get places"
            for name, uids in members.items()
            for got in (given, kept)
            if uids & got not in (set(), uids)
        ]

    def pools(self, gang: Gang) -> list[str]:
        """Where the gang may be tried, in this order."""
        queue = self._queue(gang)
        if queue is None:
            return []
        known = [
            pool.name
            for pool in self.world.snapshot.pools
            if pool.name in queue.nominal
            if SpotRule.SURPLUS not in (queue.price_rule.spot, gang.price_rule.spot)
            or bool(gang.surplus_of) is (pool.capacity is CapacityType.SPOT)
        ]
        if gang.pool is not None:
            return [gang.pool] if gang.pool in known else []
        return [name for name in gang.pools if name in known] if gang.pools else sorted(known)

    def starts(self, gang: Gang) -> Iterator[tuple[int, str]]:
        """All sizes and pools in which it could start now, the best first."""
        for size in reversed(gang.legal_sizes):
            for pool in self.pools(gang):
                if self._may(gang, pool, gang.gpus_at(size)) and can_sit(
                    self.table(gang, pool, size)
                ):
                    yield size, pool

    def table(self, gang: Gang, pool: str, size: int) -> Table:
        """The pool as it is now."""
        return table(self.world.snapshot, gang, pool=pool, size=size, free=self.free)

    def _placed(self, gang: Gang, placed: Placed) -> list[str]:
        size = len(placed.assignment) - gang.extras
        result = unlawful_places(self.table(gang, placed.pool, size), placed.assignment)
        if not self._may(gang, placed.pool, gang.gpus_at(size)):
            result.append(f"{gang.key} starts above its quota")
        best = next(self.starts(gang), None)
        better = takewhile(lambda each: each != (size, placed.pool), self.starts(gang))
        if best is None:
            result.append(f"{gang.key} starts where nothing can")
        elif self.quiet and not self._reserves():
            result += [
                f"{gang.key} starts as {(size, placed.pool)} though it could as {each}"
                for each in better
                if len(self.pools(gang)) == 1 or not self._deprives(gang, each[1], size=each[0])
            ]
        self._take(gang, placed.pool, placed.assignment)
        return result

    def _blocked(self, gang: Gang, blocked: Blocked) -> list[str]:
        if blocked.reason is BlockReason.EXCEEDS_QUOTA and self._has_lasting_quota(gang):
            return [f"{gang.key} is refused for good, though its quota comes back with the nodes"]
        if not self.quiet:
            return []
        if blocked.reason is BlockReason.WOULD_DELAY_RESERVATION:
            return self._would_delay(gang)
        if blocked.reason not in SHORT:
            return []
        best = next(self.starts(gang), None)
        if best is not None and self._reserves():
            return self._would_delay(gang)  # in this pool; in the one it is told about it is short
        if best is not None:
            return [f"{gang.key} is refused ({blocked.reason}) though it could start as {best}"]
        cheapest = self._cheapest(gang)
        if cheapest is not None:
            names = sorted(held.gang.key for held in cheapest)
            return [f"{gang.key} is refused ({blocked.reason}) though {names} may be sent away"]
        return []

    def _has_lasting_quota(self, gang: Gang) -> bool:
        """Return whether the gang would have its quota in all pools if no node were out."""
        queues = [replace(each, nominal=each.lasting) for each in self.world.snapshot.queues]
        gpus = gang.gpus_at(gang.legal_sizes[0])
        limits = self.world_queue(gang).user_limit or {}
        idle = [shares_of(queues=queues, pool=pool, own={}) for pool in self.pools(gang)]
        return bool(idle) and all(
            gpus <= limits.get(each.pool, gpus)
            and each.holding(gang.queue, gpus).problem(gang.queue, before=each) is None
            for each in idle
        )

    def _would_delay(self, gang: Gang) -> list[str]:
        if next(self.starts(gang), None) is None:
            return [f"{gang.key} would delay others though it could not start at all"]
        if self.decisions.preemptions:  # of later gangs: the reservations were made anew after them
            return []
        return self._calendar().held_back(gang) and self._held_back_without_later(gang)

    def _held_back_without_later(self, gang: Gang) -> list[str]:
        """Return why a gang should not be held back, as if no gang came after it in the order.

        A later start may move reservations to other places. The judge sees only the last ones.
        """
        order = self.decisions.order
        known = frozenset(order[: order.index(gang.uid) + 1])
        pending = tuple(each for each in self.world.pending if each.uid in known)
        world = replace(self.world, pending=pending)
        return replace(self._calendar(), world=world, decisions=world.decide()).held_back(gang)

    def _calendar(self) -> Calendar:
        return Calendar(
            world=self.world, decisions=self.decisions, started=self.started, pools=self.pools
        )

    def _preempts(self, gang: Gang, victims: Sequence[str]) -> list[str]:
        if not self.quiet:
            return []
        best = next(self.starts(gang), None)
        if best is not None and self._reserves() and self._stands_behind_others(gang):
            return []  # free capacity may be kept for them
        if best is not None:
            return [f"{gang.key} sends {victims} away though it could start as {best}"]
        if self.world.policy.surplus or self.world.policy.moves:
            return []  # part of a gang may do, or others move: more ways than are tried here
        cheapest = self._cheapest(gang)
        if cheapest is None:
            return [f"{gang.key} sends {victims} away and brute force finds nobody"]
        running = {held.gang.uid: held for held in self.world.snapshot.admitted}
        paid = sum(running[uid].gpu_seconds_at_risk for uid in victims)
        least = sum(held.gpu_seconds_at_risk for held in cheapest)
        self.ratios.append(paid / least if least else 1.0 + paid)
        return []

    def _cheapest(self, gang: Gang) -> tuple[Admitted, ...] | None:
        """The lawful victims that cost least in the first pool that has any, by trying all sets."""
        queue, delay = self._queue(gang), self.world.policy.preemption_delay_seconds
        if queue is None or gang.refusal or self.world.now < gang.queued_at + delay:
            return None
        result: list[tuple[float, tuple[Admitted, ...]]] = []
        for pool in self.pools(gang):
            candidates = [held for held in self.world.snapshot.admitted if self._may_go(held, pool)]
            table = self._after(gang, pool, candidates)
            if not can_sit(table):
                continue
            for count in range(1, len(candidates) + 1):
                for gone in combinations(candidates, count):
                    cost = sum(held.gpu_seconds_at_risk for held in gone)
                    if result and cost >= min(result, key=lambda each: each[0])[0]:
                        continue
                    if self._lawful(gang, pool, gone) and can_sit(self._after(gang, pool, gone)):
                        result.append((cost, gone))
        return min(result, key=lambda each: each[0])[1] if result else None

    def _may_go(self, held: Admitted, pool: str) -> bool:
        queue = self._queue(held.gang)
        young = queue is not None and (
            self.world.now < held.admitted_at + queue.min_runtime_seconds
        )
        free = held.preemptible and held.gang.override is None
        return held.pool == pool and free and not held.leaving and not young

    def _lawful(self, gang: Gang, pool: str, gone: Sequence[Admitted]) -> bool:
        gpus = gang.gpus_at(gang.legal_sizes[0])
        limit = (self.world_queue(gang).user_limit or {}).get(pool)
        own = sum(
            held.gpus
            for held in gone
            if (held.gang.queue, held.gang.user) == (gang.queue, gang.user)
        )
        uses = self.by_user[gang.queue, gang.user, pool]
        if limit is not None and gpus and uses - own + gpus > limit:
            return False
        return not policy_violations(
            shares=shares_of(
                queues=self.world.snapshot.queues, pool=pool, own=self.held.get(pool, Counter())
            ),
            asks=RunningGang(gang=gang, gpus=gpus),
            victims=[
                RunningGang(gang=held.gang, gpus=held.gpus, is_foreign=held.is_foreign)
                for held in gone
            ],
        )

    def _after(self, gang: Gang, pool: str, gone: Sequence[Admitted]) -> Table:
        free: Mapping[str, Amounts] = self.free
        for held in gone:
            free = {**free, **{n: minus(free[n], a, times=-1) for n, a in _places(held).items()}}
        return table(self.world.snapshot, gang, pool=pool, size=gang.legal_sizes[0], free=free)

    def world_queue(self, gang: Gang) -> Queue:
        """The gang's queue."""
        return next(queue for queue in self.world.snapshot.queues if queue.name == gang.queue)

    def _queue(self, gang: Gang) -> Queue | None:
        return next(
            (queue for queue in self.world.snapshot.queues if queue.name == gang.queue), None
        )

    def _reserves(self) -> bool:
        return self.world.policy.waiting is WaitingRule.BACKFILL

    def _stands_behind_others(self, gang: Gang) -> bool:
        """Return whether a gang that does not start comes before this one."""
        blocked = {each.uid for each in self.decisions.blocked}
        before = takewhile(lambda uid: uid != gang.uid, self.decisions.order)
        return not blocked.isdisjoint(before)

    def _may(self, gang: Gang, pool: str, gpus: int) -> bool:
        if not gpus:
            return True
        limit = (self.world_queue(gang).user_limit or {}).get(pool)
        if limit is not None and self.by_user[gang.queue, gang.user, pool] + gpus > limit:
            return False
        own = self.held.get(pool, Counter())
        before = shares_of(queues=self.world.snapshot.queues, pool=pool, own=own)
        after = before.holding(gang.queue, gpus)
        return after.problem(gang.queue, before=before) is None

    def _deprives(self, gang: Gang, pool: str, *, size: int) -> bool:
        """Whether it would borrow what one of another queue is entitled to whose turn comes."""
        shares = shares_of(
            queues=self.world.snapshot.queues, pool=pool, own=self.held.get(pool, Counter())
        )

        def stays_within(each: Gang, gpus: int) -> bool:
            after = shares.holding(each.queue, gpus)
            return not any(after.borrowed(branch) for branch in after.way(each.queue)[:-1])

        return not stays_within(gang, gang.gpus_at(size)) and any(
            other.queue != gang.queue
            and self._queue(other) is not None
            and pool in self.pools(other)
            and shares.way(other.queue)[-1] == shares.way(gang.queue)[-1]
            and stays_within(other, other.gpus_at(other.legal_sizes[0]))
            for other in self.world.pending
            if other.uid not in self.answered
        )

    def _charge(self, gang: Gang, pool: str, gpus: int) -> None:
        self.held.setdefault(pool, Counter())[gang.queue] += gpus
        self.by_user[gang.queue, gang.user, pool] += gpus

    def _take(self, gang: Gang, pool: str, assignment: Sequence[str]) -> None:
        for position, name in enumerate(assignment):
            self.free[name] = minus(self.free[name], request_at(gang, position))
        self.started.append(beginning(gang, pool, tuple(assignment), at=self.world.now))
        self._charge(gang, pool, gang.gpus_at(len(assignment) - gang.extras))

    def _surplus(self) -> list[str]:
        """Surplus gangs start as large as can be, and where nobody waits all do that can."""
        running = {held.gang.uid: held for held in self.world.snapshot.admitted}
        fresh = {each.uid: each for each in self.decisions.placed if each.uid not in running}
        gangs = {gang.uid: gang for gang in self.world.pending if gang.uid in fresh}
        gangs |= {uid: held.gang for uid, held in running.items()}
        surplus = [gang.surplus for gang in gangs.values() if gang.surplus is not None]
        result: list[str] = []
        for gang in sorted(surplus, key=lambda each: (-each.priority, each.queued_at, each.uid)):
            if gang.uid in fresh:
                result += self._placed(gang, fresh[gang.uid])
            elif gang.uid not in running and self.quiet and not self.decisions.blocked:
                best = next(self.starts(gang), None) if self._queue(gang) else None
                if best is not None:
                    result.append(f"{gang.key} takes no surplus though it could as {best}")
        return result

    def _resized(self, item: Resized) -> None:
        held = next(h for h in self.world.snapshot.admitted if h.gang.uid == item.uid)
        main = held.gang.nodes + held.gang.extras
        for name in item.added:
            self.free[name] = minus(self.free[name], request_at(held.gang, main))
        more = len(item.kept) + len(item.added) - len(held.assignment)
        self._charge(held.gang, held.pool, more * held.gang.per_pod.gpus)

    def _grown(self, held: Admitted) -> list[str]:
        """Where nobody waits, a whole elastic gang is as large as it can be."""
        gang = held.gang
        if not gang.sizes or not gang.resizable or self._queue(gang) is None:
            return []
        resized = next(
            (resized for resized in self.decisions.resized if resized.uid == gang.uid), None
        )
        size = held.size
        nodes = list(held.assignment)
        if resized is not None:
            size = len(resized.kept) + len(resized.added) - gang.extras
            nodes += resized.added
        for larger in gang.legal_sizes:
            more = larger - size
            if more <= 0 or not self._may(gang, held.pool, more * gang.per_pod.gpus):
                continue
            beside = self.table(gang, held.pool, more)
            by_name = {node.name: node for node in self.world.snapshot.nodes}
            homes = {path_at(by_name[name], gang.required_level, beside.levels) for name in nodes}
            near = Table(
                gang=_mains(gang),
                size=more,
                nodes=tuple(
                    node
                    for node in beside.nodes
                    if path_at(node, gang.required_level, beside.levels) in homes - {None}
                ),
                free=self.free,
                levels=beside.levels,
            )
            if can_sit(near):
                return [f"{gang.key} stays at {size} pods though {larger} could be had"]
        return []


def _mains(gang: Gang) -> Gang:
    return replace(gang, roles=())


def _places(held: Admitted) -> dict[str, Amounts]:
    """What its leaving gives back, by node."""
    result: dict[str, Amounts] = {}
    for position, name in enumerate(held.assignment):
        if position not in held.lost:
            before = result.get(name, {})
            result[name] = minus(before, request_at(held.gang, position), times=-1)
    return result


def judged(world: World, decisions: Decisions | None = None) -> list[str]:
    """Everything that is wrong with what the engine decides about a world."""
    decisions = decisions or world.decide()
    world = replace(world, snapshot=world.by_hand(), percents={}, groups=())
    return Judge(world=world, decisions=decisions).problems()
