"""Define the facts that are read of a cluster. The checks use nothing else.

A fact that could not be read is `Unread` with the reason; kinds that the cluster does not serve
are read as none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar, Union

from drumline_api.gpupool import GpuPoolSpec
from drumline_api.trainingqueue import TrainingQueueSpec

T = TypeVar("T")
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Why something is not known."""

    reason: str


# Each check states which facts it needs, and reports the reason if one is unread.
Fact = Union[T, Unread]  # noqa: UP007 - generic over T, for which `|` has no form at run time


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerVersion:
    """The version of the API server."""

    major: int
    minor: int
    text: str
    """Version as the server reports it: `v1.36.3-eks-1`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFact:
    """A node."""

    name: str
    labels: Labels
    allocatable: Mapping[str, int]
    capacity: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeClock:
    """The clock of a node's kubelet beside that of the API server."""

    node: str
    ahead_seconds: float
    """Seconds ahead of the API server, negative if behind. Accurate to a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSlice:
    """Devices that a node offers by Dynamic Resource Allocation."""

    node: str
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePod:
    """A pod that holds devices of a node."""

    namespace: str
    name: str
    node: str
    scheduler: str
    ours: bool
    """Whether the pod belongs to a TrainingJob."""
    daemon: bool
    """Whether a DaemonSet owns the pod."""
    requests: Mapping[str, int]
    """Requests of resources with a domain in their name, such as nvidia.com/gpu."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFact:
    """A GpuPool."""

    name: str
    spec: GpuPoolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFact:
    """A TrainingQueue."""

    name: str
    spec: TrainingQueueSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceFact:
    """A namespace."""

    name: str
    labels: Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFact:
    """A PersistentVolumeClaim."""

    namespace: str
    name: str
    phase: str
    access_modes: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFact:
    """Requirements of a TrainingJob."""

    namespace: str
    name: str
    nodes: int
    claim: str | None
    """Claim for its checkpoints."""
    queue: str = ""
    """Its TrainingQueue."""
    pool: str = ""
    """The GpuPool in which it holds GPUs; empty while it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassFact:
    """A StorageClass."""

    name: str
    provisioner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityFact:
    """A PriorityClass."""

    name: str
    value: int
    preempts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseFact:
    """The operator's Lease."""

    holder: str
    renewed_ago_seconds: float
    """Seconds by this machine's clock."""
    duration_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorFact:
    """The operator as it is installed."""

    namespace: str
    ready_replicas: int
    replicas: int
    priority_class: str
    """PriorityClass of training pods."""
    trainer_image: str
    training_user: int | None
    """User of training pods. None: the namespace assigns it."""
    guarded_pools: frozenset[str] = frozenset()
    evicts_foreign_pods: bool = False
    """GpuPools whose nodes are tainted before a gang is promised places there."""
    lease: Fact[LeaseFact | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFact:
    """A CustomResourceDefinition of ours."""

    kind: str
    fields: frozenset[str]
    """Paths of its schema: `spec.trainer.steps`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorFact:
    """A ServiceMonitor, PodMonitor or PrometheusRule of Drumline."""

    kind: str
    name: str
    labels: Labels


@dataclass(frozen=True, slots=True, kw_only=True)
class PrometheusFact:
    """A Prometheus of the Prometheus operator."""

    namespace: str
    name: str
    selectors: Mapping[str, Labels | None]
    """Required labels by kind of object. None: it selects no objects of this kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProbe:
    """Result of a pod with the trainer's image on a node."""

    pool: str
    node: str
    problem: str
    """Why it did not run, as the kubelet says; empty: it ran."""
    locked_memory_bytes: int | None = None
    """The limit of memory that it may lock; None: no limit, or it did not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkProbe:
    """Which of two listening pods a pod reached. A NetworkPolicy blocks the second."""

    reached_open: bool
    reached_closed: bool
    path: str
    """From which node to which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """Results of the probe pods."""

    image: str
    nodes: tuple[NodeProbe, ...]
    network: Fact[NetworkProbe]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Everything that is read of a cluster."""

    server: Fact[ServerVersion]
    groups: frozenset[str]
    """Served group versions: `policy/v1`; without those of the core."""
    schemas: Fact[tuple[SchemaFact, ...]]
    operator: Fact[OperatorFact | None]
    # The lists below follow the order in which `reading` requests them.
    nodes: Fact[tuple[NodeFact, ...]]
    clocks: Fact[tuple[NodeClock, ...]]
    slices: Fact[tuple[DeviceSlice, ...]]
    device_pods: Fact[tuple[DevicePod, ...]]
    pools: Fact[tuple[PoolFact, ...]]
    queues: Fact[tuple[QueueFact, ...]]
    jobs: Fact[tuple[JobFact, ...]]
    namespaces: Fact[tuple[NamespaceFact, ...]]
    claims: Fact[tuple[ClaimFact, ...]]
    storage_classes: Fact[tuple[ClassFact, ...]]
    priorities: Fact[tuple[PriorityFact, ...]]
    prometheuses: Fact[tuple[PrometheusFact, ...]]
    monitors: Fact[tuple[MonitorFact, ...]]
    probes: Fact[Probes | None] = None
    """None: not asked for."""
    expected_fields: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """Fields of each kind that this program supports, from `schemas`."""
    system_namespace: str = "drumline-system"
    """Namespace in which the operator was searched for."""
