"""Decide which gangs start where, which are preempted, and repair broken gangs.

`decide(CycleInput(snapshot, pending, policy, now))` returns `Decisions`. The package is pure: no
clock, no I/O, no logging, and no randomness without a seed. So equal input gives equal decisions,
whatever its order, and a captured cycle can be replayed.

Start with `cycle`: `decide` names the phases of a cycle and calls one package for each:

1. `quota`: budgets, cohorts, fair shares, and the ledger of used quota.
2. `queueing`: the order of waiting gangs, groups, reservations, cached rejections.
3. `placement`: the cluster as arrays, the search for slots, and explanations of rejections.
4. `preemption`: candidates, the cheapest victims, repairs, moves.
5. `autoscaling`: hypothetical nodes that let gangs start, and free nodes that are kept.

`model` holds the values that come in, `decisions` those that go out. `forecast` runs `decide` ahead
on a virtual clock. See docs/scheduling.md.
"""

from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_cache import CycleCache
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import (
    Blocked,
    BlockReason,
    Decisions,
    Move,
    MoveReason,
    NeedsNodes,
    Placed,
    Preemption,
    QueueEvictionReason,
    Remedy,
    RemedyKind,
    Reservation,
    Resized,
    Victim,
    VictimReason,
)
from drumline_scheduler.model import (
    Admitted,
    AskedNodes,
    Budget,
    CapacityType,
    Gang,
    MoveBudget,
    Node,
    NodeOffer,
    NodeOperator,
    NodeRequirement,
    Ordering,
    Policy,
    Pool,
    Predecessor,
    PredecessorState,
    PreemptionLimit,
    PreemptionRule,
    Queue,
    Reclaim,
    Refill,
    Role,
    Slice,
    Snapshot,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
    WaitingRule,
    WhenSpent,
    WithinQueue,
)
from drumline_scheduler.resources import Resources

__all__ = [
    "Admitted",
    "AskedNodes",
    "BlockReason",
    "Blocked",
    "Budget",
    "CapacityType",
    "CycleCache",
    "CycleInput",
    "Decisions",
    "Gang",
    "Move",
    "MoveBudget",
    "MoveReason",
    "NeedsNodes",
    "Node",
    "NodeOffer",
    "NodeOperator",
    "NodeRequirement",
    "Ordering",
    "Placed",
    "Policy",
    "Pool",
    "Predecessor",
    "PredecessorState",
    "Preemption",
    "PreemptionLimit",
    "PreemptionRule",
    "Queue",
    "QueueEvictionReason",
    "Reclaim",
    "Refill",
    "Remedy",
    "RemedyKind",
    "Reservation",
    "Resized",
    "Resources",
    "Role",
    "Slice",
    "Snapshot",
    "Taint",
    "TaintEffect",
    "Toleration",
    "TolerationOperator",
    "Victim",
    "VictimReason",
    "WaitingRule",
    "WhenSpent",
    "WithinQueue",
    "decide",
]
