"""One scheduling cycle: a snapshot and the pending gangs in, decisions out.

A gang gets all its slots or none, and they are taken from the views before the next gang is tried.
So two gangs never hold parts of what one of them needs (I4), and a gang that fits starts in this
cycle (I8). Slots that a preemption frees are reserved for the preemptor from then on (I6).

Example: two free nodes; a broken gang lost one node; A (priority 2) needs two nodes and B (priority
1) one. The repair takes one node, A is rejected and, if its queue may preempt nothing, B starts on
the other node. With a preemption for A, its future nodes would be reserved, and B rejected if it
needed one of them.

The decisions do not depend on the order of anything in the arguments. In a full cluster most of a
cycle computes explanations: the gangs whose end would help a blocked gang.

Cost: O(nodes x levels) to build the view, O(nodes) for each shape of pods, and for each gang
O(domains of the searched levels + its pods); equivalent gangs that do not fit cost one search.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from drumline_scheduler.admission import Admission, Yields
from drumline_scheduler.admitted_gangs import AdmittedGangs
from drumline_scheduler.autoscaling.node_needs import promised, with_node_needs
from drumline_scheduler.cycle_answers import (
    Answer,
    BlockableGangs,
    blocked_gangs,
    next_retry_at,
    order_of,
)
from drumline_scheduler.cycle_cache import CycleCache
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.cycle_session import CycleSession, open_session
from drumline_scheduler.decisions import (
    Blocked,
    BlockReason,
    Decisions,
    Placed,
    Preemption,
    Resized,
)
from drumline_scheduler.fault_isolation import decide_around_faults
from drumline_scheduler.faults import Stage, deciding
from drumline_scheduler.growth import Growth
from drumline_scheduler.model import Admitted, Gang, Snapshot, WaitingRule, order_key
from drumline_scheduler.overdue_gangs import without_overdue
from drumline_scheduler.overrides import with_overrides
from drumline_scheduler.queue_evictions import queue_evictions, with_evictions
from drumline_scheduler.queueing.deferral import Deferral, passed_gangs
from drumline_scheduler.queueing.groups import GangGroups
from drumline_scheduler.queueing.pending_gangs import PendingGangs
from drumline_scheduler.quota.usage_budgets import Budgets
from drumline_scheduler.rejections import Rejection
from drumline_scheduler.work import CyclePart, Work, counted, current


def decide(
    cycle: CycleInput, *, cache: CycleCache | None = None, work: Work | None = None
) -> Decisions:
    """Decide which waiting gangs start and where, which are preempted, and repair broken gangs.

    An exception on one gang is that gang's answer (`Decisions.faults`, `SchedulerError`).

    Args:
        cycle: the cluster, the waiting gangs, the policy and the time.
        cache: state of earlier cycles with the same policy; it saves time and changes no decision.
        work: counts the steps and shows another thread which gang is being decided; None: the work
            of this thread.

    Raises:
        InvalidSnapshotError: two gangs have the same uid.
        TooManyFaultsError: more gangs raise than one call sets aside.
    """
    cache, work = cache or CycleCache(), work or current() or Work()
    work.late_from = cycle.late_from

    def attempt(cycle: CycleInput) -> Decisions:
        work.clear()
        try:
            return replace(_decide(cycle, cache=cache), late_at=work.late_at)
        except Exception:
            cache.clear()  # it may have been left in the middle of a change
            raise

    def probe(cycle: CycleInput) -> Decisions:
        work.clear(is_probe=True)
        return _decide(cycle, cache=CycleCache())

    with counted(work):
        return decide_around_faults(attempt, probe=probe, cycle=cycle)


def _decide(cycle: CycleInput, *, cache: CycleCache) -> Decisions:
    """Decide about all gangs of a cycle. An exception on one of them is raised."""
    pending = cycle.pending
    # 0. Gangs that should have left a while ago count as staying.
    overdue = without_overdue(cycle.snapshot, seconds=cycle.policy.overdue_seconds, now=cycle.now)
    given = overdue.snapshot
    # 1. Budgets and drained queues: gangs that they evict count as leaving from here on.
    budgets = Budgets(given, now=cycle.now)
    evictions = queue_evictions(given, budgets=budgets, now=cycle.now)
    snapshot = with_evictions(given, leaving=evictions.leaving, staying=evictions.staying)
    # The quota that follows jobs with an override. It is as written in messages and statuses.
    applied = with_overrides(snapshot, pending=pending, now=cycle.now)
    snapshot, pending = applied.snapshot, applied.pending
    cycle = replace(cycle, snapshot=snapshot, pending=pending)
    if snapshot.offers:
        # 2. Nodes that an autoscaler adds: nominate their slots for the gangs that requested them.
        # Hypothetical clusters have these nodes, and their cycles have caches of their own.
        requested, more = cache.what_if
        nodes = cache.offered_nodes
        nodes.begin()
        promises = promised(cycle, decide=partial(_cycle, cache=requested), nodes=nodes)
        # 3. The cycle.
        cycle = replace(cycle, snapshot=promises.snapshot, pending=promises.pending)
        decisions = _cycle(cycle, cache=cache)
        # 4. Nodes for gangs that still wait.
        decisions = with_node_needs(
            decisions,
            cycle=replace(cycle, snapshot=snapshot),
            promises=promises,
            decide=partial(_cycle, cache=more),
            nodes=nodes,
            has_quota=cache.has_quota,
        )
    else:
        decisions = _cycle(cycle, cache=cache)
    # 5. What phase 1 adds to the answers.
    times = (decisions.retry_at, evictions.again_at, overdue.again_at, applied.again_at)
    return replace(
        decisions,
        placed=_warned(decisions.placed, pending=pending, budgets=budgets),
        evictions=evictions.leaving,
        stay=(*decisions.stay, *evictions.staying, *overdue.cancelled),
        retry_at=min((at for at in times if at is not None), default=None),
    )


def _warned(
    placed: tuple[Placed, ...], *, pending: Sequence[Gang], budgets: Budgets
) -> tuple[Placed, ...]:
    """Add a warning to each start of a gang that exceeds its queue's budget."""
    if not budgets.warns:
        return placed
    gangs = {gang.uid: gang for gang in pending}
    return tuple(
        replace(start, message=warning)
        if start.uid in gangs and (warning := budgets.warning(gangs[start.uid]))
        else start
        for start in placed
    )


