"""I5 and I6: who may be sent away for whom, and that it is never in vain.

`unlawful` is the law of `scheduling.claim` read from its definition, for a whole set of victims.
`potential` is what every preemption lowers: the GPUs that are borrowed anywhere in the pool, then
the priorities that run there, highest first (as negative numbers, so that higher is lower).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from drumline.scheduling.decisions import BlockReason, Decisions, Preemption, VictimReason
from drumline.scheduling.invariants.places import new_places, promised_to
from drumline.scheduling.invariants.shares import Shares, shares_of
from drumline.scheduling.model import (
    Admitted,
    Gang,
    Queue,
    Reclaim,
    Snapshot,
    WithinQueue,
)
from drumline.scheduling.resources import NOTHING, Resources

Potential = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A gang that runs, or will, as far as preemption is concerned."""

    gang: Gang
    gpus: int


def preemption_violations(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions, now: float
) -> list[str]:
    """Preemptions that are unlawful, in vain, or do not lower the potential."""
    found: list[str] = []
    held = {one.gang.uid: one for one in snapshot.admitted}
    gangs = {gang.uid: gang for gang in pending}
    queues = {queue.name: queue for queue in snapshot.queues}
    told: set[str] = set()
    for one in decisions.preemptions:
        gang = gangs[one.uid]
        victims = [held[victim.uid] for victim in one.victims]
        before = _before(snapshot=snapshot, pending=pending, decisions=decisions, preemption=one)
        for victim, lost in zip(one.victims, victims, strict=True):
            found += _bad_victim(one, lost, now=now, queues=queues, told=told)
            told.add(victim.uid)
        gpus = len(one.assignment) * gang.per_pod.gpus
        found += unlawful(
            shares=_shares(snapshot=snapshot, pool=one.pool, running=before),
            asks=Running(gang=gang, gpus=gpus),
            victims=[Running(gang=lost.gang, gpus=lost.gpus) for lost in victims],
        )
        reasons = {v.uid: v.why for v in one.victims}
        found += [
            f"{one.key} gives a wrong reason for {lost.gang.key}"
            for lost in victims
            if (reasons[lost.gang.uid] is VictimReason.LOWER_PRIORITY)
            != (lost.gang.queue == gang.queue)
        ]
        gone = {victim.uid for victim in one.victims}
        after = [run for run in before if run.gang.uid not in gone]
        after.append(Running(gang=gang, gpus=gpus))
        if not _potential(snapshot, one.pool, after) < _potential(snapshot, one.pool, before):
            found.append(f"{one.key} does not lower the potential")
    return found + _in_vain(snapshot=snapshot, pending=pending, decisions=decisions)


def unlawful(*, shares: Shares, asks: Running, victims: Sequence[Running]) -> list[str]:
    """Why a set of victims may not be sent away for a gang; empty if it may."""
    gang, queue = asks.gang, shares.queues[asks.gang.queue]
    after = shares
    for victim in victims:
        after = after.holding(victim.gang.queue, -victim.gpus)
    without = after
    after = after.holding(gang.queue, asks.gpus)
    found: list[str] = []
    if asks.gpus and (problem := after.problem(gang.queue, before=without)):
        found.append(f"{gang.key}: {problem}")
    line = shares.line(gang.queue)
    raised = [name for name in line if after.borrows(name) > shares.borrows(name)]
    if raised or after.borrows_itself(gang.queue) > shares.borrows_itself(gang.queue):
        found.append(f"{gang.key}: {raised or gang.queue} borrows more by a preemption")
    reclaimed: dict[str, list[int]] = defaultdict(list)
    for victim in victims:
        if victim.gang.queue == gang.queue:
            if queue.preemption.within_queue is WithinQueue.NEVER:
                found.append(f"{gang.key}: its queue sends nobody away")
            if victim.gang.priority >= gang.priority:
                found.append(f"{gang.key}: {victim.gang.key} has no lower priority")
            continue
        theirs = shares.line(victim.gang.queue)
        shared = next((name for name in theirs if name in line), None)
        nothing = not victim.gpus or not asks.gpus
        if shared is None or nothing or queue.preemption.reclaim is Reclaim.NEVER:
            found.append(f"{gang.key}: nothing to reclaim from {victim.gang.key}")
            continue
        found += _not_entitled(gang=gang, after=after, line=line, shared=shared)
        for name in (*theirs[: theirs.index(shared)], f"own jobs of {theirs[0]}"):
            reclaimed[name].append(victim.gpus)
    for name, gpus in reclaimed.items():
        own = name.removeprefix("own jobs of ")
        borrowed = shares.borrows(name) if own == name else shares.borrows_itself(own)
        if sum(gpus) - max(gpus) >= borrowed:
            found.append(f"{gang.key}: {sum(gpus)} reclaimed of {borrowed} that {name} borrowed")
    return found


