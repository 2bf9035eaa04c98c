"""Gangs: jobs as the scheduler sees them, pending and admitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from drumline_scheduler.model.capacity import ANY_PRICE, PriceRule
from drumline_scheduler.model.nodes import Toleration
from drumline_scheduler.model.queues import Override
from drumline_scheduler.resources import Resources

OrderKey = tuple[int, float, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Pods of a gang that differ from its main pods, such as a launcher."""

    name: str
    pods: int
    per_pod: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Every `pods` consecutive main pods in one domain of a level, such as one NVLink clique."""

    level: str
    pods: int
    required: bool = True
    """False: the slice is dropped if it is not available now."""


class NodeOperator(StrEnum):
    """Comparison of a node's label, as in core/v1 node selector requirements."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GREATER_THAN = "Gt"
    LESS_THAN = "Lt"


def is_well_formed(operator: str, values: tuple[str, ...]) -> bool:
    """Return whether Kubernetes can evaluate a requirement with this operator and these values."""
    match operator:
        case NodeOperator.IN | NodeOperator.NOT_IN:
            return bool(values)
        case NodeOperator.EXISTS | NodeOperator.DOES_NOT_EXIST:
            return not values
        case NodeOperator.GREATER_THAN | NodeOperator.LESS_THAN:
            return len(values) == 1
        case _:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequirement:
    """One condition on a node's labels."""

    key: str
    operator: NodeOperator
    values: tuple[str, ...] = ()

    @staticmethod
    def of(*, key: str, operator: str, values: tuple[str, ...] = ()) -> NodeRequirement:
        """Return the requirement. A malformed one holds for no node, as in Kubernetes.

        Leaving it out would let pods go to nodes that kube-scheduler and kubelet refuse.

        Args:
            key: key of the label.
            operator: operator as written, perhaps one of a later Kubernetes.
            values: values as written.
        """
        if not is_well_formed(operator, values):
            return NodeRequirement(key=key, operator=NodeOperator.IN)
        return NodeRequirement(key=key, operator=NodeOperator(operator), values=values)


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeReach:
    """The nodes from which the pods of a gang can use a volume."""

    name: str
    """Name for messages: `volume pv-1 of claim data`."""
    terms: tuple[tuple[NodeRequirement, ...], ...] = ()
    """A node must meet all requirements of at least one term. The key `metadata.name` is the node's
    name. Empty: every node."""
    driver: str = ""
    """CSI driver that limits the volumes of a node (`AttachedVolumes`). '' if none does."""
    volume: str = ""
    """Identity of the volume at its driver. '': each pod gets a volume of its own."""
    claim: str = ""
    """`namespace/name` of a claim that pods of one node, or one pod, may use. '' for others."""
    one_pod: bool = False
    """True if one pod alone may use the claim."""


class ObstacleKind(StrEnum):
    """Kinds of facts that keep every pod of a gang from starting, whatever is free."""

    NAMESPACE_ENDS = "NamespaceEnds"
    """Its namespace is being deleted."""
    CLAIM_IN_USE = "ClaimInUse"
    """A pod of another job uses a claim that serves one pod at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why no pod of a gang could start anywhere now."""

    kind: ObstacleKind
    message: str
    """With the remedy."""


