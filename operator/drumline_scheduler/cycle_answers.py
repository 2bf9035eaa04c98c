"""Turn the answers of a cycle into decisions: blocked gangs, their order, and the next retry.

Ten thousand gangs may be blocked. Most of them share the rejection of their equivalence class,
which comes from the cache of the last cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, count, filterfalse, repeat
from operator import is_

from drumline_scheduler.admission import Admission
from drumline_scheduler.cycle_session import CycleSession
from drumline_scheduler.decisions import Blocked, BlockReason, Placed, Preemption, Resized
from drumline_scheduler.faults import Stage, deciding
from drumline_scheduler.model import Admitted, Gang
from drumline_scheduler.queueing.blocked_cache import BlockedCache
from drumline_scheduler.queueing.pending_gangs import PendingGangs
from drumline_scheduler.rejections import Rejection

Answer = Placed | Resized | Preemption | Blocked | Rejection


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockableGangs:
    """The gangs that may be blocked, and their answers."""

    broken: Sequence[Admitted]
    pending: PendingGangs
    tried: Iterable[Gang]
    answers: Mapping[str, Answer]


def blocked_gangs(
    gangs: BlockableGangs, *, session: CycleSession, admission: Admission, cache: BlockedCache
) -> list[Blocked]:
    """Return the blocked gangs: broken gangs first, then pending gangs in scheduling order.

    Only gangs with an answer of their own are computed here. The answers of equivalence classes
    that were rejected as a whole come from the cache, mostly as the objects of the last cycle.

    Args:
        gangs: the gangs that may be blocked, and their answers.
        session: the cycle.
        admission: answers gangs that wait for their victims.
        cache: answers of the last cycle.
    """
    pending, answers, by_class = gangs.pending, gangs.answers, session.rejections.by_class
    cache.update(pending=pending, rejections=by_class)

    def answer_of(gang: Gang) -> Blocked | None:
        match answers.get(gang.uid) or session.rejections.last(gang):
            case Rejection() as rejection:
                return rejection.of(gang)
            case Blocked() as blocked:
                return blocked
            case Preemption():
                return admission.waiting(gang)
            case _:
                return None

    def explained(gang: Gang) -> Blocked | None:
        with deciding(gang, Stage.EXPLAIN):
            return answer_of(gang)

    # 1. Broken gangs that could not be repaired.
    repairs = [explained(held.gang) for held in gangs.broken if held.gang.uid in answers]
    # 2. Pending gangs. The cached list has the answers of whole classes, and None for the others.
    blocked = list(pending.blocked)
    own = set(compress(count(), map(is_, blocked, repeat(None))))
    # 3. A gang that was tried may have another answer than its class, such as a reservation.
    differing = (
        gang
        for gang in gangs.tried
        if answers[gang.uid] is not by_class.get(pending.class_of(gang))
    )
    own.update(map(pending.index, differing))
    # Gangs with one rejection, such as those of groups that are not tried, are answered together.
    alike: dict[int, tuple[Rejection, list[int]]] = {}
    for index in own:
        gang = pending.gangs[index]
        answer = answers.get(gang.uid)
        if isinstance(answer, Rejection):
            alike.setdefault(id(answer), (answer, []))[1].append(index)
        else:
            blocked[index] = explained(gang)
    for rejection, indices in alike.values():
        several = [pending.gangs[index] for index in indices]
        with deciding(several[0], Stage.EXPLAIN):
            for index, each in zip(indices, rejection.of_all(several), strict=True):
                blocked[index] = each
    return [answer for answer in (*repairs, *blocked) if answer is not None]


def order_of(*, pending: PendingGangs, answers: Mapping[str, Answer]) -> tuple[str, ...]:
    """Return the uids of pending gangs: answered ones in the order tried, then all others."""
    tried = [uid for uid in answers if uid in pending]  # running gangs have answers too
    return (*tried, *filterfalse(set(tried).__contains__, pending.uids))


def next_retry_at(
    *, session: CycleSession, broken: Sequence[Admitted], blocked: Sequence[Blocked]
) -> float | None:
    """Return when time alone may change a decision; None if it cannot.

    Backoffs and minimum runtimes end, and budgets flow back.

    Args:
        session: state of the current cycle.
        broken: running gangs that lost members.
        blocked: gangs that were rejected in this cycle.
    """
    gangs = [held.gang for held in broken] + list(session.pending.individual)
    # A backoff counts only for a gang that waits for it now, not for one with an earlier reason.
    backoffs = {gang.uid: gang.retry_at for gang in gangs if gang.retry_at > session.now}
    ends = (
        backoffs[answer.uid]
        for answer in (blocked if backoffs else ())
        if answer.reason is BlockReason.BACKING_OFF
    )
    flows_back = session.budgets.retry_at
    if flows_back is not None and any(
        answer.reason is BlockReason.BUDGET_SPENT for answer in blocked
    ):
        ends = (*ends, flows_back)
    return min((*session.candidates.retry_at, *ends), default=None)
