"""Nodes that a job avoids for some time, because a GPU failed there under it.

A failed device is mostly a fault of the node until somebody repairs it. A restart on it fails
again, and a health monitor taints it minutes later or never. Other jobs do not avoid the node,
because the report of one job is not enough to take a node from all jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.lifecycle.incidents.failures import Failure, FailureClass
from drumline.lifecycle.model.conditions import changed
from drumline.lifecycle.model.timestamps import parse_timestamp, timestamp
from drumline_api.jobstatus import AvoidedNode, TrainingJobStatus

AVOID_SECONDS: Final = 3600.0
"""Time for which a job avoids a node. An admin can repair or taint the node within this time. A
cluster without another node waits at most this long."""
MAX_AVOIDED: Final = 16
MAX_CAUSE_CHARS: Final = 256


def with_failed_devices(
    status: TrainingJobStatus, failures: Sequence[Failure], *, now: float
) -> TrainingJobStatus:
    """Return the status after these failures. Nodes with failed devices are avoided from now on.

    Beyond MAX_AVOIDED entries, the oldest ones are dropped.

    Args:
        status: the job's present status.
        failures: failures that the agents reported.
        now: Unix time in seconds.
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
    # A node that failed again gets a new time. The bound keeps the status small.
    kept = [entry for entry in status.avoided_nodes or () if entry.node not in nodes]
    return changed(status, avoided_nodes=[*kept, *nodes.values()][-MAX_AVOIDED:])


def without_expired(status: TrainingJobStatus, *, now: float) -> TrainingJobStatus:
    """Return the status without expired nodes. The same object if there are none."""
    entries = status.avoided_nodes or ()
    left = [entry for entry in entries if parse_timestamp(entry.until) > now]
    return status if len(left) == len(entries) else changed(status, avoided_nodes=left or None)


def next_end(status: TrainingJobStatus) -> float | None:
    """Return the time at which the next node may be used again, or None.

    In seconds since the epoch.
    """
    ends = (parse_timestamp(entry.until) for entry in status.avoided_nodes or ())
    return min(ends, default=None)