def _cycle(cycle: CycleInput, *, cache: CycleCache) -> Decisions:
    """Decide on the nodes of the snapshot alone. Raises like `decide`."""
    # 1. The session: the current and the projected view, with earlier nominations.
    snapshot = cycle.snapshot
    admitted = cache.admitted(snapshot)
    queued = cache.pending(snapshot=snapshot, pending=cycle.pending)
    queued.reject_admitted(admitted.uids)
    session = open_session(
        cycle,
        admitted=admitted,
        cluster=cache.cluster_view(snapshot=snapshot, policy=cycle.policy),
        pending=queued,
        kept=cache.rejections,
    )
    admission, growth = Admission(session), Growth(session)
    # 2. Repairs come first: a broken gang holds capacity without progress. Then nominated gangs,
    # then gangs that would break because their nodes are about to go.
    broken = sorted(admitted.broken, key=_admitted_key)
    answers = _repair_start_and_relocate(
        session=session, admission=admission, admitted=admitted, broken=broken
    )
    # 3. The other pending gangs in scheduling order, each at most once.
    session.begin(CyclePart.ADMIT)
    tried = _admit(session=session, admission=admission, snapshot=snapshot, answers=answers)
    # 4. Growth into capacity that no pending gang needs.
    if not (session.only_starts or session.is_late("growth")):
        _grow(growth=growth, admitted=admitted, pending=queued, answers=answers)
    # 5. The answers; moves come last, as they may only use what is left.
    blockable = BlockableGangs(broken=broken, pending=queued, tried=tried, answers=answers)
    blocked = blocked_gangs(blockable, session=session, admission=admission, cache=cache.blocked)
    return Decisions(
        placed=tuple(answer for answer in answers.values() if isinstance(answer, Placed)),
        blocked=tuple(blocked),
        preemptions=tuple(answer for answer in answers.values() if isinstance(answer, Preemption)),
        resized=tuple(answer for answer in answers.values() if isinstance(answer, Resized)),
        moves=growth.moves(),
        stay=session.stay,
        reservations=session.reservations.made(),
        order=order_of(pending=queued, answers=answers),
        considered=sum(uid in queued for uid in answers),
        deferred=(
            *session.rejections.deferral.uids,
            *admission.limits.not_tried,
            *admission.explanations.left_out,
        ),
        put_off=(*session.repair.turns.put_off, *admission.late_gangs.put_off),
        passed=_passed(cycle, blocked=blocked, pending=queued),
        known=_known(cycle, blocked=blocked),
        retry_at=next_retry_at(session=session, broken=broken, blocked=blocked),
    )


