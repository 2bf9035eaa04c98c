"""The scheduler's input: nodes, pools, queues, what is admitted and what waits, as plain values.

A `Snapshot` is everything one cycle may know. It is frozen: the cycle works on a view of its own
(`view.View`) and gives back decisions (`decisions`). Nothing here reads a clock, and the order of
the tuples in a snapshot never changes a decision: names, priorities and ages do.

Capacity is counted twice over nothing and forgotten for nothing: `Node.used` holds every pod that
is bound to the node, foreign and terminating ones too; `Admitted.reserved` names the places whose
pods are not yet there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from drumline.scheduling.resources import NOTHING, Resources


class TaintEffect(StrEnum):
    """The effects Kubernetes knows; only the last two keep a pod off a node."""

    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_SCHEDULE = "NoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """A node's mark that only pods with a matching toleration may ignore."""

    key: str
    value: str = ""
    effect: TaintEffect


class TolerationOperator(StrEnum):
    """How a toleration compares its value with a taint's."""

    EQUAL = "Equal"
    EXISTS = "Exists"


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """A pod's leave to ignore taints; an empty key with `Exists` matches every key."""

    key: str = ""
    operator: TolerationOperator = TolerationOperator.EQUAL
    value: str = ""
    effect: TaintEffect | None = None
    """None matches every effect."""

    def tolerates(self, taint: Taint) -> bool:
        """Whether this toleration covers `taint` (the rules of Kubernetes' core/v1)."""
        if self.effect not in (None, taint.effect):
            return False
        if self.operator is TolerationOperator.EXISTS:
            return self.key in ("", taint.key)
        return self.key == taint.key and self.value == taint.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node of a pool."""

    name: str
    pool: str
    allocatable: Resources
    used: Resources = NOTHING
    """The requests of all pods bound to it: ours, foreign ones, terminating ones."""
    domains: tuple[str, ...] = ()
    """Its topology domain at each level of the pool, broadest first; '' where the label is missing.
    A domain is known by its whole path: rack `r1` of block `b1` is not rack `r1` of block `b2`."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    """Cordoned. No toleration overrides it: a drain has to come to an end."""
    ready: bool = True
    distrusted: bool = False
    """Its kubelet refused a pod that fitted here: not used before its next update."""
    closed: str = ""
    """Why it takes no new pods although it runs (`spot reclaim`, `maintenance`); '' if it does."""
    terminating: Resources = NOTHING
    """The part of `used` whose pods are being deleted: nobody's capacity yet, but soon free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A kind of nodes that quota is counted in."""

    name: str
    levels: tuple[str, ...] = ()
    """Names of its topology levels, broadest first, such as ("block", "rack", "host")."""


