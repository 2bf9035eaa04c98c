"""The scheduler's output: each gang that was considered is `Placed` or `Blocked`.

An elastic gang that lost positions or has room to grow may be `Resized` instead. A gang whose slots
are still held by victims is `Blocked` (WaitingForVictims) until these are gone. `Preemption` names,
once, the victims and the slots that the gang will have.

A rejection is a value with an enumerated reason, its numbers, and the names of the jobs whose end
would make room. Its text depends on the snapshot alone, not on the time. The same situation gives
the same words, so nothing is written to the API server while nothing changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2s
from typing import Final

from drumline_scheduler.resources import Resources, amount

FOREIGN_PODS: Final = "foreign pods"
"""Name among blockers for pods that belong to no admitted job, including terminating ones."""
MAX_MESSAGE_CHARS: Final = 512


class BlockReason(StrEnum):
    """Why a gang does not start. The values are condition reasons."""

    QUEUE_NOT_FOUND = "QueueNotFound"
    NAMESPACE_NOT_ALLOWED = "NamespaceNotAllowed"
    NAMESPACE_TERMINATING = "NamespaceTerminating"
    """Its namespace is being deleted."""
    CLAIM_IN_USE = "ClaimInUse"
    """A pod of another job uses its claim, which serves one pod at a time."""
    PRIORITY_TOO_HIGH = "PriorityTooHigh"
    QUEUE_HELD = "QueueHeld"
    """Its queue is held: it starts no jobs until it is opened again."""
    BUDGET_SPENT = "BudgetSpent"
    """The jobs of its queue have used the GPU-hours or money of the budget's period."""
    POOL_NOT_FOUND = "PoolNotFound"
    TOPOLOGY_LEVEL_UNKNOWN = "TopologyLevelUnknown"
    NO_QUOTA_IN_POOL = "NoQuotaInPool"
    RESOURCE_NOT_ALLOWED = "ResourceNotAllowed"
    """It requests a device that no quota counts, and no pool that it may use allows the device."""
    CAPACITY_TYPE_NOT_ACCEPTED = "CapacityTypeNotAccepted"
    """Its spot rule or its queue's excludes every pool that it may use."""
    PRICE_TOO_HIGH = "PriceTooHigh"
    """Every pool that it may use costs more than the gang or its queue accepts."""
    EXCEEDS_QUOTA = "ExceedsQuota"
    """It needs more than the queue's nominal quota, so it can never start."""
    EXCEEDS_CLUSTER = "ExceedsCluster"
    """Not even the empty pool, with every node in service, could hold it."""
    POOL_WITHOUT_NODES = "PoolWithoutNodes"
    """No node matches the pool's nodeSelector."""
    LEVEL_LABEL_MISSING = "LevelLabelMissing"
    """The pool could hold it, but nodes lack the label of a level that it requires."""
    RESOURCE_NOT_OFFERED = "ResourceNotOffered"
    """No node of the pool offers a resource that it requests: its device plugin may be missing."""
    NODES_UNAVAILABLE = "NodesUnavailable"
    """The empty pool could hold it, but too many nodes are out of service or closed to this gang.
    """
    BACKING_OFF = "BackingOff"
    """A create was rejected. The next try comes later."""
    QUOTA_EXHAUSTED = "QuotaExhausted"
    """It waits for other jobs of its queue."""
    INSUFFICIENT_GPUS = "InsufficientGpus"
    INSUFFICIENT_RESOURCES = "InsufficientResources"
    """GPUs would suffice. CPU, memory, pod slots or another resource do not."""
    TOPOLOGY_DOES_NOT_FIT = "TopologyDoesNotFit"
    """It fits the pool now, but no single domain of the required level."""
    WAITING_FOR_VICTIMS = "WaitingForVictims"
    """Its victims are being evicted. Its nodes are kept until they are gone."""
    BEHIND_HIGHER_PRIORITY = "BehindHigherPriority"
    """Strict rule: an earlier gang waits for the same quota or pool."""
    WOULD_DELAY_RESERVATION = "WouldDelayReservation"
    """Backfill rule: it fits now, but its start would delay an earlier gang."""
    USER_LIMIT = "UserLimit"
    """Its user already holds as much as one user may hold in the queue."""
    WAITING_FOR_NODES = "WaitingForNodes"
    """It starts once the autoscaler has added the requested nodes."""
    WAITING_FOR_GROUP = "WaitingForGroup"
    """It could start, but another gang of its group is missing or cannot start."""
    SWEEP_LIMIT = "SweepLimit"
    """Its sweep already has as many jobs with slots as its limit."""
    WAITING_FOR_JOBS = "WaitingForJobs"
    """It starts after jobs that have not ended."""
    PREDECESSOR_FAILED = "PredecessorFailed"
    """It starts only after a job succeeds, but that job failed."""
    PREDECESSOR_NOT_FOUND = "PredecessorNotFound"
    CIRCULAR_DEPENDENCY = "CircularDependency"
    """It starts after a job that starts after it."""
    CHECKPOINT_FOLDER_IN_USE = "CheckpointFolderInUse"
    """Another job uses its checkpoint folder and has not ended."""
    NOT_TRIED = "NotTried"
    """More kinds of gangs wait, in its namespace or in all, than a cycle tries. They take turns."""
    SCHEDULER_ERROR = "SchedulerError"
    """The scheduler raised an exception on it. All other gangs are decided as usual."""


