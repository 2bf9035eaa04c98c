"""I5: who may be sent away for whom, and who may be moved.

Each preemption is looked at as of its turn: with all in their places who came before it, and
without those who were told to leave for them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from drumline_scheduler.decisions import Decisions, Preemption, Victim, VictimReason
from drumline_scheduler.model import Admitted, Gang, Policy, Snapshot
from tests.property.invariants.nominations import broken_nominations, nominated_placements
from tests.property.invariants.policy_check import RunningGang, policy_violations, potential
from tests.property.invariants.quota import QueueShares, past_gpus, shares_of

_SPARED_FROM = frozenset({VictimReason.LOWER_PRIORITY, VictimReason.MOVED})
"""What a gang is spared that was preempted often; what it borrows is reclaimed all the same."""


def preemption_violations(
    *,
    snapshot: Snapshot,
    pending: Sequence[Gang],
    decisions: Decisions,
    policy: Policy,
    now: float,
) -> list[str]:
    """Preemptions that are unlawful, in vain, or do not lower the potential; wrong victims."""
    violations: list[str] = []
    running = {held.gang.uid: held for held in snapshot.admitted}
    gangs = {gang.uid: gang for gang in pending}
    answer: set[str] = set()
    for preemption in decisions.preemptions:
        for victim in preemption.victims:
            violations += _bad_victim(preemption, victim, held=running[victim.uid], uids=answer)
            violations += _hurried(preemption.key, running[victim.uid], snapshot=snapshot, now=now)
            if victim.why in _SPARED_FROM:
                violations += _hounded(preemption.key, running[victim.uid], policy=policy, now=now)
            answer.add(victim.uid)
        gang = gangs[preemption.uid] if preemption.uid in gangs else running[preemption.uid].gang
        before = _before(
            snapshot=snapshot, pending=pending, decisions=decisions, preemption=preemption
        )
        violations += _wrong(preemption, gang=gang, snapshot=snapshot, policy=policy, before=before)
    return violations + broken_nominations(snapshot=snapshot, pending=pending, decisions=decisions)


def _wrong(
    preemption: Preemption,
    *,
    gang: Gang,
    snapshot: Snapshot,
    policy: Policy,
    before: Sequence[RunningGang],
) -> list[str]:
    """How a preemption violates the preemption policy."""

    def shares_with(running: Iterable[RunningGang]) -> QueueShares:
        return _shares(snapshot=snapshot, policy=policy, pool=preemption.pool, running=running)

    asks, shares = RunningGang(gang=gang, gpus=_asked(preemption, gang=gang)), shares_with(before)
    evicted = [victim for victim in preemption.victims if victim.why is not VictimReason.MOVED]
    # A member of a group may take free room, while other members evict.
    if not evicted and (preemption.victims or gang.group):
        problem = shares.holding(gang.queue, asks.gpus).problem(gang.queue, before=shares)
        return [f"{preemption.key}: {problem}"] if problem and asks.gpus else []
    run_of = {run.gang.uid: run for run in before}
    victims = [replace(run_of[v.uid], gpus=v.gpus, whole=True) for v in evicted if v.uid in run_of]
    violations = policy_violations(shares=shares, asks=asks, victims=victims)
    violations += [
        f"{preemption.key} gives a wrong reason for {victim.key}"
        for victim in evicted
        if (victim.why is VictimReason.LOWER_PRIORITY)
        != (victim.uid in run_of and run_of[victim.uid].gang.queue == gang.queue)
    ]
    if preemption.override:
        return violations  # overrides expire, so preemptions cannot repeat for ever
    after = _after(preemption, gang=gang, before=before)
    later = potential(shares=shares_with(after), running=after)
    if not later < potential(shares=shares, running=before):
        violations.append(f"{preemption.key} does not lower the potential")
    return violations


def _after(
    preemption: Preemption, *, gang: Gang, before: Sequence[RunningGang]
) -> list[RunningGang]:
    """The running gangs once the victims are evicted and the gang has started."""
    freed = {victim.uid: victim for victim in preemption.victims}
    running: list[RunningGang] = []
    own = 0
    for run in before:
        victim = freed.get(run.gang.uid)
        if run.gang.uid == gang.uid:
            own = run.gpus
        elif victim is None:
            running.append(run)
        elif victim.kept:
            running.append(replace(run, gpus=run.gpus - victim.gpus))
    return [*running, RunningGang(gang=gang, gpus=own + _asked(preemption, gang=gang))]


def _asked(preemption: Preemption, *, gang: Gang) -> int:
    """GPUs that a preemption is about. The queue still pays for lost pods of roles (`_running`)."""
    lost = [position for position in preemption.replaced if position >= gang.extras]
    positions = lost if preemption.replaced else range(len(preemption.assignment))
    return sum(gang.request_of(position).gpus for position in positions)


def _bad_victim(
    preemption: Preemption, victim: Victim, *, held: Admitted, uids: set[str]
) -> list[str]:
    size = len(victim.kept) - held.gang.extras
    freed = held.gpus - (held.gang.gpus_at(size) if victim.kept else 0) - _given_up(held)
    problems = {
        "leaves already": held.leaving or victim.uid in uids,
        "may not be sent away": not held.preemptible or held.gang.override is not None,
        "is in another pool": held.pool != preemption.pool,
        "does not free what is said": victim.gpus != freed,
        "goes on with a size it cannot have": bool(victim.kept)
        and not (held.gang.resizable and size in held.gang.sizes and size < held.size),
        "keeps what it does not have": not set(victim.kept) <= held.survivors.keys(),
        "moves in part": bool(victim.moves_to) and len(victim.moves_to) != len(held.assignment),
        "moves and is not told so": bool(victim.moves_to) != (victim.why is VictimReason.MOVED),
    }
    return [f"{preemption.key}: {held.gang.key} {what}" for what, true in problems.items() if true]


def hurried(held: Admitted, *, snapshot: Snapshot, now: float) -> bool:
    """Whether a gang runs within its queue's minimum runtime.

    Without one a gang may be sent away that starts in the future: by another leader's clock.
    """
    runtimes = {queue.name: queue.min_runtime_seconds for queue in snapshot.queues}
    seconds = runtimes.get(held.gang.queue, 0.0)
    return seconds > 0 and now < held.admitted_at + seconds


def _hurried(key: str, held: Admitted, *, snapshot: Snapshot, now: float) -> list[str]:
    if hurried(held, snapshot=snapshot, now=now):
        return [f"{key}: {held.gang.key} has not run long enough"]
    return []


def _hounded(key: str, held: Admitted, *, policy: Policy, now: float) -> list[str]:
    """Whether a gang leaves more often than it may in a time, this time counted."""
    limit = policy.preemption_limit
    if limit is None:
        return []
    lately = sum(1 for at in held.preempted_at if at + limit.seconds > now)
    if lately < limit.times:
        return []
    return [f"{key}: {held.gang.key} was preempted {lately} times lately"]


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
    for item in earlier:
        given_up.update({v.uid: v.gpus for v in item.victims if not v.moves_to})
    kept = nominated_placements(snapshot=snapshot, pending=pending, decisions=decisions)
    moves_to = {each.gang.uid: each.pool for each in kept if each.moves}
    gone = {v.uid for each in earlier for v in each.victims if not (v.kept or v.moves_to)}
    leaving = {held.gang.uid for held in snapshot.admitted if held.leaving}
    gone |= leaving - {*decisions.stay, *moves_to}
    violations = [
        _running(held, given_up=given_up[held.gang.uid], asks=held.gang.uid == preemption.uid)
        for held in snapshot.admitted
        if held.gang.uid not in gone
        # A gang that left to move keeps its quota, in the pool to which it moves.
        and preemption.pool
        == (moves_to.get(held.gang.uid, held.pool) if held.leaving else held.pool)
    ]
    seats = [
        (nominated_placement.gang, nominated_placement.pool, len(nominated_placement.places))
        for nominated_placement in kept
        if nominated_placement.gang.uid in gangs
    ]
    seats += [
        (gangs[placed.uid], placed.pool, len(placed.assignment))
        for placed in decisions.placed
        if placed.uid in gangs and not gangs[placed.uid].surplus_of  # it starts after all of them
    ]
    for gang, pool, pods in seats:
        first = gang.nominated if turn is None else order[gang.uid] < turn
        if pool == preemption.pool and gang.uid != preemption.uid and first:
            violations.append(RunningGang(gang=gang, gpus=gang.gpus_at(pods - gang.extras)))
    return violations


def _running(held: Admitted, *, given_up: int, asks: bool) -> RunningGang:
    """A running gang; its queue pays for lost places too, but while it asks for others."""
    mains = [position for position in held.lost if asks and position >= held.gang.extras]
    lost = len(mains) * held.gang.per_pod.gpus
    gpus = held.gpus - _given_up(held) - given_up - lost
    return RunningGang(gang=held.gang, gpus=gpus, whole=not asks, is_foreign=held.is_foreign)


def _given_up(held: Admitted) -> int:
    """GPUs that a gang was told earlier to give up: they come free without another word."""
    return sum(held.gang.request_of(position).gpus for position in held.giving_up)


def _shares(
    *, snapshot: Snapshot, policy: Policy, pool: str, running: Iterable[RunningGang]
) -> QueueShares:
    own: Counter[str] = Counter()
    users: Counter[tuple[str, str]] = Counter()
    for held in running:
        own[held.gang.queue] += held.gpus
        users[held.gang.queue, held.gang.user] += held.gpus
    shares = shares_of(queues=snapshot.queues, pool=pool, own=own)
    past = past_gpus(snapshot=snapshot, policy=policy, pool=pool)
    return replace(shares, past=past, users=users)
