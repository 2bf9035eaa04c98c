"""Whether the reservations of one cycle are right, and those who are held back for them.

A reservation is made on what is known when its gang is looked at: who runs, who starts in this
cycle, and the reservations of those who were looked at before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from drumline_scheduler import BlockReason, Decisions, Gang, Reservation
from tests.property.scheduling_backfill import Future, Stay, beginning, stay_of
from tests.property.scheduling_placements import table, unlawful_places
from tests.property.scheduling_worlds import World

RESERVED_FOR = {
    BlockReason.QUOTA_EXHAUSTED,
    BlockReason.USER_LIMIT,
    BlockReason.INSUFFICIENT_GPUS,
    BlockReason.INSUFFICIENT_RESOURCES,
    BlockReason.TOPOLOGY_DOES_NOT_FIT,
    BlockReason.WOULD_DELAY_RESERVATION,
}
"""Rejections of those who will start when others have left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calendar:
    """What is promised to whom, after those who started so far."""

    world: World
    decisions: Decisions
    started: Sequence[Stay]
    pools: Callable[[Gang], Sequence[str]]
    """Where a gang may be tried, in this order."""

    def held_back(self, gang: Gang) -> list[str]:
        """What is wrong with holding a gang back that could start but for reservations."""
        future = self._future(gang, guessed=False)
        if any(future.can_start(gang, pool, at=self.world.now) for pool in self.pools(gang)):
            return [f"{gang.key} is held back though it has places that delay nobody"]
        return []

    def problems(self) -> list[str]:
        """Each is as early as can be beside those before it, and nobody who starts breaks one."""
        result: list[str] = []
        most = self.world.policy.reservations
        by_pool: Counter[str] = Counter()
        reserved = {reservation.uid: reservation for reservation in self.decisions.reservations}
        gangs = {gang.uid: gang for gang in self.world.pending}
        reasons = {blocked.uid: blocked.reason for blocked in self.decisions.blocked}
        for uid in self.decisions.order:
            gang, made = gangs[uid], reserved.get(uid)
            pools = [pool for pool in self.pools(gang) if by_pool[pool] < most]
            if made is not None:
                result += self._reservation(gang, made, pools)
                by_pool[made.pool] += 1
                continue
            earliest = self._future(gang, guessed=True).earliest(gang, pools)
            if reasons.get(uid) not in RESERVED_FOR or earliest is None:
                continue
            # A later start may have moved the reservations before this one to other places, beside
            # which there is room now.
            if not (reserved and self._is_followed_by_start(uid)):
                result.append(f"{gang.key} has no reservation")
        return result

    def _is_followed_by_start(self, uid: str) -> bool:
        order = self.decisions.order
        later = frozenset(order[order.index(uid) + 1 :])
        return any(stay.gang.uid in later for stay in self.started)

    def _reservation(self, gang: Gang, made: Reservation, pools: Sequence[str]) -> list[str]:
        """What is wrong with one reservation.

        Of those who start now in front of it some may stay for ever: its start lies between the
        one without them and the one with them, and it has its places without.
        """
        size = gang.legal_sizes[0]
        there = table(self.world.snapshot, gang, pool=made.pool, size=size, free={})
        result = unlawful_places(there, made.assignment)
        future = self._future(gang, guessed=True)
        stay = beginning(gang, made.pool, made.assignment, at=made.start_at)
        if not future.beside(stay):
            result.append(f"the reservation of {gang.key} is not free")
        earliest = future.earliest(gang, pools)
        latest = self._future(gang, guessed=False).earliest(gang, pools)
        if earliest is None or not earliest <= made.start_at <= (inf if latest is None else latest):
            result.append(f"{gang.key} could start at {earliest}, not {made.start_at}")
        return result

    def _future(self, gang: Gang, *, guessed: bool) -> Future:
        """Who will be where, as far as it was known when a waiting gang was looked at."""
        world, order = self.world, self.decisions.order
        place = order.index(gang.uid)
        gangs = {gang.uid: gang for gang in world.pending}
        return Future(
            snapshot=world.snapshot,
            now=world.now,
            stays=(
                *(stay_of(held, now=world.now) for held in world.snapshot.admitted),
                *self._started(guessed=guessed),
                *(
                    beginning(
                        gangs[reservation.uid],
                        reservation.pool,
                        reservation.assignment,
                        at=reservation.start_at,
                    )
                    for reservation in self.decisions.reservations
                    if order.index(reservation.uid) < place
                ),
            ),
        )

    def _started(self, *, guessed: bool) -> list[Stay]:
        """Who starts now: for as long as it may, or as long as a guess if nobody knows."""
        guess = self.world.now + 60.0
        return [
            replace(stay, end=guess) if guessed and stay.end == inf else stay
            for stay in self.started
        ]
