"""What is known of a job besides its object: pods, nodes, and what its agents reported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from drumline.lifecycle.model.chains import FREE, Standing
from drumline_api.conditions import DisruptionKind
from drumline_api.trainingqueue import IdleRules
from drumline_contract import Incident, NoticeAnswer, Pause, Progress, Remark

DEFAULT_IDLE_RULES: Final = IdleRules()
"""Of a queue that says nothing of idle GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnd:
    """How a pod ended."""

    succeeded: bool
    exit_code: int | None = None
    """Of the main container; None if the kubelet refused the pod or its node was lost."""
    reason: str = ""
    """Of the container (`OOMKilled`, `Error`) or of the pod (`Evicted`, `OutOfcpu`)."""
    message: str = ""
    """Termination message: a `FinalReport` if the agent wrote one, otherwise text."""
    ended_at: float | None = None
    """When the container ended, by the kubelet's clock."""
    own_limit: str = ""
    """The kubelet's sentence where it evicted the pod for a limit of the pod's own, as that of its
    scratch space; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """One pod of a job: it represents a member or is an orphan."""

    name: str
    uid: str
    index: int
    generation: int
    """The generation of the gang in which the pod was created."""
    node: str
    ip: str = ""
    ready: bool = False
    """Readiness: the agent answers (bundled trainer) or the container runs (pod template)."""
    joining: bool = False
    """The init container that waits for the generation record runs."""
    unbound: bool = False
    """It is about to be bound to its node, and takes nothing of it yet."""
    terminating: bool = False
    terminates_by: float | None = None
    """When the grace period of a terminating pod is over (seconds since the epoch)."""
    protected: bool | None = None
    """Whether the namespace's budget denies its eviction; None: a budget of its job's own does."""
    evicted: bool = False
    """Its deletion was asked for through the eviction API, as by `kubectl drain`."""
    waiting: str = ""
    """The waiting reason of a container that does not start, e.g. `ImagePullBackOff: ...`."""
    image_id: str = ""
    """What the main container runs, as the kubelet says; empty before its image is there."""
    end: PodEnd | None = None
    """How its main container ended, or the pod as a whole; None before."""
    lingers: bool = False
    """Whether other containers (sidecars) still run after `end`."""
    closing: bool = False
    """Whether these are native sidecars alone, which the kubelet ends by itself within the grace
    period (KEP-753)."""

    @property
    def holds_node(self) -> bool:
        """Whether it takes resources of its node."""
        return self.end is None or self.lingers

    @property
    def reachable(self) -> bool:
        """Whether its agent can receive the generation record."""
        return bool(self.ip) and (self.ready or self.joining)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """One Event about a pod."""

    reason: str
    """CamelCase: `FailedMount`, `Pulling`, ..."""
    message: str
    at: float
    """When it happened last (seconds since the epoch)."""
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvents:
    """The events of one pod that did not come up when they were read."""

    read_at: float
    """Seconds since the epoch."""
    events: tuple[PodEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDisruption:
    """An announced disruption of a node on which the job has members."""

    node: str
    kind: DisruptionKind
    source: str
    """What announced it: the key of a taint or label, the type of a condition."""
    deadline: float | None = None
    """Until then pods may run on the node (seconds since the epoch); None: no deadline is known."""
    certain: bool = True
    """False: only likely, as with a cordon. Members there move if another node is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known of a job besides its object."""

    pods: tuple[PodFacts, ...] = ()
    acknowledged_generation: int | None = None
    """The generation whose record the store's agent has acknowledged to this operator."""
    contradicted_generation: int | None = None
    """A generation for which the store's agent has a record with other members than status has."""
    evictable: int | None = None
    """How many members the job's own PodDisruptionBudget lets a drain evict; None: this operator
    does not know whether there is one. It counts only where pods are not in the namespace's."""
    predecessors: Standing = FREE
    """How far the jobs are that this one starts after."""
    is_awaited: bool = False
    """It has ended, and the status of a job that starts after it does not say so yet."""
    progress: Progress | None = None
    """The agents' figures, if a refresh of those in status is due."""
    refresh_due: bool = True
    """Whether the write budget allows a status that only refreshes figures and messages."""
    expected_pods: frozenset[str] = field(default_factory=frozenset[str])
    """Names of pods that this operator created and that are not in the cache yet."""
    pod_events: Mapping[str, PodEvents] = field(default_factory=dict[str, PodEvents])
    """Events of pods that do not come up, by the pod's uid, as read last. Of a large gang only some
    pods are looked at."""
    silent: frozenset[str] = frozenset()
    """Uids of pods whose agents answer neither their peers nor the operator."""
    gone_nodes: frozenset[str] = frozenset()
    """Nodes that were deleted or are marked out of service."""
    waiting_for: str | None = None
    """Why the gang waits instead of training, in its agents' words; empty: it does not wait; None:
    no agent has reported."""
    remark: Remark | None = None
    """What else the agents have to say of a gang that trains."""
    pause: Pause | None = None
    """How long no rank has shown work, 0 s where the agents cannot tell; None: they are not heard,
    or do not know this generation yet."""
    idle_rules: IdleRules = DEFAULT_IDLE_RULES
    """Of the job's queue."""
    node_disruptions: tuple[NodeDisruption, ...] = ()
    """Announced disruptions of nodes on which the job has members, at most one a node."""
    incidents: tuple[Incident, ...] = ()
    """The agents' log of recoveries, oldest first."""
    notice: NoticeAnswer | None = None
    """The agents' answer to the newest notice that they have."""
    acknowledges_saves: bool = False
    """The program of a template answers notices, its agents say: it uses the client."""
    notified: str = ""
    """Id of the notice that the agents acknowledged to this operator; empty again after they
    acknowledged its withdrawal."""
    withdrawn: str = ""
    """Id of the notice whose withdrawal the agents acknowledged last."""