def _passed(
    cycle: CycleInput, *, blocked: Sequence[Blocked], pending: PendingGangs
) -> frozenset[str]:
    """Return the gangs that the next cycle may defer under the strict rule."""
    if cycle.try_budget is None or cycle.policy.waiting is not WaitingRule.STRICT:
        return frozenset()
    return passed_gangs(blocked, pending=pending, before=cycle.passed)


def _known(cycle: CycleInput, *, blocked: Sequence[Blocked]) -> frozenset[str]:
    """Return the waiting gangs that were tried in this or an earlier cycle."""
    if cycle.try_budget is None or cycle.policy.waiting is not WaitingRule.STRICT:
        return frozenset()
    # A gang behind another one was not searched for.
    unsearched = (BlockReason.NOT_TRIED, BlockReason.BEHIND_HIGHER_PRIORITY)
    return frozenset(
        answer.uid
        for answer in blocked
        if answer.uid in cycle.known or answer.reason not in unsearched
    )


def _admitted_key(held: Admitted) -> tuple[int, float, str]:
    return order_key(held.gang)


def _repair_start_and_relocate(
    *,
    session: CycleSession,
    admission: Admission,
    admitted: AdmittedGangs,
    broken: Sequence[Admitted],
) -> dict[str, Answer]:
    """Return the answers of broken, nominated and displaced gangs, by uid.

    A surplus gang waits, without an answer, while its base gang stays broken.

    If a gang gets other slots than its nominated ones, it releases these. Then all gangs without
    slots are tried again, at most once for each gang.
    """
    nominated = sorted(filter(admission.is_nominated, session.pending.individual), key=order_key)
    together = session.groups_of_nominated(nominated)
    answers: dict[str, Answer] = {}
    while True:
        # Broken gangs before nominated ones, each in scheduling order. A gang
        # with slots is not tried again.
        session.begin_repairs(broken)
        for held in broken:
            if _stays_broken(admitted.base_of(held), answers=answers):
                continue
            if not isinstance(answers.get(held.gang.uid), Placed | Resized | Preemption):
                with deciding(held.gang, Stage.REPAIR):
                    repaired = session.repair.repair(held)
                if repaired is not None:
                    answers[held.gang.uid] = repaired
        session.begin(None)
        for gang in nominated:
            if isinstance(answers.get(gang.uid), Placed):
                continue
            with deciding(gang, Stage.START):
                if gang.uid in together:
                    answers.update(admission.start_group(together[gang.uid]))
                else:
                    answers[gang.uid] = admission.start_nominated(gang)
        if admission.take_released():
            continue
        _relocate(session=session, admitted=admitted, answers=answers)
        if not admission.take_released():
            return answers


