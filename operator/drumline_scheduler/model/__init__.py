"""The scheduler's input as plain values: nodes, pools, queues, admitted and pending gangs.

A `Snapshot` is everything that one cycle may know. It is frozen. The cycle works on its own views
(`placement.cluster_view`) and returns decisions (`decisions`). Nothing here reads a clock. The
order of the tuples in a snapshot never changes a decision; names, priorities and ages do.

Every pod counts exactly once. `Node.used` holds every pod that is bound to the node, foreign and
terminating ones too. `Admitted.reserved` names the places whose pods are not bound yet.
"""

from drumline_scheduler.model.autoscaling import AskedNodes, NodeOffer
from drumline_scheduler.model.capacity import ANY_PRICE, CapacityType, PriceRule, SpotRule
from drumline_scheduler.model.gangs import (
    Admitted,
    Gang,
    NodeOperator,
    NodeRequirement,
    Obstacle,
    ObstacleKind,
    OrderKey,
    Predecessor,
    PredecessorState,
    Role,
    Slice,
    VolumeReach,
    is_well_formed,
    order_key,
)
from drumline_scheduler.model.nodes import (
    AttachedVolumes,
    Node,
    Pool,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from drumline_scheduler.model.policy import (
    MoveBudget,
    Ordering,
    Policy,
    PreemptionLimit,
    WaitingRule,
)
from drumline_scheduler.model.queues import (
    DAY_SECONDS,
    HOUR_SECONDS,
    Budget,
    Override,
    PreemptionRule,
    Queue,
    Reclaim,
    Refill,
    WhenSpent,
    WithinQueue,
)
from drumline_scheduler.model.snapshot import InvalidSnapshotError, Snapshot
from drumline_scheduler.model.surplus_gang import (
    at_size,
    can_be_split,
    is_surplus,
    job_uid,
    parts_of,
    with_surplus,
)

__all__ = [
    "ANY_PRICE",
    "DAY_SECONDS",
    "HOUR_SECONDS",
    "Admitted",
    "AskedNodes",
    "AttachedVolumes",
    "Budget",
    "CapacityType",
    "Gang",
    "InvalidSnapshotError",
    "MoveBudget",
    "Node",
    "NodeOffer",
    "NodeOperator",
    "NodeRequirement",
    "Obstacle",
    "ObstacleKind",
    "OrderKey",
    "Ordering",
    "Override",
    "Policy",
    "Pool",
    "Predecessor",
    "PredecessorState",
    "PreemptionLimit",
    "PreemptionRule",
    "PriceRule",
    "Queue",
    "Reclaim",
    "Refill",
    "Role",
    "Slice",
    "Snapshot",
    "SpotRule",
    "Taint",
    "TaintEffect",
    "Toleration",
    "TolerationOperator",
    "VolumeReach",
    "WaitingRule",
    "WhenSpent",
    "WithinQueue",
    "at_size",
    "can_be_split",
    "is_surplus",
    "is_well_formed",
    "job_uid",
    "order_key",
    "parts_of",
    "with_surplus",
]
