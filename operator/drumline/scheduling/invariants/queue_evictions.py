"""Who leaves for nobody's sake: all that run in a drained queue, or where a budget expired."""

from __future__ import annotations

from drumline.scheduling.decisions import Decisions
from drumline.scheduling.invariants.budgets import spent_queues
from drumline.scheduling.model import Snapshot, WhenSpent


def queue_eviction_violations(*, snapshot: Snapshot, decisions: Decisions, now: float) -> list[str]:
    """Gangs that leave and need not, that stay and must not, or that are told two things."""
    spent = spent_queues(snapshot, now=now)
    drained = {
        queue.name
        for queue in snapshot.queues
        if queue.drained
        or (
            queue.name in spent
            and queue.budget is not None
            and queue.budget.when_spent is WhenSpent.EXPIRE
        )
    }
    leave = {eviction.uid for eviction in decisions.evictions}
    stay = set(decisions.stay)
    said: list[str] = []
    for held in snapshot.admitted:
        key, uid, has_to = held.gang.key, held.gang.uid, held.gang.queue in drained
        if uid in leave and (not has_to or held.leaving or held.is_residual):
            said.append(f"{key} leaves, and its queue is not drained or it leaves already")
        if uid not in leave and has_to and not (held.leaving or held.is_residual):
            said.append(f"{key} goes on in drained queue {held.gang.queue}")
        if held.departs and (uid in stay) == has_to:
            said.append(f"{key} is told to stay in a drained queue, or to leave one that is open")
    return said