def _stays_broken(held: Admitted | None, *, answers: Mapping[str, Answer]) -> bool:
    return (
        held is not None and bool(held.lost) and not isinstance(answers.get(held.gang.uid), Placed)
    )


def _relocate(
    *, session: CycleSession, admitted: AdmittedGangs, answers: dict[str, Answer]
) -> None:
    for held in sorted(admitted.displaced, key=_admitted_key):
        if held.gang.uid in answers:
            continue
        with deciding(held.gang, Stage.RELOCATE):
            moved = session.repair.relocate(held)
        if moved is not None:
            answers[held.gang.uid] = moved


def _admit(
    *,
    session: CycleSession,
    admission: Admission,
    snapshot: Snapshot,
    answers: dict[str, Answer],
) -> list[Gang]:
    """Add the answers of pending gangs in scheduling order.

    A gang is skipped if the rejection of an equivalent gang is also its answer.

    Returns:
        The gangs that were tried one by one.
    """
    tried: list[Gang] = []
    individual = sorted(session.pending.individual, key=order_key)
    unanswered = [gang for gang in individual if gang.uid not in answers]
    groups = GangGroups(
        waiting=unanswered, admitted=snapshot.admitted, costs_of=session.pending.costs_of
    )
    for gang in admission.turns:
        if gang.uid in answers:
            continue
        # A group is decided at the turn of its first gang. Its other members then have an answer.
        group = groups.group_of(gang)
        if group is None:
            for each, answer in _ask(gang, admission=admission):
                answers[each.uid] = answer
                tried.append(each)
            continue
        with deciding(gang, Stage.ADMIT):
            answers.update(admission.admit_together(group))
        admission.turns.take_out(group.members)
    # Groups that are not tried have no turn, because there may be thousands of them.
    for key in sorted(session.rejections.deferral.groups):
        rejection = Deferral.rejection(key[0])
        for gang in sorted(session.pending.group(key), key=order_key):
            answers.setdefault(gang.uid, rejection)
    return tried


def _ask(
    gang: Gang, *, admission: Admission
) -> Iterator[tuple[Gang, Placed | Preemption | Rejection]]:
    """Yield the answers of all gangs that are asked before a gang, then its own."""
    while isinstance(answer := _admitted(gang, admission=admission), Yields):
        yield from _ask(answer.to, admission=admission)
    yield gang, answer


def _admitted(gang: Gang, *, admission: Admission) -> Placed | Preemption | Rejection | Yields:
    with deciding(gang, Stage.ADMIT):
        return admission.admit(gang)


def _grow(
    *, growth: Growth, admitted: AdmittedGangs, pending: PendingGangs, answers: dict[str, Answer]
) -> None:
    """Grow running gangs in scheduling order, then start surplus gangs beside their base gangs."""
    for held in sorted(admitted.may_grow, key=_admitted_key):
        # A surplus gang grows only beside a base gang that this cycle leaves alone.
        beside = admitted.base_of(held)
        if beside is not None and (beside.gang.uid in answers or growth.leaves(beside)):
            continue
        with deciding(held.gang, Stage.GROW):
            resized = growth.grow(held)
        if resized is not None:
            answers[held.gang.uid] = resized
    # Base gangs that run without surplus, and base gangs that start in this cycle.
    gangs = [
        (held.gang, held.pool)
        for held in admitted.may_take_surplus
        if held.gang.uid not in answers and not growth.leaves(held)
    ]
    gangs += [
        (pending.gang(uid), answer.pool)
        for uid, answer in answers.items()
        if isinstance(answer, Placed) and uid in pending
    ]
    for gang, pool in sorted(gangs, key=lambda pair: order_key(pair[0])):
        if gang.surplus is None:
            continue
        with deciding(gang.surplus, Stage.SURPLUS):
            started = growth.start_surplus(gang.surplus, beside=pool)
        if started is not None:
            answers[gang.surplus.uid] = started
