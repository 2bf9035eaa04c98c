"""Simulate a cluster: decisions take effect at once, and gangs end at drawn times.

It has no pods. The slots of running gangs are reserved, so a gang that ends leaves nothing behind.
Pods that are being deleted at the beginning are gone. A gang that is evicted, for another gang or
by its own queue, is gone after `LEAVING_SECONDS`. It is then pending again with its remaining work,
unless its eviction was cancelled. Nothing fails, and no job is added.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from heapq import heappop, heappush
from math import inf
from typing import Final

from drumline_scheduler.decisions import Decisions, Placed, Preemption, Resized
from drumline_scheduler.model import DAY_SECONDS, Admitted, Gang, Node, Snapshot
from drumline_scheduler.quota.usage_budgets import held_in
from drumline_scheduler.resources import NOTHING

LEAVING_SECONDS: Final = 60.0
"""Time that a gang takes to save and leave."""

STEP: Final = 0.03
"""Ends that lie so near together, as a part of the time since the beginning, are one moment."""

RuntimeEstimate = Callable[[Gang, float, float | None], float]
"""Returns the remaining seconds of a gang, from the seconds it has run and the remaining seconds
that its program reports. None: it reports nothing."""


def _by_day(since: float, until: float) -> Iterator[tuple[int, float]]:
    """Yield each day of a time span, with the seconds of the span on that day."""
    while since < until:
        day = int(since // DAY_SECONDS)
        end = min(until, float((day + 1) * DAY_SECONDS))
        yield day, end - since
        since = end


def _charged(
    days: Mapping[int, int], rate: Fraction, parts: Iterable[tuple[int, float]]
) -> Mapping[int, int]:
    """Return use by day, plus the use at a rate in some parts of days."""
    if not rate:
        return days
    more = Counter(days)
    for day, length in parts:
        more[day] += round(float(rate) * length)
    return more


class ForecastCluster:
    """Running and waiting gangs at a time that moves from end to end.

    Foreign pods that queues pay for hold their places as far as the forecast looks ahead, except
    those with a known end. Running gangs charge the budgets of their queues.

    Args:
        snapshot: the present; see `promised`.
        pending: the waiting gangs.
        now: time of the snapshot.
        length: returns the remaining run time of a gang.
    """

    def __init__(
        self, *, snapshot: Snapshot, pending: Iterable[Gang], now: float, length: RuntimeEstimate
    ) -> None:
        self.now = self._began_at = now
        self._world = snapshot
        self._length = length
        self._spent: Mapping[str, Mapping[int, int]] = {
            queue.name: snapshot.spent.get(queue.name, {})
            for queue in snapshot.queues
            if queue.budget is not None
        }
        self._spent_prices = snapshot.spent_prices
        self._spent_by_user = snapshot.spent_by_user
        self._pools = {pool.name: pool for pool in snapshot.pools}
        self._running = {held.gang.uid: held for held in snapshot.admitted}
        self._pending = {gang.uid: gang for gang in pending}
        self._ends: list[tuple[float, str]] = []
        self._end_of: dict[str, float] = {}
        """End of a gang, by uid. Other entries of the gang in the heap are outdated."""
        self._comes_back: set[str] = set()
        """Uids of gangs that leave before their work is done."""
        for held in snapshot.admitted:
            if held.is_overdue or held.gang.hanging:
                continue  # its end is not known
            if (held.is_foreign or held.gang.surplus_of) and not held.leaving:
                if held.is_foreign and held.ends_at is not None:
                    self._end(uid=held.gang.uid, after=max(LEAVING_SECONDS, held.ends_at - now))
                continue
            # Residuals leave soon. Their jobs run or wait under a separate uid.
            if held.is_residual or held.gang.surplus_of:
                self._end(uid=held.gang.uid, after=LEAVING_SECONDS)
            elif held.leaving:
                self._comes_back.add(held.gang.uid)
                self._end(uid=held.gang.uid, after=LEAVING_SECONDS)
            else:
                self._end_with_work(held)

    @property
    def snapshot(self) -> Snapshot:
        """The present snapshot for `decide`."""
        return replace(
            self._world,
            admitted=tuple(self._running.values()),
            spent=self._spent,
            spent_prices=self._spent_prices,
            spent_by_user=self._spent_by_user,
        )

    @property
    def pending(self) -> tuple[Gang, ...]:
        """The waiting gangs."""
        return tuple(self._pending.values())

    def carry_out(self, decisions: Decisions) -> None:
        """Apply decisions."""
        # Evictions after starts: a start of this cycle never uses capacity
        # that an eviction frees later.
        for placed in decisions.placed:
            self._place(placed)
        for resized in decisions.resized:
            self._resize(resized)
        for preemption in decisions.preemptions:
            self._preempt(preemption)
        for eviction in decisions.evictions:
            self._hold(replace(self._told_to_leave(eviction.uid), departs=True))
        for uid in decisions.stay:
            self._recall(uid)

    def go_on(self, *, until: float | None) -> bool:
        """Move to the next end, or to an earlier time; return False if nothing more happens.

        Ends within `STEP` of it are taken together, so that a bounded number of moments reaches
        far in a cluster of many short jobs: the last of them is the moment.
        """
        # Entries of gangs that ended or got another end stay in the
        # heap until they come to the top.
        while self._ends and not self._counts(self._ends[0]):
            heappop(self._ends)
        before = self.now
        if self._ends and (until is None or self._ends[0][0] <= until):
            self.now = self._last_end_near(self._ends[0][0], until=until)
        elif until is not None and until > self.now:
            self.now = until
        else:
            return False
        # Charge the time that has passed with what was held then, before anything ends.
        self._charge_budgets(since=before)
        while self._ends and self._ends[0][0] <= self.now:
            entry = heappop(self._ends)
            if self._counts(entry):
                self._leave(entry[1])
        return True

    def _last_end_near(self, first: float, *, until: float | None) -> float:
        """Return the last end that belongs to the moment of the first one."""
        within = first + STEP * (first - self._began_at)
        if until is not None:
            within = min(within, until)
        ends = (entry[0] for entry in self._ends if entry[0] <= within and self._counts(entry))
        return max(ends, default=first)

    def _charge_budgets(self, *, since: float) -> None:
        """Charge the budgets for the GPUs held since a time, each day's part on that day."""
        if not self._spent:
            return
        # 1. GPUs and their price now, by queue and by user of a queue with a budget.
        gpus: dict[str, Fraction] = defaultdict(Fraction)
        priced: dict[str, Fraction] = defaultdict(Fraction)
        by_user: dict[tuple[str, str], Fraction] = defaultdict(Fraction)
        for held in self._running.values():
            queue = held.gang.queue
            if queue in self._spent and (held.is_foreign or not held.is_residual):
                amount, price = held_in(self._pools.get(held.pool), held.gpus)
                gpus[queue] += amount
                priced[queue] += amount * price
                by_user[queue, held.gang.user] += amount
        # 2. Charge them to each day of the time that has passed.
        parts = tuple(_by_day(since, self.now))
        self._spent = {
            queue: _charged(days, gpus[queue], parts) for queue, days in self._spent.items()
        }
        self._spent_prices = {
            queue: _charged(days, priced[queue], parts)
            for queue, days in self._spent_prices.items()
        }
        self._spent_by_user = {
            queue: {
                user: _charged(users.get(user, {}), by_user[queue, user], parts)
                for user in {*users, *(user for of, user in by_user if of == queue)}
            }
            for queue, users in self._spent_by_user.items()
        }

    def _place(self, placed: Placed) -> None:
        # A repaired gang: it continues on its new nodes.
        if placed.uid in self._running:
            held = self._running[placed.uid]
            self._hold(replace(held, assignment=placed.assignment, lost=frozenset()))
            return
        # A gang that starts, or the surplus of a running gang.
        gang = self._pending.pop(placed.uid, None)
        if gang is None:
            self._start_surplus(placed)
            return
        gang = replace(gang, nominated=(), nominated_pool="")
        self._hold(
            Admitted(
                gang=gang,
                pool=placed.pool,
                assignment=placed.assignment,
                admitted_at=self.now,
                preemptible=not gang.is_foreign,
                is_residual=gang.is_foreign,
                is_foreign=gang.is_foreign,
            )
        )
        if gang.max_runtime_seconds is not None or not gang.is_foreign:
            self._end(uid=gang.uid, after=self._length(gang, 0.0, None))

    def _start_surplus(self, placed: Placed) -> None:
        """Start a surplus gang, which ends with its base gang."""
        beside = next(
            held
            for held in self._running.values()
            if held.gang.surplus is not None and held.gang.surplus.uid == placed.uid
        )
        assert beside.gang.surplus is not None  # noqa: S101 - as was just looked for
        self._hold(
            Admitted(
                gang=beside.gang.surplus,
                pool=placed.pool,
                assignment=placed.assignment,
                admitted_at=beside.admitted_at,
                ends_at=beside.ends_at,
            )
        )

    def _resize(self, resized: Resized) -> None:
        if not (resized.kept or resized.added):
            del self._running[resized.uid]
            self._end_of.pop(resized.uid, None)
            return
        held = self._running[resized.uid]
        kept = tuple(held.assignment[position] for position in resized.kept)
        self._hold(replace(held, assignment=(*kept, *resized.added), lost=frozenset()))

    def _preempt(self, preemption: Preemption) -> None:
        for victim in preemption.victims:
            self._hold(self._told_to_leave(victim.uid))
        gang = self._pending.get(preemption.uid)
        if gang is not None:
            self._pending[gang.uid] = replace(
                gang, nominated=preemption.assignment, nominated_pool=preemption.pool
            )

    def _told_to_leave(self, uid: str) -> Admitted:
        held = self._running[uid]
        if held.gang.surplus is not None and held.gang.surplus.uid in self._running:
            self._hold(replace(self._running[held.gang.surplus.uid], leaving=True))
        if self._end_of.get(uid, inf) > self.now + LEAVING_SECONDS:
            self._end(uid=uid, after=LEAVING_SECONDS)
            # What the owner of a foreign pod makes instead asks another scheduler.
            if not (held.is_foreign or held.gang.surplus_of):
                self._comes_back.add(uid)
        return replace(held, leaving=True)

    def _recall(self, uid: str) -> None:
        """Cancel the eviction of a gang: it continues to the end of its work."""
        held = replace(self._running[uid], leaving=False, departs=False)
        self._comes_back.discard(uid)
        self._hold(held)
        self._end_with_work(held)

    def _end_with_work(self, held: Admitted) -> None:
        left = None if held.ends_at is None else held.ends_at - self.now
        ran = self.now - held.admitted_at
        self._end(uid=held.gang.uid, after=self._length(held.gang, ran, left))

    def _hold(self, held: Admitted) -> None:
        whole = frozenset(range(len(held.assignment))) - held.lost
        self._running[held.gang.uid] = replace(held, reserved=whole)

    def _end(self, *, uid: str, after: float) -> None:
        self._end_of[uid] = self.now + after
        heappush(self._ends, (self.now + after, uid))

    def _counts(self, entry: tuple[float, str]) -> bool:
        at, uid = entry
        return self._end_of.get(uid) == at

    def _leave(self, uid: str) -> None:
        held = self._running.pop(uid)
        del self._end_of[uid]
        if held.gang.surplus_of:
            return
        if held.gang.surplus is not None:
            self._running.pop(held.gang.surplus.uid, None)
            self._end_of.pop(held.gang.surplus.uid, None)
        # An evicted gang waits again, with the rest of its limit. All other gangs have finished.
        if uid in self._comes_back:
            self._comes_back.remove(uid)
            limit = held.gang.max_runtime_seconds
            ran = self.now - held.admitted_at
            left = None if limit is None else max(LEAVING_SECONDS, limit - ran)
            self._pending[uid] = replace(held.gang, max_runtime_seconds=left)
        elif not held.is_residual:
            self._release_successors(held.gang.key)

    def _release_successors(self, key: str) -> None:
        """Release the gangs that waited for a job. It has succeeded, because nothing fails here."""
        for uid, gang in self._pending.items():
            after = tuple(each for each in gang.after if each.key != key)
            if len(after) < len(gang.after):
                queued_at = max(gang.queued_at, self.now)
                self._pending[uid] = replace(gang, after=after, queued_at=queued_at)


def promised(snapshot: Snapshot) -> Snapshot:
    """Return a copy of the cluster in which the places of gangs are reserved instead of bound.

    No pod is leaving in the copy. Gangs that move stay on their nodes, and elastic gangs keep the
    pods that they would give up.
    """
    bound: dict[str, list[tuple[Admitted, int]]] = {}
    for held in snapshot.admitted:
        for position, name in enumerate(held.assignment):
            if position not in held.lost and position not in held.reserved:
                bound.setdefault(name, []).append((held, position))
    return replace(
        snapshot,
        nodes=tuple(_without(node=node, ours=bound.get(node.name, ())) for node in snapshot.nodes),
        admitted=tuple(
            replace(
                held,
                reserved=frozenset(range(len(held.assignment))) - held.lost,
                giving_up=frozenset(),
                nominated={},
                nominated_pool="",
            )
            for held in snapshot.admitted
        ),
    )


def _without(*, node: Node, ours: Sequence[tuple[Admitted, int]]) -> Node:
    if not ours and node.terminating is NOTHING:
        return node
    used = node.used - node.ending
    for held, position in ours:
        used -= held.gang.request_of(position)
    return replace(node, used=used, terminating=NOTHING, overdue=NOTHING)
