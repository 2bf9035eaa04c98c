"""The backfill rule by its definition: who is expected to leave when, and who fits at which moment.

Running gangs end when their maximum runtime is over, or, when they have none, after as long as they
have run, a minute at least. Foreign pods end by their own limit or never, and nobody counts on a
gang that should have left. Whoever starts now, or has a reservation, stays for its maximum runtime,
or for ever. A reservation is right if its gang fits at its start beside those made before it, and
at no earlier moment; a start in front of it is right if it stays so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from drumline_scheduler import Admitted, Gang, Snapshot
from tests.property.invariants.quota import shares_of
from tests.property.scheduling_placements import (
    Amounts,
    can_sit,
    fits,
    free_now,
    minus,
    request_at,
    table,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """A gang in its places from a moment to another."""

    gang: Gang
    pool: str
    assignment: tuple[str, ...]
    start: float
    end: float

    @property
    def gpus(self) -> int:
        return self.gang.gpus_at(len(self.assignment) - self.gang.extras)

    def takes(self) -> dict[str, Amounts]:
        """What it holds, by node."""
        result: dict[str, Amounts] = {}
        for position, name in enumerate(self.assignment):
            asked = request_at(self.gang, position)
            result[name] = minus(result.get(name, {}), asked, times=-1)
        return result


def stay_of(held: Admitted, *, now: float) -> Stay:
    """How long a running gang is expected to stay."""
    limit = held.gang.max_runtime_seconds
    if held.is_overdue:
        end = inf
    elif held.is_foreign:
        end = inf if held.ends_at is None else max(held.ends_at, now + 60.0)
    elif limit is None:
        end = now + max(60.0, now - held.admitted_at)
    else:
        end = held.admitted_at + limit
        end = end if end > now else now + 60.0
    return Stay(gang=held.gang, pool=held.pool, assignment=held.assignment, start=-inf, end=end)


def beginning(gang: Gang, pool: str, assignment: tuple[str, ...], *, at: float) -> Stay:
    """A gang that starts at a moment and keeps to its maximum runtime."""
    length = inf if gang.max_runtime_seconds is None else gang.max_runtime_seconds
    return Stay(gang=gang, pool=pool, assignment=assignment, start=at, end=at + length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Future:
    """Everybody's stays."""

    snapshot: Snapshot
    now: float
    stays: tuple[Stay, ...]
    """Of all who run, start now or have a reservation."""

    def beside(self, stay: Stay) -> bool:
        """Whether a stay leaves all others what they have, at every moment."""
        moments = [stay.start, *(s.start for s in self.stays if stay.start < s.start < stay.end)]
        return all(self._bears(stay, at=moment) for moment in moments)

    def earliest(self, gang: Gang, pools: Sequence[str]) -> float | None:
        """The first moment at which the gang can start in its smallest size, if there is one."""
        moments = sorted({self.now, *(s.end for s in self.stays if self.now < s.end < inf)})
        return next((t for t in moments if any(self.can_start(gang, p, at=t) for p in pools)), None)

    def can_start(self, gang: Gang, pool: str, *, at: float) -> bool:
        """Whether some seating of its smallest size harms nobody from a moment on."""
        size = gang.legal_sizes[0]
        end = beginning(gang, pool, (), at=at).end
        moments = [at, *(s.start for s in self.stays if at < s.start < end)]
        if not all(self._in_quota(gang, pool, gang.gpus_at(size), at=t) for t in moments):
            return False
        least = self.free(moments[0])
        for moment in moments[1:]:
            there = self.free(moment)
            least = {
                name: {key: min(free[key], there[name].get(key, 0)) for key in free}
                for name, free in least.items()
            }
        return can_sit(table(self.snapshot, gang, pool=pool, size=size, free=least))

    def free(self, at: float) -> dict[str, Amounts]:
        """What is free on each node at a moment."""
        free = free_now(self.snapshot)
        for stay in self.stays:
            there = stay.start <= at < stay.end
            was = stay.start == -inf
            if there != was:
                for name, amounts in stay.takes().items():
                    free[name] = minus(free[name], amounts, times=-1 if was else 1)
        return free

    def _bears(self, stay: Stay, *, at: float) -> bool:
        free = self.free(at)
        return self._in_quota(stay.gang, stay.pool, stay.gpus, at=at) and all(
            fits(amounts, free[name]) for name, amounts in stay.takes().items()
        )

    def _in_quota(self, gang: Gang, pool: str, gpus: int, *, at: float) -> bool:
        if not gpus:
            return True
        there = [s for s in self.stays if s.pool == pool and s.start <= at < s.end]
        queue = next(queue for queue in self.snapshot.queues if queue.name == gang.queue)
        limit = (queue.user_limit or {}).get(pool)
        payer = (gang.queue, gang.user)
        uses = sum(s.gpus for s in there if (s.gang.queue, s.gang.user) == payer)
        if limit is not None and uses + gpus > limit:
            return False
        own: Counter[str] = Counter()
        for each in there:
            own[each.gang.queue] += each.gpus
        before = shares_of(queues=self.snapshot.queues, pool=pool, own=own)
        after = before.holding(gang.queue, gpus)
        return after.problem(gang.queue, before=before) is None