NEVER_FITS: Final = frozenset(
    {
        BlockReason.EXCEEDS_CLUSTER,
        BlockReason.POOL_WITHOUT_NODES,
        BlockReason.LEVEL_LABEL_MISSING,
        BlockReason.RESOURCE_NOT_OFFERED,
    }
)
"""Reasons of a gang that the empty pool could not hold."""
INDEPENDENT_REASONS: Final = (
    BlockReason.NODES_UNAVAILABLE,
    BlockReason.EXCEEDS_CLUSTER,
    BlockReason.LEVEL_LABEL_MISSING,
    BlockReason.RESOURCE_NOT_OFFERED,
    BlockReason.POOL_WITHOUT_NODES,
    BlockReason.EXCEEDS_QUOTA,
    BlockReason.NO_QUOTA_IN_POOL,
    BlockReason.TOPOLOGY_LEVEL_UNKNOWN,
)
"""Reasons that the end of another gang does not change, the closest to a start first."""


class RemedyKind(StrEnum):
    """Kinds of changes that let a rejected gang start."""

    WAIT_FOR = "WaitFor"
    """The gang starts when its `blockers` end. No action is needed."""
    ASK_FOR_LESS = "AskForLess"
    """The gang requests at most `amount` pods."""
    ASK_FOR_SMALLER_PODS = "AskForSmallerPods"
    """Each pod requests at most `amount` of the resource `where`."""
    RAISE_QUOTA = "RaiseQuota"
    """The queue's (`where`) nominal quota grows by `amount` GPUs."""
    RAISE_USER_LIMIT = "RaiseUserLimit"
    """The queue's (`where`) limit for each user grows by `amount` GPUs."""
    ADD_NODES = "AddNodes"
    """`where` gets `amount` more nodes like the largest node that the gang may use."""
    RETURN_NODES = "ReturnNodes"
    """`amount` nodes in `where` come back into service."""
    RELAX_TOPOLOGY = "RelaxTopology"
    """The gang requests the level `where` ('' for none) instead of the one it requires."""
    CORRECT_NAME = "CorrectName"
    """`where` is a queue, pool, level, namespace or priority that can be used."""
    WAIT = "Wait"
    """Time passes: a backoff or a minimum runtime ends, or other gangs of the group come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The smallest change found that unblocks a gang, if nothing else in the snapshot changes."""

    kind: RemedyKind
    amount: int = 0
    where: str = ""
    pool: str = ""
    """The pool of the remedy. '' if it is not about a pool."""

    def __str__(self) -> str:
        """Return the change as a sentence."""
        # Field names as in the CRDs, so that users can search for them.
        n, where = self.amount, self.where
        pool = f" in pool {self.pool}" if self.pool else ""
        match self.kind:
            case RemedyKind.WAIT_FOR:
                return "wait until these jobs end"
            case RemedyKind.ASK_FOR_LESS:
                return f"request at most {n} pods"
            case RemedyKind.ASK_FOR_SMALLER_PODS:
                return f"request at most {amount(resource=where, count=n)} per pod"
            case RemedyKind.RAISE_QUOTA:
                return f"raise the quota of queue {where} by {n}{pool} (nominalGpus)"
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
    """Node names by position. Neighbours are close in the network. An elastic gang has as many as
    fit now."""
    replaced: tuple[int, ...] = ()
    """The new positions of a repaired gang. Empty for a fresh gang."""
    level: str | None = None
    """The narrowest level at which one domain holds the whole gang. None: it spans domains."""
    domain: tuple[str, ...] = ()
    """Path of that domain, broadest first."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """An elastic gang continues with another number of pods."""

    key: str
    uid: str
    pool: str
    kept: tuple[int, ...]
    """Positions of its assignment that stay, ascending. All others are given up."""
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
    """Its queue holds more than its nominal quota, and the preemptor's queue less than its own."""
    FAIR_SHARE = "FairShare"
    """Its queue's weighted share stays the larger one after the preemption."""
    OVERRIDE = "Override"
    """The preemptor may take GPUs that other queues are guaranteed (`Override`)."""
    MOVED = "Moved"
    """It moves: it gets other slots at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A running gang that must leave or shrink."""

    key: str
    uid: str
    gpus: int
    """GPUs that it gives up."""
    gpu_seconds_lost: float
    """Work since its last verified checkpoint, as of the snapshot."""
    why: VictimReason
    kept: tuple[int, ...] = ()
    """Positions with which an elastic gang continues. Empty: all of it leaves."""
    moves_to: tuple[str, ...] = ()
    """Nodes by position on which it starts again at once. Empty: it waits like any other gang."""
    moves_to_pool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """The victims of a preemption and the slots that the preemptor will have.

    Each of the victims is necessary. Without any other change the gang is placed once they are
    gone. The caller records the assignment as `Gang.nominated` before it evicts.
    """

    key: str
    uid: str
    pool: str
    assignment: tuple[str, ...]
    """Its future nodes by position."""
    victims: tuple[Victim, ...]
    """The victims, ordered by key."""
    level: str | None = None
    domain: tuple[str, ...] = ()
    message: str = ""
    replaced: tuple[int, ...] = ()
    """The new positions of a broken running gang that is repaired. Empty for a waiting gang."""
    override: str = ""
    """Override by which it goes below the guarantee of other queues, for messages. '': none."""


