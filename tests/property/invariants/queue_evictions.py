"""The gangs that a queue evicts by itself: it is drained, its budget expired, or its quota fell."""

from __future__ import annotations

from dataclasses import replace

from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Admitted, Snapshot, WhenSpent
from tests.property.invariants.budgets import spends_too_much
from tests.property.invariants.quota import QueueShares, shares_of


def queue_eviction_violations(*, snapshot: Snapshot, decisions: Decisions, now: float) -> list[str]:
    """Return gangs that leave or stay without a reason, or that get two orders."""
    drained = {queue.name for queue in snapshot.queues if queue.drained}
    leave = {eviction.uid for eviction in decisions.evictions}
    stay = set(decisions.stay)
    said: list[str] = []
    excess = _excess(snapshot, gone=drained, now=now)
    for held in snapshot.admitted:
        if held.gang.surplus_of:  # it leaves with the gang that it is beside: `surplus_gangs`
            continue
        key, uid, gang = held.gang.key, held.gang.uid, held.gang
        expired = spends_too_much(gang, snapshot, now=now) is WhenSpent.EXPIRE
        has_to = gang.queue in drained or expired or uid in excess
        if uid in leave and (not has_to or held.leaving or held.is_residual):
            said.append(f"{key} leaves, and its queue is not drained or it leaves already")
        if uid not in leave and has_to and not (held.leaving or held.is_residual):
            said.append(f"{key} continues in drained queue {held.gang.queue}")
        if held.departs and (uid in stay) == has_to:
            said.append(f"{key} stays in a drained queue, or leaves an open queue")
    return said


def _excess(snapshot: Snapshot, *, gone: set[str], now: float) -> set[str]:
    """Return the gangs that leave because a quota was lowered, by their definition."""
    queues = tuple(replace(queue, nominal=queue.lasting) for queue in snapshot.queues)
    named = {queue.name: queue for queue in queues}
    leave: set[str] = set()
    for pool in {held.pool for held in snapshot.admitted}:
        jobs = [
            held
            for held in snapshot.admitted
            if held.pool == pool
            and not (held.is_residual or held.is_foreign or held.gang.queue in gone)
            and (held.departs or not held.leaving)
            and spends_too_much(held.gang, snapshot, now=now) is not WhenSpent.EXPIRE
            and not _is_permitted(held, snapshot, now=now)
        ]
        here = shares_of(queues=queues, pool=pool, own={})
        for held in jobs:
            here = here.holding(held.gang.queue, _gpus(held))
        asked = [
            held
            for held in jobs
            if held.gang.queue in named and named[held.gang.queue].evicts_excess
            if _gpus(held) > 0 and not (held.set_aside or held.gang.surplus_of)
        ]
        asked.sort(
            key=lambda held: (
                not held.departs,
                held.gang.priority,
                held.gpu_seconds_at_risk,
                -held.admitted_at,
                held.gang.uid,
            )
        )
        chosen: list[Admitted] = []
        first = here
        for held in asked:
            name = held.gang.queue
            gone_before = [_gpus(each) for each in chosen if each.gang.queue == name]
            taken = sorted([*gone_before, _gpus(held)])
            is_borrowed = sum(taken[:-1]) < first.borrowed(first.way(name)[0])
            if is_borrowed and _is_above(here, name):
                here = here.holding(name, -_gpus(held))
                chosen.append(held)
        for held in reversed(chosen):
            with_it = here.holding(held.gang.queue, _gpus(held))
            if _is_above(with_it, held.gang.queue):
                leave.add(held.gang.uid)
            else:
                here = with_it
    return leave


def _is_permitted(held: Admitted, snapshot: Snapshot, *, now: float) -> bool:
    """Return whether an override lets a gang hold more than its queue may."""
    return any(
        queue.name == held.gang.queue and each.job == held.gang.key and now < each.until
        for queue in snapshot.queues
        for each in queue.overrides
    )


def _gpus(held: Admitted) -> int:
    return held.gpus - sum(held.gang.request_of(place).gpus for place in held.giving_up)


def _is_above(shares: QueueShares, name: str) -> bool:
    """Return whether a queue or one of its cohorts holds more than its limit."""
    *below, root = shares.line(name)
    limits = {each: (shares.queues[each].borrowing_limit or {}).get(shares.pool) for each in below}
    return bool(shares.borrows(root)) or any(
        limit is not None and shares.borrows(each) > limit for each, limit in limits.items()
    )
