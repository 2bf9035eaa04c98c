"""I5: who may be sent away for whom, and who may be moved.

Each preemption is looked at as of its turn: with all in their places who came before it, and
without those who were told to leave for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from drumline.scheduling.decisions import Decisions, Preemption, Victim, VictimReason
from drumline.scheduling.invariants.nominations import broken_nominations, nominated_placements
from drumline.scheduling.invariants.policy_check import RunningGang, policy_violations, potential
from drumline.scheduling.invariants.quota import QueueShares, past_gpus, shares_of
from drumline.scheduling.model import Admitted, Gang, Policy, Snapshot


def preemption_violations(
    *,
    snapshot: Snapshot,
    pending: Sequence[Gang],
    decisions: Decisions,
    policy: Policy,
    now: float,
) -> list[str]:
    """Preemptions that are unlawful, in vain, or do not lower the potential; wrong victims."""
    found: list[str] = []
    running = {held.gang.uid: held for held in snapshot.admitted}
    gangs = {gang.uid: gang for gang in pending}
    told: set[str] = set()
    for one in decisions.preemptions:
        for victim in one.victims:
            found += _bad_victim(one, victim, held=running[victim.uid], told=told)
            found += _hurried(one.key, running[victim.uid], snapshot=snapshot, now=now)
            told.add(victim.uid)
        gang = gangs[one.uid] if one.uid in gangs else running[one.uid].gang
        before = _before(snapshot=snapshot, pending=pending, decisions=decisions, preemption=one)
        found += _wrong(one, gang=gang, snapshot=snapshot, policy=policy, before=before)
    return found + broken_nominations(snapshot=snapshot, pending=pending, decisions=decisions)


def _wrong(
    one: Preemption,
    *,
    gang: Gang,
    snapshot: Snapshot,
    policy: Policy,
    before: Sequence[RunningGang],
) -> list[str]:
    """How a preemption breaks the law."""

    def shares_with(running: Iterable[RunningGang]) -> QueueShares:
        return _shares(snapshot=snapshot, policy=policy, pool=one.pool, running=running)

    asks, shares = RunningGang(gang=gang, gpus=_asked(one, gang=gang)), shares_with(before)
    sent = [victim for victim in one.victims if victim.why is not VictimReason.MOVED]
    if one.victims and not sent:
        problem = shares.holding(gang.queue, asks.gpus).problem(gang.queue, before=shares)
        return [f"{one.key}: {problem}"] if problem and asks.gpus else []
    gang_of = {run.gang.uid: run.gang for run in before}
    victims = [RunningGang(gang=gang_of[v.uid], gpus=v.gpus) for v in sent if v.uid in gang_of]
    found = policy_violations(shares=shares, asks=asks, victims=victims)
    found += [
        f"{one.key} gives a wrong reason for {victim.key}"
        for victim in sent
        if (victim.why is VictimReason.LOWER_PRIORITY)
        != (victim.uid in gang_of and gang_of[victim.uid].queue == gang.queue)
    ]
    after = _after(one, gang=gang, before=before)
    later = potential(shares=shares_with(after), running=after)
    if not later < potential(shares=shares, running=before):
        found.append(f"{one.key} does not lower the potential")
    return found


def _after(one: Preemption, *, gang: Gang, before: Sequence[RunningGang]) -> list[RunningGang]:
    """Who runs once the victims are gone and the gang has its places."""
    freed = {victim.uid: victim for victim in one.victims}
    found: list[RunningGang] = []
    own = 0
    for run in before:
        victim = freed.get(run.gang.uid)
        if run.gang.uid == gang.uid:
            own = run.gpus
        elif victim is None:
            found.append(run)
        elif victim.kept:
            found.append(replace(run, gpus=run.gpus - victim.gpus))
    return [*found, RunningGang(gang=gang, gpus=own + _asked(one, gang=gang))]


def _asked(one: Preemption, *, gang: Gang) -> int:
    """GPUs that a preemption is about."""
    positions = one.replaced or range(len(one.assignment))
    return sum(gang.request_of(position).gpus for position in positions)


def _bad_victim(one: Preemption, victim: Victim, *, held: Admitted, told: set[str]) -> list[str]:
    size = len(victim.kept) - held.gang.extras
    freed = held.gpus - (held.gang.gpus_at(size) if victim.kept else 0) - _given_up(held)
    problems = {
        "leaves already": held.leaving or victim.uid in told,
        "may not be sent away": not held.preemptible,
        "is in another pool": held.pool != one.pool,
        "does not free what is said": victim.gpus != freed,
        "goes on with a size it cannot have": bool(victim.kept)
        and not (held.gang.resizable and size in held.gang.sizes and size < held.size),
        "keeps what it does not have": not set(victim.kept) <= held.survivors.keys(),
        "moves in part": bool(victim.moves_to) and len(victim.moves_to) != len(held.assignment),
        "moves and is not told so": bool(victim.moves_to) != (victim.why is VictimReason.MOVED),
    }
    return [f"{one.key}: {held.gang.key} {what}" for what, true in problems.items() if true]


def _hurried(key: str, held: Admitted, *, snapshot: Snapshot, now: float) -> list[str]:
    runtimes = {queue.name: queue.min_runtime_seconds for queue in snapshot.queues}
    if now < held.admitted_at + runtimes.get(held.gang.queue, 0.0):
        return [f"{key}: {held.gang.key} has not run long enough"]
    return []


def _before(
    *, snapshot: Snapshot, pending: Sequence[Gang], decisions: Decisions, preemption: Preemption
) -> list[RunningGang]:
    """Who would run in its pool once all left who were told to before this preemption.

    Broken gangs come forward before all who wait, but for those whose places were kept.
    """
    order = {uid: place for place, uid in enumerate(decisions.order)}
    gangs = {gang.uid: gang for gang in pending}
    turn = order.get(preemption.uid)
    earlier = decisions.preemptions[: decisions.preemptions.index(preemption)]
    given_up: Counter[str] = Counter()
    for one in earlier:
        given_up.update({v.uid: v.gpus for v in one.victims if not v.moves_to})
    gone = {v.uid for one in earlier for v in one.victims if not (v.kept or v.moves_to)}
    gone |= {held.gang.uid for held in snapshot.admitted if held.leaving} - {*decisions.stay}
    found = [
        _running(held, given_up=given_up[held.gang.uid], asks=held.gang.uid == preemption.uid)
        for held in snapshot.admitted
        if held.pool == preemption.pool and held.gang.uid not in gone
    ]
    seats = [
        (one.gang, one.pool, len(one.places))
        for one in nominated_placements(snapshot=snapshot, pending=pending, decisions=decisions)
        if one.gang.uid in gangs
    ]
    seats += [
        (gangs[one.uid], one.pool, len(one.assignment))
        for one in decisions.placed
        if one.uid in gangs
    ]
    for gang, pool, pods in seats:
        first = gang.nominated if turn is None else order[gang.uid] < turn
        if pool == preemption.pool and gang.uid != preemption.uid and first:
            found.append(RunningGang(gang=gang, gpus=gang.gpus_at(pods - gang.extras)))
    return found


def _running(held: Admitted, *, given_up: int, asks: bool) -> RunningGang:
    """A running gang; its queue pays for lost places too, but while it asks for others."""
    mains = [position for position in held.lost if asks and position >= held.gang.extras]
    lost = len(mains) * held.gang.per_pod.gpus
    gpus = held.gpus - _given_up(held) - given_up - lost
    return RunningGang(gang=held.gang, gpus=gpus, whole=not asks)


def _given_up(held: Admitted) -> int:
    """GPUs that a gang was told earlier to give up: they come free without another word."""
    return sum(held.gang.request_of(position).gpus for position in held.giving_up)


def _shares(
    *, snapshot: Snapshot, policy: Policy, pool: str, running: Iterable[RunningGang]
) -> QueueShares:
    own: Counter[str] = Counter()
    users: Counter[tuple[str, str]] = Counter()
    for one in running:
        own[one.gang.queue] += one.gpus
        users[one.gang.queue, one.gang.user] += one.gpus
    shares = shares_of(queues=snapshot.queues, pool=pool, own=own)
    past = past_gpus(snapshot=snapshot, policy=policy, pool=pool)
    return replace(shares, past=past, users=users)
