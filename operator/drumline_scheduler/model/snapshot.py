"""Everything that one cycle may know, at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from drumline_scheduler.model.autoscaling import AskedNodes, NodeOffer
from drumline_scheduler.model.gangs import Admitted
from drumline_scheduler.model.nodes import Node, Pool
from drumline_scheduler.model.queues import Queue


class InvalidSnapshotError(ValueError):
    """Arguments of a cycle that contradict each other, such as two gangs with one uid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that one cycle may know, at one moment."""

    nodes: tuple[Node, ...]
    pools: tuple[Pool, ...]
    queues: tuple[Queue, ...]
    admitted: tuple[Admitted, ...] = ()
    history: Mapping[str, float] = field(default_factory=dict[str, float])
    """Past dominant share of the cluster times seconds, decayed (`decay`), by queue."""
    spent: Mapping[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    """GPU-seconds by queue with a budget and by day (UTC, counted from the epoch). They include the
    queue's jobs and foreign pods that name it."""
    spent_prices: Mapping[str, Mapping[int, int]] = field(
        default_factory=dict[str, Mapping[int, int]]
    )
    """Like `spent`, with each GPU-second multiplied by the price of its pool at that time.

    Divided by 3600 it is the cost in millionths."""
    spent_by_user: Mapping[str, Mapping[str, Mapping[int, int]]] = field(
        default_factory=dict[str, Mapping[str, Mapping[int, int]]]
    )
    """Like `spent`, by queue that limits each user, and by user."""
    offers: tuple[NodeOffer, ...] = ()
    """Nodes that an autoscaler can add, in the order of trying."""
    asked: tuple[AskedNodes, ...] = ()
    """Requests to autoscalers that were not withdrawn, at most one for each gang."""

    def __post_init__(self) -> None:
        """Reject two objects of one kind and name, because the result would depend on their order.

        Raises:
            InvalidSnapshotError: with the kind and the repeated name.
        """
        _reject_duplicates(kind="node", names=[node.name for node in self.nodes])
        _reject_duplicates(kind="pool", names=[pool.name for pool in self.pools])
        _reject_duplicates(kind="queue", names=[queue.name for queue in self.queues])
        _reject_duplicates(kind="admitted job", names=[held.gang.uid for held in self.admitted])


def _reject_duplicates(*, kind: str, names: list[str]) -> None:
    if len(set(names)) != len(names):
        repeated = next(name for name, count in Counter(names).items() if count > 1)
        raise InvalidSnapshotError(f"{kind} {repeated} is in the snapshot twice")