class QueueEvictionReason(StrEnum):
    """Why a running gang leaves although no other gang needs its slots."""

    QUEUE_DRAINED = "QueueDrained"
    """Its queue gives up everything that it runs."""
    BUDGET_SPENT = "BudgetSpent"
    """Its queue gives up its running gangs once its budget is spent."""
    QUOTA_LOWERED = "QuotaLowered"
    """Its queue holds more than its quota allows, and takes it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueEviction:
    """A running gang that saves, gives its slots up, and waits until its queue is open again."""

    key: str
    uid: str
    queue: str
    gpus: int
    """GPUs that it gives up."""
    gpu_seconds_lost: float
    """Work since its last verified checkpoint, as of the snapshot."""
    why: QueueEvictionReason
    message: str


class MoveReason(StrEnum):
    """Why a running gang is moved although no pending gang needs its slots."""

    DEFRAGMENTATION = "Defragmentation"
    """More whole domains are free after the move."""
    BETTER_POOL = "BetterPool"
    """A pool that it prefers has room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A running gang that saves, leaves, and starts again on other nodes that are kept for it."""

    key: str
    uid: str
    pool: str
    assignment: tuple[str, ...]
    """All its nodes after the move, by position."""
    why: MoveReason
    gpu_seconds_lost: float
    """GPU-seconds of work since its last verified checkpoint, and of the restart."""
    domains_freed: int = 0
    """Additional free domains of the broadest level above nodes once all moves are done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Nodes that are kept for a waiting gang from some time on, under the backfill rule."""

    key: str
    uid: str
    pool: str
    assignment: tuple[str, ...]
    start_at: float
    """Time at which all of them are expected to be free, on the clock of `now`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsNodes:
    """A gang that would start, be repaired or move if a pool had more nodes, all else unchanged.

    No two of these gangs count on the same slot.
    """

    key: str
    uid: str
    pool: str
    zone: str = ""
    """Zone of the new nodes. '' for any zone."""
    nodes: int
    """The fewest new nodes with which it starts."""
    pool_nodes: int = 0
    """Number of nodes in the pool with the new ones. 0 if they were requested before."""
    shares: tuple[Resources, ...]
    """Resources that the gang would use on each of its nodes, existing ones included, the largest
    first. An autoscaler packs requests into free capacity, so all of them are requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """A gang that gets nothing in this cycle, and the reason."""

    key: str
    uid: str
    reason: BlockReason
    message: str
    """The request, the available capacity, the blockers and the remedy, in MAX_MESSAGE_CHARS."""
    blockers: tuple[str, ...] = ()
    """Keys of the jobs whose end would make room (and FOREIGN_PODS). Each of them is necessary."""
    resource: str = "gpus"
    """Resource that `needed` and `available` count."""
    needed: int = 0
    available: int = 0
    remedy: Remedy | None = None
    """The smallest change with which it would start. None if no single change of these kinds helps.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class GangFault:
    """An exception that was raised while one gang was decided."""

    key: str
    uid: str
    """Uid of the gang. Empty if no gang is at fault: the cycle was decided again without the cache.
    """
    stage: str
    """Part of the cycle in which it was raised."""
    error: str
    """The exception in one line, with file and line."""
    trace: str = field(default="", compare=False)
    """The innermost calls, in one line."""
    is_certain: bool = True
    """False if the cycle took too long, and the gang was only the one that it was deciding then."""
    slots_raise: bool = False
    """True if the slots of a running gang raise as well. Plain gangs hold them in its place."""

    @property
    def seed(self) -> str:
        """Name of the capture that shows it: 8 hexadecimal digits, equal for equal faults."""
        text = f"{self.uid} {self.stage} {self.error}".encode()
        return blake2s(text, digest_size=4).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """The decisions of one cycle, in the order in which they were made."""

    placed: tuple[Placed, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    preemptions: tuple[Preemption, ...] = ()
    """New preemptions only. A gang whose victims are already being evicted is only blocked."""
    resized: tuple[Resized, ...] = ()
    moves: tuple[Move, ...] = ()
    evictions: tuple[QueueEviction, ...] = ()
    """New evictions only, ordered by key."""
    stay: tuple[str, ...] = ()
    """Uids of gangs that no longer have to leave. They can no longer move to their new nodes, or
    their queue is open again."""
    reservations: tuple[Reservation, ...] = ()
    needs_nodes: tuple[NeedsNodes, ...] = ()
    """Gangs that need nodes from an autoscaler: new requests, and earlier ones that are still
    needed."""
    faults: tuple[GangFault, ...] = ()
    """Exceptions, by uid, of gangs that were set aside before or raised in this cycle."""
    order: tuple[str, ...] = ()
    """Uids of the waiting gangs: first those that were considered, in that order, then all others.
    """
    considered: int = 0
    """Number of gangs that were considered. The others had the answer of an equivalent gang."""
    deferred: tuple[str, ...] = ()
    """Uids of gangs that were not tried, one of each kind, the longest deferred first. The next
    cycle takes them as `CycleInput.deferred`."""
    put_off: tuple[str, ...] = ()
    """Uids of gangs for which the time of the cycle did not suffice, the longest put off first. The
    next cycle takes them as `CycleInput.put_off`."""
    passed: frozenset[str] = frozenset()
    """Uids of gangs that held no other gang back, under `Strict`. The next cycle takes them as
    `CycleInput.passed`."""
    known: frozenset[str] = frozenset()
    """Uids of waiting gangs that were tried in this or an earlier cycle, under `Strict`. The next
    cycle takes them as `CycleInput.known`."""
    retry_at: float | None = None
    """Time at which a decision may change without other events. A backoff or a minimum runtime
    ends, or enough of a budget flows back."""
    late_at: tuple[str, ...] = ()
    """The places at which the time of the cycle was over (`work.Work.late_at`)."""
