"""What must hold of every cycle, as predicates that share no arithmetic with the engine.

Each returns the violations it finds as sentences, so a failing test shows what is wrong. They look
at a snapshot and its decisions only:

* I1 `shares`: no queue is taken above its quota and what it may borrow, at any level of the tree,
  and no user above his cap. Pods that run on after their gang gave their places up count, and so do
  the places of writes whose answer was lost. No gang runs above its queue's highest priority.
* I2 `places`: no node is given more than it has, foreign and terminating pods counted, and none
  that is closed to the gang.
* I3, I4 `places`: every gang is answered exactly once, with all its places or none, and nobody is
  told two things; a repair or a new size leaves the places that were not lost. A required level is
  kept.
* I5 `preemptions`, `law`: victims are lawful, and each preemption lowers the potential; `moves`:
  whoever moves may be moved, and what moves for its own sake frees whole domains.
* I6 `promises`: once they are gone, all who wait for them have their places and their quota.
* `queue_evictions`: gangs of drained queues leave, all of them, and nobody else does.
* `budgets`: nobody of a queue whose budget is spent starts, preempts, grows or is moved.
* `prices`: nobody starts, preempts, grows or asks for nodes in a pool whose capacity type or price
  its queue or it does not accept.
* `surplus_gangs`: what a job has on spot nodes beside its smallest size is there only beside that.
* `overrides`: quota that follows a job with an override is unused quota of the same cohort.
* `faults`: no gang raised an exception.
* I10 `shares`: nobody starts by borrowing what keeps one waiting that is entitled to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Gang, Policy, Snapshot
from drumline_scheduler.overrides import with_overrides
from drumline_scheduler.queue_evictions import with_evictions
from tests.property.invariants.budgets import budget_violations
from tests.property.invariants.moves import move_violations
from tests.property.invariants.overrides import override_violations
from tests.property.invariants.placements import (
    capacity_violations,
    gang_violations,
    topology_violations,
)
from tests.property.invariants.preemptions import preemption_violations
from tests.property.invariants.prices import price_violations
from tests.property.invariants.queue_evictions import queue_eviction_violations
from tests.property.invariants.quota import quota_violations
from tests.property.invariants.surplus_gangs import started_surplus, surplus_violations
from tests.property.invariants.sweeps import sweep_violations

_DEFAULT: Final = Policy()


def violations(
    *,
    snapshot: Snapshot,
    pending: Iterable[Gang],
    decisions: Decisions,
    policy: Policy = _DEFAULT,
    now: float = 0.0,
) -> tuple[str, ...]:
    """Every violation of I1 to I6 and I10 by one cycle's decisions under a policy."""
    waiting = tuple(pending)
    started = started_surplus(snapshot=snapshot, pending=waiting, decisions=decisions)
    waiting = (*waiting, *started)
    departing = queue_eviction_violations(snapshot=snapshot, decisions=decisions, now=now)
    # All else was decided with them told.
    recalled = {held.gang.uid for held in snapshot.admitted if held.departs}
    snapshot = with_evictions(snapshot, leaving=decisions.evictions, staying=decisions.stay)
    decisions = replace(decisions, stay=tuple(uid for uid in decisions.stay if uid not in recalled))
    written = snapshot
    applied = with_overrides(snapshot, pending=waiting, now=now)
    snapshot, waiting = applied.snapshot, applied.pending
    return (
        *(f"{fault.key}: the scheduler raised {fault.error}" for fault in decisions.faults),
        *departing,
        *override_violations(written=written, applied=snapshot, now=now),
        *surplus_violations(snapshot=snapshot, started=started, decisions=decisions),
        *quota_violations(snapshot=snapshot, pending=waiting, decisions=decisions),
        *capacity_violations(snapshot=snapshot, pending=waiting, decisions=decisions),
        *gang_violations(snapshot=snapshot, pending=waiting, decisions=decisions),
        *budget_violations(snapshot=snapshot, pending=waiting, decisions=decisions, now=now),
        *price_violations(snapshot=snapshot, pending=waiting, decisions=decisions),
        *sweep_violations(snapshot=snapshot, pending=waiting, decisions=decisions),
        *topology_violations(snapshot=snapshot, pending=waiting, decisions=decisions),
        *preemption_violations(
            snapshot=snapshot, pending=waiting, decisions=decisions, policy=policy, now=now
        ),
        *move_violations(snapshot=snapshot, pending=waiting, decisions=decisions, now=now),
    )
