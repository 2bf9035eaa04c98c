"""The scheduler's output: each gang that was looked at is `Placed` or `Blocked`.

An elastic gang that lost positions, or that there is room for to grow, may be `Resized` instead. A
gang whose slots are still held by victims is `Blocked` (WaitingForVictims) until these are gone;
`Preemption` names, once, the victims and the slots that the gang will have.

A rejection is a value with an enumerated reason, its numbers, and the names of the jobs whose end
would make room. Its text depends on the snapshot alone, not on the time: the same situation gives
the same words, so nothing is written to the API server while nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2s
from typing import Final

from drumline_scheduler.resources import Resources

FOREIGN_PODS: Final = "foreign pods"
"""Stands among blockers for pods that belong to no admitted job, terminating ones included."""
MAX_MESSAGE_CHARS: Final = 512


class BlockReason(StrEnum):
    """Why a gang does not start; the values are condition reasons."""

    QUEUE_NOT_FOUND = "QueueNotFound"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    PRIORITY_TOO_HIGH = "PriorityTooHigh"
    QUEUE_HELD = "QueueHeld"
    """Its queue starts nothing until somebody says so."""
    BUDGET_SPENT = "BudgetSpent"
    """The jobs of its queue have had the GPU-hours that they may have in a time."""
    POOL_NOT_FOUND = "PoolNotFound"
    TOPOLOGY_LEVEL_UNKNOWN = "TopologyLevelUnknown"
    NO_QUOTA_IN_POOL = "NoQuotaInPool"
    RESOURCE_NOT_ALLOWED = "ResourceNotAllowed"
    """It requests a device that no quota counts, and no pool that it may use allows it."""
    CAPACITY_TYPE_NOT_ACCEPTED = "CapacityTypeNotAccepted"
    """Its queue or it uses spot pools only, or none, and all it may use are others."""
    PRICE_TOO_HIGH = "PriceTooHigh"
    """Every pool that it may use costs more than its queue or it pays."""
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
    """Its victims are being evicted; its nodes are kept until they are gone."""
    BEHIND_HIGHER_PRIORITY = "BehindHigherPriority"
    """Under the strict rule: one that comes earlier waits for the same quota or pool."""
    WOULD_DELAY_RESERVATION = "WouldDelayReservation"
    """Under the backfill rule: it fits now, and one that comes earlier would start later for it."""
    USER_LIMIT = "UserLimit"
    """Its user already holds what one user may hold of the queue."""
    WAITING_FOR_NODES = "WaitingForNodes"
    """It starts once the autoscaler has added the nodes that it is asked for."""
    WAITING_FOR_GROUP = "WaitingForGroup"
    """It could start, and another gang of its group is not there or cannot."""
    SWEEP_LIMIT = "SweepLimit"
    """As many jobs of its sweep hold slots as may at a time."""
    WAITING_FOR_JOBS = "WaitingForJobs"
    """It starts after jobs that have not ended."""
    PREDECESSOR_FAILED = "PredecessorFailed"
    """It starts after a job has succeeded, and that one failed."""
    PREDECESSOR_NOT_FOUND = "PredecessorNotFound"
    CIRCULAR_DEPENDENCY = "CircularDependency"
    """It starts after a job that starts after it."""
    SCHEDULER_ERROR = "SchedulerError"
    """The scheduler raised an exception on it; all other gangs are decided as usual."""


class RemedyKind(StrEnum):
    """What would have to change so that a rejected gang starts."""

    WAIT_FOR = "WaitFor"
    """The `blockers` end; nothing has to be done. If there is a queue `where`, it may reclaim by
    fair share instead."""
    ASK_FOR_LESS = "AskForLess"
    """The gang asks for at most `amount` pods."""
    ASK_FOR_SMALLER_PODS = "AskForSmallerPods"
    """Each pod asks for at most `amount` of the resource `where`."""
    RAISE_QUOTA = "RaiseQuota"
    """The queue's (`where`) nominal quota grows by `amount` GPUs."""
    RAISE_USER_LIMIT = "RaiseUserLimit"
    """The queue's (`where`) limit for each user grows by `amount` GPUs."""
    ADD_NODES = "AddNodes"
    """`amount` more nodes like the largest that is open to it, in `where`."""
    RETURN_NODES = "ReturnNodes"
    """`amount` of the nodes that are out of service come back, in `where`."""
    RELAX_TOPOLOGY = "RelaxTopology"
    """The gang asks for the level `where` ('' for none) instead of the one it requires."""
    CORRECT_NAME = "CorrectName"
    """A queue, pool, level, namespace or priority that can be used (`where`)."""
    WAIT = "Wait"
    """Time passes: a backoff, a minimum runtime, the rest of its group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The smallest change that was found to unblock a gang, all else as in the snapshot."""

    kind: RemedyKind
    amount: int = 0
    where: str = ""
    pool: str = ""
    """The pool that this is about, where it is about one."""

    def __str__(self) -> str:
        """The change as a sentence."""
        n, where = self.amount, self.where
        pool = f" in pool {self.pool}" if self.pool else ""
        match self.kind:
            case RemedyKind.WAIT_FOR if where:
                share = f"set preemption.reclaim of queue {where} to FairShare"
                return f"wait until these jobs end, or {share}"
            case RemedyKind.WAIT_FOR:
                return "wait until these jobs end"
            case RemedyKind.ASK_FOR_LESS:
                return f"request at most {n} pods"
            case RemedyKind.ASK_FOR_SMALLER_PODS:
                return f"request at most {n} of {where} per pod"
            case RemedyKind.RAISE_QUOTA:
                return f"raise nominalGpus of queue {where} by {n}{pool}"
            case RemedyKind.RAISE_USER_LIMIT:
                return f"raise userLimitGpus of queue {where} by {n}{pool}"
            case RemedyKind.ADD_NODES:
                return f"add {n} nodes to {where}"
            case RemedyKind.RETURN_NODES:
                return f"return {n} nodes of {where} to service"
            case RemedyKind.RELAX_TOPOLOGY:
                return f"require {where} instead" if where else "require no topology level"
            case RemedyKind.CORRECT_NAME:
                return f"name {where} instead" if where else "correct the name"
            case RemedyKind.WAIT:
                return "wait"


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
    """Why a running gang is permitted as a victim."""

    LOWER_PRIORITY = "LowerPriority"
    """It has a lower priority in the same queue."""
    BORROWED = "Borrowed"
    """Its queue holds more than its nominal quota, the other one's not yet its own."""
    FAIR_SHARE = "FairShare"
    """Its queue's weighted share stays the larger one without it."""
    MOVED = "Moved"
    """It moves: it gets other slots at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A running gang that has to leave or to shrink."""

    key: str
    uid: str
    gpus: int
    """What it gives up."""
    gpu_seconds_lost: float
    """Work since its last verified checkpoint, as of the snapshot."""
    why: VictimReason
    kept: tuple[int, ...] = ()
    """Positions that an elastic gang goes on with; empty: all of it leaves."""
    moves_to: tuple[str, ...] = ()
    """Where it starts again at once, by position; empty: it waits as any other."""
    moves_to_pool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """The victims of a preemption and the slots that the preemptor will have.

    Each of the victims is necessary, and without any other change the gang is placed once they
    are gone. The caller records the assignment as `Gang.nominated` before it evicts.
    """

    key: str
    uid: str
    pool: str
    assignment: tuple[str, ...]
    """Its future nodes by position."""
    victims: tuple[Victim, ...]
    """Ordered by key."""
    level: str | None = None
    domain: tuple[str, ...] = ()
    message: str = ""
    replaced: tuple[int, ...] = ()
    """The positions that are new, where a broken running gang is repaired; empty for a waiting one.
    """


