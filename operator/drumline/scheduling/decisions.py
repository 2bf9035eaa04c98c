"""The scheduler's output: each gang that was looked at is `Placed` or `Blocked`, never in between.

An elastic gang that lost places, or for which there is room to grow, may be `Resized` instead. A
gang that is to take the places of others is `Blocked` (WaitingForVictims) until these are gone;
`Preemption` says once who has to go and which places it will have then.

A refusal is a value with a closed reason, the numbers behind it and the names of those whose
leaving would make room. Its text depends on the snapshot alone, not on the time: the same
situation gives the same words, so nothing is written to the API server while nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

FOREIGN_PODS: Final = "foreign pods"
"""Stands among blockers for pods that belong to no admitted job, terminating ones included."""
MAX_MESSAGE_CHARS: Final = 512


class BlockReason(StrEnum):
    """Why a gang does not start; the values are condition reasons."""

    QUEUE_NOT_FOUND = "QueueNotFound"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    PRIORITY_TOO_HIGH = "PriorityTooHigh"
    POOL_NOT_FOUND = "PoolNotFound"
    TOPOLOGY_LEVEL_UNKNOWN = "TopologyLevelUnknown"
    NO_QUOTA_IN_POOL = "NoQuotaInPool"
    EXCEEDS_QUOTA = "ExceedsQuota"
    """More than the queue's nominal quota: it can never start."""
    EXCEEDS_CLUSTER = "ExceedsCluster"
    """Not even the empty pool, with every node in service, could hold it."""
    NODES_UNAVAILABLE = "NodesUnavailable"
    """The empty pool could, but too many nodes are out of service or closed to this gang."""
    BACKING_OFF = "BackingOff"
    """A create was rejected; the next try comes later."""
    QUOTA_EXHAUSTED = "QuotaExhausted"
    """Waits for other jobs of its queue."""
    INSUFFICIENT_GPUS = "InsufficientGpus"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    """GPUs would suffice; CPU, memory, pod slots or another resource do not."""
    TOPOLOGY_DOES_NOT_FIT = "TopologyDoesNotFit"
    """It fits the pool now, but no single domain of the required level."""
    WAITING_FOR_VICTIMS = "WaitingForVictims"
    """Others were told to leave for it; its places are kept until they are gone."""
    BEHIND_HIGHER_PRIORITY = "BehindHigherPriority"
    """Under the strict rule: one that comes earlier waits for the same quota or pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Every pod of a gang has a node, as of this snapshot."""

    key: str
    uid: str
    pool: str
    assignment: tuple[str, ...]
    """Node names by position, all of them; neighbours in it are neighbours in the network. Of an
    elastic gang as many as fit now."""
    replaced: tuple[int, ...] = ()
    """The indices that are new, where an admitted gang was repaired; empty for a fresh gang."""
    level: str | None = None
    """The narrowest level at which one domain holds the whole gang; None: it spans domains."""
    domain: tuple[str, ...] = ()
    """Path of that domain, broadest first."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """An elastic gang goes on with another number of pods."""

    key: str
    uid: str
    pool: str
    kept: tuple[int, ...]
    """Positions of its assignment that stay, ascending; all others are given up."""
    added: tuple[str, ...]
    """Nodes of the pods that join, after those that stay."""
    level: str | None = None
    domain: tuple[str, ...] = ()
    message: str = ""


class VictimReason(StrEnum):
    """Why a running gang may be sent away for another."""

    LOWER_PRIORITY = "LowerPriority"
    """It has a lower priority in the same queue."""
    BORROWED = "Borrowed"
    """Its queue holds more than its nominal quota, the other one's not yet its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A running gang that has to leave, as a whole."""

    key: str
    uid: str
    gpus: int
    gpu_seconds_lost: float
    """Work since its last verified checkpoint, as of the snapshot."""
    why: VictimReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Who has to leave so that a waiting gang can start, and where it will start then.

    Each of the victims is necessary, and without any other change the gang is placed once they
    are gone. Whoever carries this out remembers the assignment as `Gang.nominated` first.
    """

    key: str
    uid: str
    pool: str
    assignment: tuple[str, ...]
    """The places it will have, by position."""
    victims: tuple[Victim, ...]
    """Ordered by key."""
    level: str | None = None
    domain: tuple[str, ...] = ()
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A gang gets nothing in this cycle, and why."""

    key: str
    uid: str
    reason: BlockReason
    message: str
    """At most MAX_MESSAGE_CHARS: what is needed, what there is, who holds it, what to do."""
    blockers: tuple[str, ...] = ()
    """Keys of the jobs whose leaving would make room (and FOREIGN_PODS), as few as were found."""
    resource: str = "gpus"
    """What `needed` and `available` count."""
    needed: int = 0
    available: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What one cycle decided, in the order in which it looked."""

    placed: tuple[Placed, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    """New ones only; who waits for victims already is just blocked."""
    resized: tuple[Resized, ...] = ()
    order: tuple[str, ...] = ()
    """Uids of the waiting gangs, as they were looked at."""
    retry_at: float | None = None
    """When time alone may change something: a gang has backed off long enough, or a minimum runtime
    ends that keeps a waiting one from its place."""
