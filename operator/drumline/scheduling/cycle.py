"""One scheduling cycle: a snapshot and the waiting gangs in, decisions out.

Broken gangs are repaired first: they hold capacity that does nothing until they are whole. Then
come gangs whose victims have left, then the other waiting ones, once each, in the order of
`ordering`. A gang gets all its places or none, and what it gets is taken from the view before the
next one is looked at; so two gangs can never hold parts of what one of them needs (I4), and
whatever fits starts in this cycle (I8). A gang for which nothing is free may send others away; the
places it will have are kept from that moment on (I6). Last, elastic gangs grow into what nobody
wants.

Cost: O(nodes x levels) to build the view, O(nodes) once per shape of pods, and per gang
O(domains of the levels searched + its places); equal gangs that do not fit cost one explanation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, count, repeat
from operator import is_

from drumline.scheduling.admitted_gangs import AdmittedGangs
from drumline.scheduling.cycle_cache import CycleCache
from drumline.scheduling.cycle_session import CycleSession
from drumline.scheduling.decisions import (
    Blocked,
    BlockReason,
    Decisions,
    Placed,
    Preemption,
    Resized,
)
from drumline.scheduling.model import Admitted, Gang, Policy, Snapshot
from drumline.scheduling.queueing.blocked_cache import BlockedCache
from drumline.scheduling.queueing.groups import GangGroups
from drumline.scheduling.queueing.pending_gangs import PendingGangs
from drumline.scheduling.quota.ordering import order_key
from drumline.scheduling.rejections import Rejection

Answer = Placed | Resized | Preemption | Blocked | Rejection


def decide(
    *,
    snapshot: Snapshot,
    pending: Iterable[Gang],
    policy: Policy,
    now: float,
    cache: CycleCache | None = None,
) -> Decisions:
    """Decide which waiting gangs start now, and where, who has to leave, and repair the rest.

    The result does not depend on the order of anything in the arguments.

    Args:
        snapshot: the cluster and what is admitted; `Admitted.lost` asks for replacements.
        pending: gangs that wait, none of them admitted already.
        policy: the rule for those behind a gang that cannot start, and what preemption costs.
        now: seconds on the clock of `Gang.retry_at` and `Admitted.admitted_at`.
        cache: derived in earlier cycles with the same policy; it makes this one cheaper, not
        different.

    Raises:
        ValueError: where one uid stands for two gangs.
    """
    cache = cache or CycleCache()
    running = cache.running(snapshot)
    waiting = cache.waiting(snapshot=snapshot, pending=pending)
    waiting.reject(running.uids)
    cluster = cache.cluster_view(snapshot=snapshot, policy=policy)
    session = CycleSession(
        snapshot=snapshot,
        running=running,
        cluster=cluster,
        waiting=waiting,
        policy=policy,
        now=now,
    )
    broken = _in_order(running.broken)
    answers = _settle(
        session=session, broken=broken, nominated=_nominated(session=session, waiting=waiting)
    )
    asked = _admit(session=session, waiting=waiting, snapshot=snapshot, answers=answers)
    _grow(session=session, running=running, answers=answers)
    blocked = _blocked(
        session=session,
        broken=broken,
        waiting=waiting,
        asked=asked,
        answers=answers,
        notices=cache.notices,
    )
    resting = {one.gang.uid: one.gang.retry_at for one in broken if one.gang.retry_at > now}
    resting |= {gang.uid: gang.retry_at for gang in waiting.alone if gang.retry_at > now}
    given = answers.values()
    return Decisions(
        placed=tuple(one for one in given if isinstance(one, Placed)),
        blocked=tuple(blocked),
        preemptions=tuple(one for one in given if isinstance(one, Preemption)),
        resized=tuple(one for one in given if isinstance(one, Resized)),
        moves=session.moves(),
        stay=session.stay,
        reservations=session.reservations,
        order=_order(waiting=waiting, answers=answers),
        retry_at=_retry_at(session=session, blocked=blocked, resting=resting),
    )


def _in_order(running: Iterable[Admitted]) -> list[Admitted]:
    return sorted(running, key=lambda held: order_key(held.gang))


def _nominated(*, session: CycleSession, waiting: PendingGangs) -> list[Gang]:
    """Those for whom places are kept, in the order of their turns."""
    return sorted(filter(session.is_nominated, waiting.alone), key=order_key)


def _settle(
    *, session: CycleSession, broken: Sequence[Admitted], nominated: Sequence[Gang]
) -> dict[str, Answer]:
    """Answer those to whom places are due: repairs, then gangs whose victims have left.

    Where one of the latter found places elsewhere, the kept ones are free for all others again.
    """
    answers: dict[str, Answer] = {}
    while True:
        for held in broken:
            if not isinstance(answers.get(held.gang.uid), Placed | Resized | Preemption):
                answers[held.gang.uid] = session.repair(held)
        for gang in nominated:
            if not isinstance(answers.get(gang.uid), Placed):
                answers[gang.uid] = session.claim(gang)
        if not session.gave_back():
            return answers


def _admit(
    *, session: CycleSession, waiting: PendingGangs, snapshot: Snapshot, answers: dict[str, Answer]
) -> list[Gang]:
    """Answer those who wait when it is their turn; who is passed over is told what others are.

    Returns those who were looked at one by one.
    """
    asked: list[Gang] = []
    fresh = [gang for gang in sorted(waiting.alone, key=order_key) if gang.uid not in answers]
    groups = GangGroups(waiting=fresh, admitted=snapshot.admitted)
    for gang in session.line():
        if gang.uid in answers:
            continue
        group = groups.of(gang)
        if group is None:
            answers[gang.uid] = session.admit(gang)
            asked.append(gang)
        else:
            answers.update(session.admit_together(group))
    return asked


def _grow(*, session: CycleSession, running: AdmittedGangs, answers: dict[str, Answer]) -> None:
    """Let elastic gangs have what nobody waits for."""
    for held in _in_order(running.may_grow):
        resized = session.grow(held)
        if resized is not None:
            answers[held.gang.uid] = resized


def _blocked(
    *,
    session: CycleSession,
    broken: Sequence[Admitted],
    waiting: PendingGangs,
    asked: Iterable[Gang],
    answers: Mapping[str, Answer],
    notices: BlockedCache,
) -> list[Blocked]:
    """What all those are told who get nothing."""
    kinds = session.told_by_kind
    notices.update(waiting=waiting, told=kinds)
    alone = [_blocked_alone(session=session, gang=held.gang, answers=answers) for held in broken]
    line = list(waiting.told)
    others = set(compress(count(), map(is_, line, repeat(None))))
    otherwise = (one for one in asked if answers[one.uid] is not kinds.get(waiting.kind(one)))
    others.update(map(waiting.place, otherwise))
    for place in others:
        line[place] = _blocked_alone(session=session, gang=waiting.gangs[place], answers=answers)
    return [one for one in (*alone, *line) if one is not None]


def _blocked_alone(
    *, session: CycleSession, gang: Gang, answers: Mapping[str, Answer]
) -> Blocked | None:
    match answers.get(gang.uid) or session.told(gang):
        case Rejection() as rejection:
            return rejection.of(gang)
        case Blocked() as blocked:
            return blocked
        case Preemption():
            return session.waiting(gang)
        case _:
            return None


def _order(*, waiting: PendingGangs, answers: Mapping[str, Answer]) -> tuple[str, ...]:
    """First those who were looked at, then the others in the order of their turns."""
    asked = [uid for uid in answers if uid in waiting]  # running gangs were answered too
    others = list(waiting.uids)
    for place in sorted(map(waiting.place_of, asked), reverse=True):
        del others[place]
    return (*asked, *others)


def _retry_at(
    *, session: CycleSession, blocked: Sequence[Blocked], resting: Mapping[str, float]
) -> float | None:
    """When time alone may change something."""
    backoffs = (
        resting[one.uid]
        for one in (blocked if resting else ())
        if one.reason is BlockReason.BACKING_OFF
    )
    return min((*session.retries, *backoffs), default=None)
