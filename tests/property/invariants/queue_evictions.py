"""Who leaves for nobody's sake: all that run in a drained queue, or where a budget expired."""

from __future__ import annotations

from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Snapshot, WhenSpent
from tests.property.invariants.budgets import spends_too_much


def queue_eviction_violations(*, snapshot: Snapshot, decisions: Decisions, now: float) -> list[str]:
    """Gangs that leave and need not, that stay and must not, or that are told two things."""
    drained = {queue.name for queue in snapshot.queues if queue.drained}
    leave = {eviction.uid for eviction in decisions.evictions}
    stay = set(decisions.stay)
    said: list[str] = []
    for held in snapshot.admitted:
        if held.gang.surplus_of:  # it leaves with the gang that it is beside: `surplus_gangs`
            continue
        key, uid, gang = held.gang.key, held.gang.uid, held.gang
        expired = spends_too_much(gang, snapshot, now=now) is WhenSpent.EXPIRE
        has_to = gang.queue in drained or expired
        if uid in leave and (not has_to or held.leaving or held.is_residual):
            said.append(f"{key} leaves, and its queue is not drained or it leaves already")
        if uid not in leave and has_to and not (held.leaving or held.is_residual):
            said.append(f"{key} goes on in drained queue {held.gang.queue}")
        if held.departs and (uid in stay) == has_to:
            said.append(f"{key} is told to stay in a drained queue, or to leave one that is open")
    return said