class QueueEvictionReason(StrEnum):
    """Why a running gang leaves although nobody needs its slots."""

    QUEUE_DRAINED = "QueueDrained"
    """Its queue gives up everything that it runs."""
    BUDGET_SPENT = "BudgetSpent"
    """Its queue does so once its budget is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEviction:
    """A running gang saves, gives its slots up, and waits until its queue is open again."""

    key: str
    uid: str
    queue: str
    gpus: int
    """What it gives up."""
    gpu_seconds_lost: float
    """Work since its last verified checkpoint, as of the snapshot."""
    why: QueueEvictionReason
    message: str


class MoveReason(StrEnum):
    """Why a running gang is moved although no pending gang needs its slots."""

    DEFRAGMENTATION = "Defragmentation"
    """More whole domains are free then."""
    BETTER_POOL = "BetterPool"
    """There is room in a pool that it would rather have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A running gang saves, leaves, and starts again in other places that are kept for it."""

    key: str
    uid: str
    pool: str
    assignment: tuple[str, ...]
    """All its places then, by position."""
    why: MoveReason
    gpu_seconds_lost: float
    """Work since its last verified checkpoint and the restart."""
    domains_freed: int = 0
    """Additional free domains of the broadest level above nodes once all moves are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes that are kept for a waiting gang from a moment on, under the backfill rule."""

    key: str
    uid: str
    pool: str
    assignment: tuple[str, ...]
    start_at: float
    """When all of them are expected to be free, on the clock of `now`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsNodes:
    """A gang that would start, all else unchanged, if a pool had more nodes.

    No two of them count on the same place.
    """

    key: str
    uid: str
    pool: str
    zone: str = ""
    """Where the nodes have to be; '' anywhere."""
    nodes: int
    """The fewest new nodes with which it starts."""
    pool_nodes: int = 0
    """How many nodes the pool has then; 0 where they were asked for before."""
    shares: tuple[Resources, ...]
    """What the gang would take of each node that it would use, of those that are there too, the
    largest first. An autoscaler packs what it is asked for into what is free, so all of it is
    asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A gang that gets nothing in this cycle, and why."""

    key: str
    uid: str
    reason: BlockReason
    message: str
    """At most MAX_MESSAGE_CHARS: what is needed, what is available, the blockers, what to do."""
    blockers: tuple[str, ...] = ()
    """Keys of the jobs whose end would make room (and FOREIGN_PODS), each of them necessary."""
    resource: str = "gpus"
    """What `needed` and `available` count."""
    needed: int = 0
    available: int = 0
    remedy: Remedy | None = None
    """The smallest change that would let it start; None where no single one of these kinds does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFault:
    """An exception that was raised while one gang was decided."""

    key: str
    uid: str
    """Empty if no gang is at fault: the cycle was decided again without the cache."""
    stage: str
    """Part of the cycle in which it was raised."""
    error: str
    """The exception in one line, with file and line."""
    trace: str = field(default="", compare=False)
    """The innermost calls, in one line."""

    @property
    def seed(self) -> str:
        """Name of the capture that shows it: 8 hexadecimal digits, equal for equal faults."""
        text = f"{self.uid} {self.stage} {self.error}".encode()
        return blake2s(text, digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """What one cycle decided, in the order of its considerations."""

    placed: tuple[Placed, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    """New ones only; a gang whose victims are being evicted already is only blocked."""
    resized: tuple[Resized, ...] = ()
    moves: tuple[Move, ...] = ()
    evictions: tuple[QueueEviction, ...] = ()
    """New ones only; by key."""
    stay: tuple[str, ...] = ()
    """Uids of gangs that were told to leave and need not: where they were to move to is no place
    for them any more, or their queue is open again."""
    reservations: tuple[Reservation, ...] = ()
    needs_nodes: tuple[NeedsNodes, ...] = ()
    """Gangs for which an autoscaler is to be asked, or was and is still needed."""
    faults: tuple[GangFault, ...] = ()
    """Exceptions, by uid: of gangs that were set aside before or raised in this cycle."""
    order: tuple[str, ...] = ()
    """Uids of the waiting gangs, as they were looked at."""
    retry_at: float | None = None
    """When time alone may change something: a gang has backed off long enough, a minimum runtime
    ends that keeps a waiting one from its place, or enough of a budget flows back."""
