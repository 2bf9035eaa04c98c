"""Nodes on which a GPU failed under a job: for a while it gets no place there.

A device that fails is mostly the node's until somebody looks at it: a restart on it fails again,
and a health monitor taints it minutes later or never. Other jobs are not told: one job's word is
not enough to take a node from all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.lifecycle.incidents.failures import Failure, FailureClass
from drumline.lifecycle.model.conditions import changed
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline_api.jobstatus import AvoidedNode, TrainingJobStatus

AVOID_SECONDS: Final = 3600.0
"""Long enough to mend or taint the node, short enough for a cluster that has no other."""
MAX_AVOIDED: Final = 16
MAX_CAUSE_CHARS: Final = 256


def with_failed_devices(
    status: TrainingJobStatus, failures: Sequence[Failure], *, now: float
) -> TrainingJobStatus:
    """The status after these failures: nodes whose devices failed are avoided from now on.

    Beyond MAX_AVOIDED those whose time ends first are forgotten.
    """
    nodes = {
        failure.node: AvoidedNode(
            node=failure.node,
            until=timestamp(now + AVOID_SECONDS),
            cause=(failure.error or failure.message)[:MAX_CAUSE_CHARS],
        )
        for failure in failures
        if failure.failure_class is FailureClass.DEVICE
    }
    if not nodes:
        return status
    kept = [entry for entry in status.avoided_nodes or () if entry.node not in nodes]
    return changed(status, avoided_nodes=[*kept, *nodes.values()][-MAX_AVOIDED:])


def without_past(status: TrainingJobStatus, *, now: float) -> TrainingJobStatus:
    """The status without nodes whose time is over; the same object if there are none."""
    entries = status.avoided_nodes or ()
    left = [entry for entry in entries if parse_timestamp(entry.until) > now]
    return status if len(left) == len(entries) else changed(status, avoided_nodes=left or None)


def next_end(status: TrainingJobStatus) -> float | None:
    """When the next node may be used again (seconds since the epoch); None: none is avoided."""
    ends = (parse_timestamp(entry.until) for entry in status.avoided_nodes or ())
    return min(ends, default=None)
