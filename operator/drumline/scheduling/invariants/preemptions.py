"""I5 and I6: who may be sent away for whom, and that it is never in vain.

The law itself and the potential that every preemption lowers are in `law`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from drumline.scheduling.decisions import BlockReason, Decisions, Preemption, VictimReason
from drumline.scheduling.invariants.law import Running, potential, unlawful
from drumline.scheduling.invariants.places import new_places, promised_to
from drumline.scheduling.invariants.shares import Shares, past_gpus, shares_of
from drumline.scheduling.model import Admitted, Gang, Policy, Queue, Snapshot
from drumline.scheduling.resources import NOTHING, Resources


def preemption_violations(
    *,
    snapshot: Snapshot,
    pending: Sequence[Gang],
    decisions: Decisions,
    policy: Policy,
    now: float,
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
        gpus = sum(gang.request_of(place).gpus for place in range(len(one.assignment)))
        shares = _shares(snapshot=snapshot, policy=policy, pool=one.pool, running=before)
        found += unlawful(
            shares=shares,
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
        later = _shares(snapshot=snapshot, policy=policy, pool=one.pool, running=after)
        if not potential(shares=later, running=after) < potential(shares=shares, running=before):
            found.append(f"{one.key} does not lower the potential")
    return found + _in_vain(snapshot=snapshot, pending=pending, decisions=decisions)


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
        Running(gang=gangs[uid], gpus=gangs[uid].gpus_at(size - gangs[uid].extras))
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


def _shares(*, snapshot: Snapshot, policy: Policy, pool: str, running: Iterable[Running]) -> Shares:
    own: Counter[str] = Counter()
    users: Counter[tuple[str, str]] = Counter()
    for one in running:
        own[one.gang.queue] += one.gpus
        users[one.gang.queue, one.gang.user] += one.gpus
    shares = shares_of(queues=snapshot.queues, pool=pool, own=own)
    past = past_gpus(snapshot=snapshot, policy=policy, pool=pool)
    return replace(shares, past=past, users=users)


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