class PredecessorState(StrEnum):
    """The reason why a predecessor still holds a gang back."""

    WAITED_FOR = "WaitedFor"
    """It has not ended."""
    FAILED = "Failed"
    """The predecessor failed, but the gang may start only after it succeeds."""
    NOT_FOUND = "NotFound"
    CIRCULAR = "Circular"
    """It waits for this gang itself."""
    HOLDS_FOLDER = "HoldsFolder"
    """It uses the checkpoint folder of this gang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """A job that must end before a gang may start."""

    key: str
    """`namespace/name`."""
    must_succeed: bool = True
    """False: the predecessor may also fail."""
    state: PredecessorState = PredecessorState.WAITED_FOR
    circle: tuple[str, ...] = ()
    """Keys of the jobs that wait for each other, for a circular predecessor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job as the scheduler sees it: pods that start together or not at all.

    All its main pods are equal. Positions count the pods of its roles first, in their order, then
    the main pods by rank.
    """

    key: str
    """`namespace/name` of the TrainingJob."""
    uid: str
    queue: str
    nodes: int
    """Number of main pods that the gang wants. Two of them may share a node with two slots."""
    per_pod: Resources
    queued_at: float
    """Time at which it began to wait, in seconds. A preempted job keeps its place in line."""
    priority: int = 0
    pool: str | None = None
    """The only pool that it may run in. None: see `pools`."""
    pools: tuple[str, ...] = ()
    """Pools that it may run in, in order of preference. Empty: any pool in which its queue has
    quota, the cheapest first."""
    price_rule: PriceRule = ANY_PRICE
    """Pools that it accepts by capacity type and price, within those that its queue accepts."""
    partition: str = ""
    """The part of a GPU that its pods request. '' for whole GPUs."""
    may_share: bool = False
    """True if it may use a GPU that other pods also use. It has one rank, so two of its own ranks
    never share a GPU."""
    required_level: str | None = None
    """All pods must be in one domain of this level."""
    preferred_level: str | None = None
    """All pods are in one domain of this level if that fits now, otherwise in the next wider one.
    """
    slices: tuple[Slice, ...] = ()
    """Slices, broadest level first. The pods of each slice divide those of the one before, and
    every size."""
    balanced_level: str | None = None
    """Its main pods (or slices) are spread as evenly as possible over the domains of this level
    that it uses. It never keeps a gang from starting."""
    roles: tuple[Role, ...] = ()
    """Its pods that differ from the main ones."""
    selector: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels a node must have with these values."""
    affinity: tuple[tuple[NodeRequirement, ...], ...] = ()
    """Required node affinity: all requirements of at least one term. Empty: any node."""
    volumes: tuple[VolumeReach, ...] = ()
    """Its volumes that cannot be used from every node, or that count for a limit of the nodes."""
    tolerations: tuple[Toleration, ...] = ()
    excluded_nodes: frozenset[str] = frozenset()
    """Nodes that it avoids because a GPU there failed the job."""
    retry_at: float = 0.0
    """The gang is not tried before this time, because a create was rejected."""
    retry_cause: str = ""
    """Message of the rejected create."""
    preempts: bool = True
    """False: its priority class has `preemptionPolicy: Never`. It never evicts or moves other
    gangs."""
    refusal: str = ""
    """Reason why the API server would probably reject its pods, such as a ResourceQuota, or why it
    pauses (`preemption.pauses`). '' if no reason is known. Meanwhile the gang gets free capacity
    only. No gang is evicted or moved for it, and it is not moved itself."""
    obstacle: Obstacle | None = None
    """Why none of its pods could start anywhere now. It gets no place, not even a free one."""
    sizes: tuple[int, ...] = ()
    """Numbers of main pods that it can run with, ascending, `nodes` last. Empty: only `nodes`."""
    resizable: bool = True
    """True if it can change its size while it runs. False: it keeps the size that it started with.
    """
    user: str = ""
    """User whose limit applies if the queue limits each user. '' is a user like any other."""
    group: str = ""
    """Gangs of one namespace and group start together or not at all. '': the gang has no group."""
    group_gangs: int = 1
    """Number of gangs in its group."""
    sweep: str = ""
    """At most `sweep_limit` gangs of one namespace and sweep hold slots at a time. '': the gang has
    no sweep."""
    sweep_limit: int = 1
    """It starts while fewer gangs of its sweep than this hold slots."""
    after: tuple[Predecessor, ...] = ()
    """Predecessors that it still waits for. It takes no part in a cycle until this is empty."""
    max_runtime_seconds: float | None = None
    """It is stopped after this run time. None: its run time is not known."""
    nominated: tuple[str, ...] = ()
    """Its nominated nodes by pod index, while its victims are being evicted."""
    nominated_pool: str = ""
    is_foreign: bool = False
    """Pods without a TrainingJob that wait for quota. kube-scheduler places them. No gang is
    preempted and no nodes are requested for them."""
    hanging: tuple[str, ...] = ()
    """Pods of a residual gang that should have left a while ago, for messages."""
    override: Override | None = None
    """Permission to preempt within the guarantee of other queues, while it is in effect."""
    surplus: Gang | None = None
    """The spot pods of the job as a separate gang (`surplus_gang`). None if there are none."""
    surplus_of: str = ""
    """For a surplus gang, the uid of the gang that it belongs to."""

    def __post_init__(self) -> None:
        """Reject gangs that must never be admitted: empty gangs and negative requests.

        Raises:
            ValueError: with the job and the field that is wrong.
        """
        if self.nodes < 1:
            raise ValueError(f"{self.key}: nodes must be at least 1, not {self.nodes}")
        # Sizes ascend without repetition, and the largest one is the wanted size.
        if self.sizes and (
            self.sizes != tuple(sorted(set(self.sizes)))
            or self.sizes[0] < 1
            or self.sizes[-1] != self.nodes
        ):
            raise ValueError(f"{self.key}: sizes must ascend from 1 to nodes, not {self.sizes}")
        for request in (self.per_pod, *(role.per_pod for role in self.roles)):
            if request.pods != 1 or request.has_negative():
                raise ValueError(
                    f"{self.key}: per_pod must ask for 1 pod slot and nothing negative"
                )
        if any(role.pods < 1 for role in self.roles):
            raise ValueError(f"{self.key}: a role must have at least 1 pod")
        if self.pool is not None and self.pools:
            raise ValueError(f"{self.key}: pool and pools are not asked for together")
        # Each slice must divide the one around it, and the broadest one every size. Counting slots
        # in whole slices is exact only then.
        whole = self.nodes
        for piece in self.slices:
            if piece.pods < 1 or whole % piece.pods:
                raise ValueError(
                    f"{self.key}: slices of {piece.pods} pods do not divide {whole} pods"
                )
            whole = piece.pods
        if self.slices and any(size % self.slices[0].pods for size in self.sizes):
            raise ValueError(f"{self.key}: every size must be made of whole slices")

    @property
    def no_eviction_reason(self) -> str:
        """Reason why no gang is evicted or moved for it. '' if the policy of its queue decides."""
        if not self.preempts:
            return "its priority class has preemptionPolicy Never"
        return self.refusal

    @property
    def namespace(self) -> str:
        """The namespace part of the key."""
        return self.key.partition("/")[0]

    @property
    def gpus(self) -> int:
        """GPUs of the whole gang at the size it wants."""
        return self.gpus_at(self.nodes)

    @property
    def extras(self) -> int:
        """Number of role pods, which come before the main pods."""
        return sum(role.pods for role in self.roles) if self.roles else 0

    def gpus_at(self, size: int) -> int:
        """Return the GPUs of the whole gang with `size` main pods."""
        main = size * self.per_pod.gpus
        # Fast path: `gpus_at` runs for each gang in line, some hundred times in a cycle.
        if not self.roles:  # asked for each gang in line, some hundred times a cycle
            return main
        return main + sum(role.pods * role.per_pod.gpus for role in self.roles)

    def request_of(self, position: int) -> Resources:
        """Return the request of the pod at a position."""
        # Positions count the roles first, in their order.
        for role in self.roles:
            if position < role.pods:
                return role.per_pod
            position -= role.pods
        return self.per_pod

    @property
    def legal_sizes(self) -> tuple[int, ...]:
        """The numbers of main pods that it can run with, ascending."""
        return self.sizes or (self.nodes,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A gang that holds places.

    A place that is `lost` holds nothing and must be filled again. The cycle searches for a
    replacement before it considers any waiting gang, and leaves the other places alone.

    Positions count through `assignment`. They differ from the indices of the pods after an elastic
    gang has lost pods in the middle.
    """

    gang: Gang
    pool: str
    assignment: tuple[str, ...]
    """Node names by position, one for each pod that it runs with. An elastic gang may run with
    fewer pods than it wants."""
    reserved: frozenset[int] = frozenset()
    """Positions whose pods are not in `Node.used` yet. The view counts them."""
    lost: frozenset[int] = frozenset()
    """Positions whose pod or node is gone for good. Pods that still terminate there are in
    `Node.used`."""
    leaving: bool = False
    """The gang is being evicted. It is not chosen as a victim again and not repaired."""
    departs: bool = False
    """It is `leaving` because of its queue, which may still cancel that."""
    leaves_by: float | None = None
    """Time at which the gang, or its `giving_up` pods, should have left, on the clock of `now`.
    For foreign pods that are not bound: time at which they could be bound. None: it stays, or no
    deadline is known."""
    is_overdue: bool = False
    """True if it should have left long ago and therefore counts as staying (`overdue_gangs`)."""
    preemptible: bool = True
    """True if the gang may be evicted."""
    preempted_at: tuple[float, ...] = ()
    """Times of recent preemptions for other gangs, on the clock of `now`."""
    admitted_at: float = 0.0
    """Time of its admission, on the clock of `now`."""
    ends_at: float | None = None
    """Estimated end of its work on the clock of `now`, as the tenant's program reports it. None:
    not reported."""
    gpu_seconds_at_risk: float = 0.0
    """GPU-seconds of work since its last verified checkpoint, which an eviction would lose."""
    giving_up: frozenset[int] = frozenset()
    """Positions that are being evicted for another gang. The gang holds them until the pods are
    gone."""
    displaced: frozenset[int] = frozenset()
    """Positions on nodes that are about to go. Their pods move if other nodes are found."""
    must_move: bool = False
    """True if the displaced pods leave in any case, because their nodes certainly go."""
    nominated: Mapping[int, str] = field(default_factory=dict[int, str])
    """Nominated nodes by position: of lost pods while victims are evicted or nodes come for a
    repair, of displaced pods while nodes come, or of all pods if the gang is `leaving` to move."""
    nominated_pool: str = ""
    """Pool that it moves to. '' if it stays in its pool."""
    set_aside: bool = False
    """True if the scheduler raised an exception on it (`faults`). The gang keeps its slots and its
    quota, and no phase of the cycle considers it."""
    is_residual: bool = False
    """Not a job, but what a job or a foreign pod holds beside its places, under a separate uid.
    Examples: pods that still run at places that the job gave up, or places of a write whose answer
    was lost. The queue pays for them until they are free."""
    is_foreign: bool = False
    """A foreign pod that the queue pays for. It ends when its owner stops it, so its places are not
    expected back unless it is leaving. If it is preemptible, it may be evicted to reclaim borrowed
    quota only. It is never moved."""

    def __post_init__(self) -> None:
        """Reject an assignment of a size that the gang cannot have.

        Raises:
            ValueError: with the job and both sizes.
        """
        size, wanted = self.size, self.gang.nodes
        if size != wanted and not (self.gang.sizes and size > 0):
            raise ValueError(f"{self.gang.key}: {size} places for {wanted} pods")

    @property
    def size(self) -> int:
        """Number of main pods that it runs with, including lost ones."""
        return len(self.assignment) - self.gang.extras

    @property
    def survivors(self) -> dict[int, str]:
        """Nodes by position of the pods that are not lost."""
        return {i: name for i, name in enumerate(self.assignment) if i not in self.lost}

    @property
    def vacant(self) -> frozenset[int]:
        """Positions that need another node: the lost ones, or else the displaced ones."""
        return self.lost or self.displaced

    @property
    def staying(self) -> dict[int, str]:
        """Nodes by position of the pods that need no other node."""
        return {i: name for i, name in enumerate(self.assignment) if i not in self.vacant}

    @property
    def gpus(self) -> int:
        """GPUs of all its places, including lost ones. Its queue pays for them."""
        return self.gang.gpus_at(self.size)


def order_key(gang: Gang) -> OrderKey:
    """Return the order of a gang inside its queue: higher priority, longer wait, then uid."""
    return (-gang.priority, gang.queued_at, gang.uid)