class WithinQueue(StrEnum):
    """Whom a job may send away in its own queue."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"


class Reclaim(StrEnum):
    """Whom a job may send away in other queues of its cohort, to use its own queue's quota."""

    NEVER = "Never"
    ANY = "Any"
    """Any job of a queue that holds more than its nominal quota, whatever its priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionRule:
    """What jobs of a queue may do to running ones; by default they wait."""

    within_queue: WithinQueue = WithinQueue.NEVER
    reclaim: Reclaim = Reclaim.NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A team's share of the cluster. Its usage is what `Snapshot.admitted` says.

    Queues that name the same parent form a cohort with it: each may use what the others leave of
    their nominal quota. A queue whose parent does not exist, or that is its own ancestor, stands
    alone.
    """

    name: str
    nominal: Mapping[str, int]
    """GPUs by pool. A pool that is not listed is closed to the queue's jobs; 0 opens it for what
    can be borrowed there."""
    max_priority: int | None = None
    namespaces: frozenset[str] | None = None
    """Which namespaces may use it; None means all."""
    parent: str | None = None
    borrowing_limit: Mapping[str, int] | None = None
    """How many GPUs of a pool it may hold above its quota; None, or a pool left out: no limit."""
    lending_limit: Mapping[str, int] | None = None
    """How many GPUs of its quota others may use; None, or a pool left out: all of it."""
    preemption: PreemptionRule = PreemptionRule()
    min_runtime_seconds: float = 0.0
    """Its jobs are sent away for no one before they have run that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job as the scheduler sees it: equal pods that start together or not at all."""

    key: str
    """`namespace/name` of the TrainingJob."""
    uid: str
    queue: str
    nodes: int
    """How many pods it wants; two of them may share a node that has room for both."""
    per_pod: Resources
    queued_at: float
    """When it began to wait (seconds); a preempted job keeps its place."""
    priority: int = 0
    pool: str | None = None
    """None: any pool its queue has quota in, tried by name."""
    required_level: str | None = None
    """All pods in one domain of this level, or the job waits."""
    preferred_level: str | None = None
    """All pods in one domain of this level if that fits now, else in the next wider one."""
    selector: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels a node must have with these values."""
    tolerations: tuple[Toleration, ...] = ()
    excluded_nodes: frozenset[str] = frozenset()
    retry_at: float = 0.0
    """After a rejected create: not tried again before this time."""
    retry_cause: str = ""
    """Why it backs off, in the words of whoever rejected it."""
    sizes: tuple[int, ...] = ()
    """Elastic: the numbers of pods it can run with, ascending, `nodes` the last; empty: only that.
    """
    nominated: tuple[str, ...] = ()
    """While it waits for victims: the nodes that are kept for it, by pod index."""
    nominated_pool: str = ""

    def __post_init__(self) -> None:
        """Refuse what no admission may ever count: empty gangs and negative requests.

        Raises:
            ValueError: with the job and the field that is wrong.
        """
        if self.nodes < 1:
            raise ValueError(f"{self.key}: nodes must be at least 1, not {self.nodes}")
        if self.sizes and (
            self.sizes != tuple(sorted(set(self.sizes)))
            or self.sizes[0] < 1
            or self.sizes[-1] != self.nodes
        ):
            raise ValueError(f"{self.key}: sizes must ascend from 1 to nodes, not {self.sizes}")
        if self.per_pod.pods != 1 or self.per_pod.has_negative():
            raise ValueError(f"{self.key}: per_pod must ask for 1 pod slot and nothing negative")

    @property
    def namespace(self) -> str:
        """The namespace part of the key."""
        return self.key.partition("/")[0]

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang at the size it wants."""
        return self.nodes * self.per_pod.gpus

    @property
    def legal_sizes(self) -> tuple[int, ...]:
        """The numbers of pods it can run with, ascending."""
        return self.sizes or (self.nodes,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A gang that has its places.

    A place that is `lost` holds nothing and is to be filled again: the cycle looks for a
    replacement before it looks at any waiting gang, and leaves the other places alone.

    Positions count through `assignment`; they are not the pods' own indices once an elastic gang
    has lost some in the middle.
    """

    gang: Gang
    pool: str
    assignment: tuple[str, ...]
    """Node names by position: as many as it runs with, which for an elastic gang may be fewer than
    it wants."""
    reserved: frozenset[int] = frozenset()
    """Positions whose pods are not in `Node.used` yet: promised, so the view counts them."""
    lost: frozenset[int] = frozenset()
    """Positions whose pod or node is gone for good; what still terminates there is in `Node.used`.
    """
    leaving: bool = False
    """Told to go, for a job that waits for its places: never a victim again, nor repaired."""
    preemptible: bool = True
    """Whether it may be told to go at all."""
    admitted_at: float = 0.0
    """When it got its places, on the clock of `now`."""
    gpu_seconds_at_risk: float = 0.0
    """GPU-seconds of work since its last verified checkpoint: what its leaving would lose."""

    def __post_init__(self) -> None:
        """Refuse an assignment of a size that the gang cannot have.

        Raises:
            ValueError: with the job and both sizes.
        """
        size, wanted = len(self.assignment), self.gang.nodes
        if size != wanted and not (self.gang.sizes and size):
            raise ValueError(f"{self.gang.key}: {size} places for {wanted} pods")

    @property
    def size(self) -> int:
        """How many pods it runs with, lost ones counted."""
        return len(self.assignment)

    @property
    def gpus(self) -> int:
        """GPUs of all its places, lost ones counted: what its queue pays."""
        return self.size * self.gang.per_pod.gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything one cycle may know, at one moment."""

    nodes: tuple[Node, ...]
    pools: tuple[Pool, ...]
    queues: tuple[Queue, ...]
    admitted: tuple[Admitted, ...] = ()

    def __post_init__(self) -> None:
        """Refuse two things of one name: which of them counts would depend on their order.

        Raises:
            ValueError: with the kind and the name that stands there twice.
        """
        _refuse_twins(kind="node", names=[node.name for node in self.nodes])
        _refuse_twins(kind="pool", names=[pool.name for pool in self.pools])
        _refuse_twins(kind="queue", names=[queue.name for queue in self.queues])
        _refuse_twins(kind="admitted job", names=[held.gang.uid for held in self.admitted])


class WaitingRule(StrEnum):
    """What a gang that cannot start yet does to those behind it."""

    BEST_EFFORT = "BestEffort"
    """Nothing: whatever fits starts. A big gang can starve behind a stream of small ones."""
    STRICT = "Strict"
    """It holds them back: waiting for quota its queue, waiting for capacity the whole pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The choices of a cluster's owner."""

    waiting: WaitingRule = WaitingRule.BEST_EFFORT
    restart_seconds: float = 60.0
    """What a preemption costs each GPU of a victim beside the work it loses."""
    priority_seconds: float = 60.0
    """What it costs further for each step of priority among those that could be sent away."""


def _refuse_twins(*, kind: str, names: list[str]) -> None:
    if len(set(names)) != len(names):
        twin = next(name for name, count in Counter(names).items() if count > 1)
        raise ValueError(f"{kind} {twin} is in the snapshot twice")
