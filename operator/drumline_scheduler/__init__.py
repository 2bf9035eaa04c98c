"""The scheduler: `decide` takes a snapshot of the cluster and returns decisions.

It is pure. It reads no clock, file or network, writes no log, and takes chance only from a seed in
its input. So each cycle can be captured, replayed and compared with brute force.

Start with `cycle.decide`: budgets, quota, order, placement, preemption, node demands. `model` has
the input values, `decisions` the results. Then follow one gang: `queueing` orders the line, `quota`
limits what its queue may use, `placement` finds nodes in the topology, `preemption` finds victims.
`forecast` computes when a waiting job is expected to start, `autoscaling` which nodes to request.
`disruption` weighs the evidence against nodes.

It never evicts, writes or retries: `drumline.controller.scheduler` carries decisions out. An
exception on one gang sets this gang aside and becomes its answer (`fault_isolation`).

Data: `Snapshot` (pools, nodes, queues, gangs) -> `cycle.decide` -> `Decisions` (placed, evicted,
rejected with reason and figures, node demands). See docs/scheduling.md.
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
    Override,
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
    "Override",
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
