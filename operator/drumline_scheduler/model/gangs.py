"""Gangs: jobs as the scheduler sees them, pending and admitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from drumline_scheduler.model.capacity import ANY_PRICE, PriceRule
from drumline_scheduler.model.nodes import Toleration
from drumline_scheduler.resources import Resources

OrderKey = tuple[int, float, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Pods of a gang that are unlike its main ones, such as a launcher."""

    name: str
    pods: int
    per_pod: Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Every `pods` consecutive main pods in one domain of a level, such as one NVLink clique."""

    level: str
    pods: int
    required: bool = True
    """False: as far as it can be had now, otherwise without."""


class NodeOperator(StrEnum):
    """How a node's label is compared, as in core/v1 node selector requirements."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GREATER_THAN = "Gt"
    LESS_THAN = "Lt"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequirement:
    """One condition on a node's labels."""

    key: str
    operator: NodeOperator
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeReach:
    """The nodes from which the pods of a gang can use a volume."""

    name: str
    """For messages: `volume pv-1 of claim data`."""
    terms: tuple[tuple[NodeRequirement, ...], ...]
    """All requirements of at least one term; the key `metadata.name` means the node's name."""


class PredecessorState(StrEnum):
    """Why a predecessor still holds a gang back."""

    WAITED_FOR = "WaitedFor"
    """It has not ended."""
    FAILED = "Failed"
    """It has ended, and not as it should."""
    NOT_FOUND = "NotFound"
    CIRCULAR = "Circular"
    """It waits for this gang itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """A job that has to end before a gang may start."""

    key: str
    """`namespace/name`."""
    must_succeed: bool = True
    """False: it may fail too."""
    state: PredecessorState = PredecessorState.WAITED_FOR
    circle: tuple[str, ...] = ()
    """Of a circular one: keys of the jobs that wait for each other in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A job as the scheduler sees it: pods that start together or not at all.

    All its main pods are equal. Positions count the pods of its `role_placement` first, in their
    order, then the main ones by rank.
    """

    key: str
    """`namespace/name` of the TrainingJob."""
    uid: str
    queue: str
    nodes: int
    """How many main pods it wants; two of them may share a node that has room for both."""
    per_pod: Resources
    queued_at: float
    """When it began to wait (seconds); a preempted job keeps its place."""
    priority: int = 0
    pool: str | None = None
    """The only pool it may run in; None: see `pools`."""
    pools: tuple[str, ...] = ()
    """The pools it may run in, in the order of trying (first the ones it would rather have); empty:
    any pool its queue has quota in, the cheapest first."""
    price_rule: PriceRule = ANY_PRICE
    """Which of these it accepts by capacity type and price, within what its queue accepts."""
    partition: str = ""
    """The part of a GPU that its pods ask for; '' for whole ones."""
    may_share: bool = False
    """Whether it may have a GPU that others have, too: it has one rank, so that no two of its own
    meet on one GPU."""
    required_level: str | None = None
    """All pods in one domain of this level, or the job waits."""
    preferred_level: str | None = None
    """All pods in one domain of this level if that fits now, else in the next wider one."""
    slices: tuple[Slice, ...] = ()
    """Broadest level first; the pods of each divide those of the one before, and every size."""
    balanced_level: str | None = None
    """Over the domains of this level that it uses, its main pods (or slices) are spread as evenly
    as these have room. It never keeps a gang from starting."""
    roles: tuple[Role, ...] = ()
    """Its pods that differ from the main ones."""
    selector: Mapping[str, str] = field(default_factory=dict[str, str])
    """Labels a node must have with these values."""
    affinity: tuple[tuple[NodeRequirement, ...], ...] = ()
    """Required node affinity: all requirements of at least one term; empty: any node."""
    volumes: tuple[VolumeReach, ...] = ()
    """Its volumes that cannot be used from every node."""
    tolerations: tuple[Toleration, ...] = ()
    excluded_nodes: frozenset[str] = frozenset()
    """Nodes that it avoids, as a GPU there failed it."""
    retry_at: float = 0.0
    """After a rejected create: not tried again before this time."""
    retry_cause: str = ""
    """Why it backs off: the message of the rejected create."""
    preempts: bool = True
    """False: its priority class has `preemptionPolicy: Never`. It never evicts or moves others."""
    refusal: str = ""
    """Why its pods would probably be refused, such as by a ResourceQuota; '' if nothing is known.
    Until a start has succeeded it gets free capacity only: nobody is evicted or moved for it, and
    it is not moved itself."""
    sizes: tuple[int, ...] = ()
    """The numbers of main pods it can run with, ascending, `nodes` the last; empty: only that."""
    resizable: bool = True
    """Whether it can change between its sizes while it runs; else it keeps what it started with."""
    user: str = ""
    """Whose limit counts, where a queue limits each user; '' is a user like any other."""
    group: str = ""
    """Gangs of one namespace and group start together or not at all; '': it is alone."""
    group_gangs: int = 1
    """How many gangs its group has."""
    sweep: str = ""
    """Of the gangs of one namespace and sweep only so many hold slots at a time; '': it is in none.
    """
    sweep_limit: int = 1
    """It starts while fewer gangs of its sweep hold slots."""
    after: tuple[Predecessor, ...] = ()
    """What it still has to wait for: until this is empty it takes no part in the cycle."""
    max_runtime_seconds: float | None = None
    """It is ended when it has run that long; None: its length is not known."""
    nominated: tuple[str, ...] = ()
    """While its victims are being evicted: its nominated nodes, by pod index."""
    nominated_pool: str = ""
    is_foreign: bool = False
    """Pods that are no TrainingJob's and wait for quota: kube-scheduler places them. For them
    nobody is preempted and no nodes are asked."""
    hanging: tuple[str, ...] = ()
    """Of a residual gang: its pods that should have left a while ago, for messages."""
    surplus: Gang | None = None
    """What the job takes of spot pools beside this gang, as a gang of its own (`mixed`)."""
    surplus_of: str = ""
    """Of such a surplus gang: the uid of the gang that it is beside."""

    def __post_init__(self) -> None:
        """Reject what no admission may ever count: empty gangs and negative requests.

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
        for request in (self.per_pod, *(role.per_pod for role in self.roles)):
            if request.pods != 1 or request.has_negative():
                raise ValueError(
                    f"{self.key}: per_pod must ask for 1 pod slot and nothing negative"
                )
        if any(role.pods < 1 for role in self.roles):
            raise ValueError(f"{self.key}: a role must have at least 1 pod")
        if self.pool is not None and self.pools:
            raise ValueError(f"{self.key}: pool and pools are not asked for together")
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
    def evicts_not(self) -> str:
        """Why nobody is evicted or moved for it; '' if the policy of its queue decides."""
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
        """How many pods of its roles come before the main ones."""
        return sum(role.pods for role in self.roles) if self.roles else 0

    def gpus_at(self, size: int) -> int:
        """GPUs of the whole gang with that many main pods."""
        main = size * self.per_pod.gpus
        if not self.roles:  # asked for each gang in line, some hundred times a cycle
            return main
        return main + sum(role.pods * role.per_pod.gpus for role in self.roles)

    def request_of(self, position: int) -> Resources:
        """What the pod at a position asks for."""
        for role in self.roles:
            if position < role.pods:
                return role.per_pod
            position -= role.pods
        return self.per_pod

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
    """Being evicted: neither a victim again nor repaired."""
    departs: bool = False
    """It is `leaving` because its queue said so, which may change its mind."""
    leaves_by: float | None = None
    """When it, or what it is `giving_up`, should have left, on the clock of `now`; None: it stays,
    or no deadline is known."""
    is_overdue: bool = False
    """Whether it should have left so long ago that it counts as staying (`overdue_gangs`)."""
    preemptible: bool = True
    """Whether it may be evicted."""
    preempted_at: tuple[float, ...] = ()
    """When it left for other gangs lately, on the clock of `now`."""
    admitted_at: float = 0.0
    """When it was admitted, on the clock of `now`."""
    ends_at: float | None = None
    """When its work is done as its program reports it, on the clock of `now`: an estimate, and
    by the tenant. None: it does not say."""
    gpu_seconds_at_risk: float = 0.0
    """GPU-seconds of work since its last verified checkpoint: what its leaving would lose."""
    giving_up: frozenset[int] = frozenset()
    """Positions that are being evicted for another gang; its own until the pods are gone.
    """
    displaced: frozenset[int] = frozenset()
    """Positions on nodes that are about to go, whose pods move if other nodes are found."""
    nominated: Mapping[int, str] = field(default_factory=dict[int, str])
    """Nominated nodes by position: of lost pods while others are evicted for its repair,
    of all where it is `leaving` to move."""
    nominated_pool: str = ""
    """Where it moves to; '' where it stays in its pool."""
    set_aside: bool = False
    """Whether the scheduler raised an exception on it (`faults`). The gang keeps its slots and its
    quota, and no phase of the cycle looks at it."""
    is_residual: bool = False
    """Not a job, but what one holds beside its places, under a uid of its own: pods that still run
    where it gave its places up, or places of a write whose answer was lost. It pays for them until
    they are free. Or a foreign pod that the queue pays for."""
    is_foreign: bool = False
    """That foreign pod. Unless it is leaving nobody expects its places back: it ends when its owner
    says so. Where it is preemptible its queue gives back what it borrows: it may be evicted for
    that alone, and is never moved."""

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
        """How many main pods it runs with, lost ones counted."""
        return len(self.assignment) - self.gang.extras

    @property
    def survivors(self) -> dict[int, str]:
        """Nodes by position of the pods that it has not lost."""
        return {i: name for i, name in enumerate(self.assignment) if i not in self.lost}

    @property
    def gpus(self) -> int:
        """GPUs of all its places, lost ones counted: what its queue pays."""
        return self.gang.gpus_at(self.size)


def order_key(gang: Gang) -> OrderKey:
    """Return the place of a gang inside its queue: higher priority, longer waiting, then uid."""
    return (-gang.priority, gang.queued_at, gang.uid)
