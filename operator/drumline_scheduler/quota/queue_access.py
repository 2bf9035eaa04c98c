"""Check whether a gang may use its queue: it exists, admits namespace and priority, and is open.

A gang with an obstacle may use no queue. Its pods could start nowhere.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Final

from drumline_scheduler.decisions import BlockReason
from drumline_scheduler.model import Gang, ObstacleKind, Queue
from drumline_scheduler.rejections import Rejection, correction

HIGHEST_PRIORITY: Final = 1_000_000_000
"""Highest priority of user-defined PriorityClasses (`scheduling.HighestUserDefinablePriority` of
Kubernetes). Above it are system-cluster-critical and system-node-critical, which no training job
may use."""
_REASONS: Final = {
    ObstacleKind.NAMESPACE_ENDS: BlockReason.NAMESPACE_TERMINATING,
    ObstacleKind.CLAIM_IN_USE: BlockReason.CLAIM_IN_USE,
}


class QueueAccess:
    """Checks gangs against their queues. Equal gangs share one answer."""

    def __init__(self, queues: Mapping[str, Queue]) -> None:
        self._queues = queues
        self._rejections: dict[Hashable, Rejection | None] = {}
        """Rejections by queue, namespace, priority and obstacle. None: the gang may use it."""
        self._open: dict[tuple[str, int], frozenset[str]] = {}
        """Names of the queues that a gang may use, by namespace and priority."""

    def rejection(self, gang: Gang) -> Rejection | None:
        """Return the reason why a gang may not use the queue that it names; None if it may."""
        key = (gang.queue, gang.namespace, gang.priority, gang.obstacle)
        if key not in self._rejections:
            queue = self._queues.get(gang.queue)
            self._rejections[key] = (
                access_rejection(gang=gang, queue=queue)
                if queue is not None
                else _obstructed(gang) or queue_not_found(gang, open_queues=self._open_to(gang))
            )
        return self._rejections[key]

    def _open_to(self, gang: Gang) -> frozenset[str]:
        key = (gang.namespace, gang.priority)
        if key not in self._open:
            self._open[key] = frozenset(
                queue.name
                for queue in self._queues.values()
                if access_rejection(gang=gang, queue=queue) is None
            )
        return self._open[key]


def queue_not_found(gang: Gang, *, open_queues: Iterable[str]) -> Rejection:
    """Return the rejection of a gang whose queue does not exist, or whose spec cannot be read."""
    return Rejection(
        reason=BlockReason.QUEUE_NOT_FOUND,
        message=f"queue {gang.queue} does not exist or cannot be read: create or fix that"
        " TrainingQueue, or use another queue",
        remedy=correction(wrong=gang.queue, right=open_queues),
    )


def access_rejection(*, gang: Gang, queue: Queue) -> Rejection | None:
    """Return the reason why a gang may not use an existing queue; None if it may.

    It names no namespace except the gang's own, because other tenants must not become visible.
    """
    if (obstructed := _obstructed(gang)) is not None:
        return obstructed
    if queue.namespaces is not None and gang.namespace not in queue.namespaces:
        return Rejection(
            reason=BlockReason.NAMESPACE_NOT_ALLOWED,
            message=f"queue {queue.name} is not open to namespace {gang.namespace}: use another"
            f" queue, or ask {_way_in(queue)}",
        )
    # Without a maximum of its own, a queue still excludes the priorities of system pods.
    highest = HIGHEST_PRIORITY if queue.max_priority is None else queue.max_priority
    if gang.priority > highest:
        return Rejection(
            reason=BlockReason.PRIORITY_TOO_HIGH,
            message=f"priority {gang.priority} is above {highest}, the maximum of queue"
            f" {queue.name}: choose a lower priority class",
            remedy=correction(wrong=str(gang.priority), right=[str(highest)]),
        )
    if queue.held:
        state = "drained" if queue.drained else "held"
        return Rejection(
            reason=BlockReason.QUEUE_HELD,
            message=f"queue {queue.name} is {state}: its jobs start when its stopPolicy is None",
        )
    return None


def _obstructed(gang: Gang) -> Rejection | None:
    obstacle = gang.obstacle
    if obstacle is None:
        return None
    return Rejection(reason=_REASONS[obstacle.kind], message=obstacle.message)


def _way_in(queue: Queue) -> str:
    if not queue.namespace_labels:
        return "the queue's owner to add the namespace"
    return f"an administrator for the labels {queue.namespace_labels} on the namespace"