def _not_entitled(*, gang: Gang, after: Shares, line: Sequence[str], shared: str) -> list[str]:
    below = line[: line.index(shared)]
    over = [name for name in below if after.borrows(name)]
    if over or after.borrows_itself(gang.queue):
        return [f"{gang.key}: reclaims although {over or gang.queue} borrows itself"]
    return []


def _bad_victim(
    one: Preemption, lost: Admitted, *, now: float, queues: dict[str, Queue], told: set[str]
) -> list[str]:
    queue = queues.get(lost.gang.queue)
    protected = queue is not None and now < lost.admitted_at + queue.min_runtime_seconds
    problems = {
        "leaves already": lost.leaving or lost.gang.uid in told,
        "may not be sent away": not lost.preemptible,
        "has not run long enough": protected,
        "is in another pool": lost.pool != one.pool,
    }
    return [f"{one.key}: {lost.gang.key} {what}" for what, true in problems.items() if true]


def _before(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions, preemption: Preemption
) -> list[Running]:
    """Who would run in its pool once all left who were told to before this preemption."""
    gangs = {gang.uid: gang for gang in pending}
    order = {uid: place for place, uid in enumerate(decisions.order)}
    turn = order[preemption.uid]
    kept = [
        (gang.uid, pool, len(nodes))
        for gang, pool, nodes in _kept_places(pending=pending, decisions=decisions)
    ]
    starts = [(one.uid, one.pool, len(one.assignment)) for one in decisions.placed]
    gone = {
        victim.uid
        for one in decisions.preemptions
        if order[one.uid] < turn
        for victim in one.victims
    }
    stay = [
        Running(gang=held.gang, gpus=held.gpus)
        for held in snapshot.admitted
        if held.pool == preemption.pool and not held.leaving and held.gang.uid not in gone
    ]
    return stay + [
        Running(gang=gangs[uid], gpus=size * gangs[uid].per_pod.gpus)
        for uid, pool, size in (*kept, *starts)
        if pool == preemption.pool and uid in gangs and order[uid] < turn
    ]


def _kept_places(
    *, pending: Sequence[Gang], decisions: Decisions
) -> list[tuple[Gang, str, tuple[str, ...]]]:
    """The places that are kept after this cycle: gang, pool and nodes."""
    waits = {one.uid for one in decisions.blocked if one.reason is BlockReason.WAITING_FOR_VICTIMS}
    fresh = {one.uid: one for one in decisions.preemptions}
    return [
        (gang, fresh[gang.uid].pool, fresh[gang.uid].assignment)
        if gang.uid in fresh
        else (gang, gang.nominated_pool, gang.nominated)
        for gang in pending
        if gang.uid in waits
    ]


def _shares(*, snapshot: Snapshot, pool: str, running: Iterable[Running]) -> Shares:
    own: Counter[str] = Counter()
    for one in running:
        own[one.gang.queue] += one.gpus
    return shares_of(queues=snapshot.queues, pool=pool, own=own)


def _potential(snapshot: Snapshot, pool: str, running: Sequence[Running]) -> Potential:
    borrowed = _shares(snapshot=snapshot, pool=pool, running=running).all_borrowed()
    return borrowed, tuple(sorted(-one.gang.priority for one in running))


def _in_vain(*, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions) -> list[str]:
    """Kept places that will not be there once everybody is gone who was told to leave."""
    leaving = {victim.uid for one in decisions.preemptions for victim in one.victims}
    leaving |= {held.gang.uid for held in snapshot.admitted if held.leaving}
    stay = [held for held in snapshot.admitted if held.gang.uid not in leaving]
    free = {node.name: node.allocatable - node.used + node.terminating for node in snapshot.nodes}
    for held in snapshot.admitted:
        if held.gang.uid in leaving:
            for index, name in enumerate(held.assignment):
                if index not in held.lost | held.reserved and name in free:
                    free[name] += held.gang.request_of(index)
    for name, amounts in promised_to(stay).items():
        if name in free:
            free[name] -= amounts
    taken: dict[str, Resources] = defaultdict(lambda: NOTHING)
    for gang, _, position, name in new_places(
        snapshot=snapshot, pending=pending, decisions=decisions
    ):
        taken[name] += gang.request_of(position)
    found: list[str] = []
    kept = _kept_places(pending=pending, decisions=decisions)
    for gang, _, nodes in kept:
        for position, name in enumerate(nodes):
            taken[name] += gang.request_of(position)
    for gang, _, nodes in kept:
        short = [n for n in nodes if n not in free or not taken[n].fits_in(free[n])]
        if short:
            found.append(f"{gang.key} waits in vain for {short[0]}")
    return found
