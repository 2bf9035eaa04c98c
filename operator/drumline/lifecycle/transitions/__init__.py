"""Transitions of a job's status. Each is a function from one status to the next.

A transition decides nothing. Its caller in `lifecycle.plan`, or the scheduler's commit, has
decided. `phase`, `reason` and `message` repeat the most important condition, for `kubectl get`.
Callers import the package: `status=transitions.requeued(job, ...)`.
"""

from __future__ import annotations

from drumline.lifecycle.transitions.disruption import (
    disrupted,
    disruption_withdrawn,
    movable,
    nominated,
    nominated_for_move,
    nomination_cleared,
    preempted,
)
from drumline.lifecycle.transitions.idleness import (
    idle,
    idle_eviction,
    is_suspended_for_idleness,
    suspended_for_idleness,
    suspended_with_its_terminal,
    works_again,
)
from drumline.lifecycle.transitions.membership import (
    admitted,
    growth_abandoned,
    members_lost,
    members_replaced,
    resized,
    restarted,
)
from drumline.lifecycle.transitions.phases import (
    failed,
    invalid_config,
    memory_judged,
    predecessors_met,
    requeued,
    resumed,
    running,
    succeeded,
    suspended,
    valid_config,
    waiting,
    with_agents_report,
    with_checkpoint,
    with_epoch,
    with_expected_start,
    with_progress,
    with_surroundings,
)

__all__ = [
    "admitted",
    "disrupted",
    "disruption_withdrawn",
    "failed",
    "growth_abandoned",
    "idle",
    "idle_eviction",
    "invalid_config",
    "is_suspended_for_idleness",
    "members_lost",
    "members_replaced",
    "memory_judged",
    "movable",
    "nominated",
    "nominated_for_move",
    "nomination_cleared",
    "predecessors_met",
    "preempted",
    "requeued",
    "resized",
    "restarted",
    "resumed",
    "running",
    "succeeded",
    "suspended",
    "suspended_for_idleness",
    "suspended_with_its_terminal",
    "valid_config",
    "waiting",
    "with_agents_report",
    "with_checkpoint",
    "with_epoch",
    "with_expected_start",
    "with_progress",
    "with_surroundings",
    "works_again",
]
