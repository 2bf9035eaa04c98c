"""The pure scheduling room: a snapshot goes in, decisions come out.

No clock, no network, no randomness, no logging. See docs/scheduling.md.
"""

from drumline.scheduling.cycle import decide
from drumline.scheduling.decisions import (
    FOREIGN_PODS,
    MAX_MESSAGE_CHARS,
    Blocked,
    BlockReason,
    Decisions,
    Placed,
    Preemption,
    Resized,
    Victim,
    VictimReason,
)
from drumline.scheduling.model import (
    Admitted,
    Gang,
    Node,
    Policy,
    Pool,
    PreemptionRule,
    Queue,
    Reclaim,
    Snapshot,
    Taint,
    TaintEffect,
    Toleration,
    TolerationOperator,
    WaitingRule,
    WithinQueue,
)
from drumline.scheduling.resources import Resources

__all__ = [
    "FOREIGN_PODS",
    "MAX_MESSAGE_CHARS",
    "Admitted",
    "BlockReason",
    "Blocked",
    "Decisions",
    "Gang",
    "Node",
    "Placed",
    "Policy",
    "Pool",
    "Preemption",
    "PreemptionRule",
    "Queue",
    "Reclaim",
    "Resized",
    "Resources",
    "Snapshot",
    "Taint",
    "TaintEffect",
    "Toleration",
    "TolerationOperator",
    "Victim",
    "VictimReason",
    "WaitingRule",
    "WithinQueue",
    "decide",
]
