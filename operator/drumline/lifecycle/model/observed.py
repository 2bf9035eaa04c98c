"""Observations about a job besides its object: pods, nodes, and reports of its agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from drumline.lifecycle.model.chains import FREE, Standing
from drumline_api.conditions import DisruptionKind, Reason
from drumline_api.trainingqueue import IdleRules
from drumline_contract import Incident, NoticeAnswer, Pause, Progress, Remark

DEFAULT_IDLE_RULES: Final = IdleRules()
"""Rules of a queue without rules about idle GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnd:
    """The end of a pod."""

    succeeded: bool
    exit_code: int | None = None
    """Exit code of the main container. None if the kubelet refused the pod or the node was lost."""
    reason: str = ""
    """Reason of the container (`OOMKilled`, `Error`) or of the pod (`Evicted`, `OutOfcpu`)."""
    message: str = ""
    """Termination message: a `FinalReport` if the agent wrote one, otherwise text."""
    ended_at: float | None = None
    """End of the container, by the kubelet's clock."""
    own_limit: str = ""
    """The kubelet's message if it evicted the pod for one of its own limits, such as scratch space.

    Empty otherwise.
    """


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
    """True if the init container that waits for the generation record runs."""
    unbound: bool = False
    """True if it is not bound to its node yet, and takes no resources of it."""
    terminating: bool = False
    terminates_by: float | None = None
    """End of a terminating pod's grace period (seconds since the epoch)."""
    protected: bool | None = None
    """True if the namespace's budget denies its eviction. None: a budget of its job does."""
    evicted: bool = False
    """True if its deletion was requested through the eviction API, as by `kubectl drain`."""
    waiting: str = ""
    """Waiting reason of a container that does not start, e.g. `ImagePullBackOff: ...`."""
    image_id: str = ""
    """Image of the main container by the kubelet. Empty before it was pulled."""
    end: PodEnd | None = None
    """End of its main container, or of the pod as a whole. None before."""
    lingers: bool = False
    """True if other containers (sidecars) still run after `end`."""
    closing: bool = False
    """True if only native sidecars still run, which the kubelet ends by itself (KEP-753)."""

    @property
    def holds_node(self) -> bool:
        """Return whether it takes resources of its node."""
        return self.end is None or self.lingers

    @property
    def reachable(self) -> bool:
        """Return whether its agent can receive the generation record."""
        return bool(self.ip) and (self.ready or self.joining)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvent:
    """One Event about a pod."""

    reason: str
    """CamelCase: `FailedMount`, `Pulling`, ..."""
    message: str
    at: float
    """Time of its last occurrence (seconds since the epoch)."""
    warning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEvents:
    """Events of one pod that had not started when they were read."""

    read_at: float
    """Seconds since the epoch."""
    events: tuple[PodEvent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDisruption:
    """An announced disruption of a node on which the job has members."""

    node: str
    kind: DisruptionKind
    source: str
    """Source of the announcement: the key of a taint or label, or the type of a condition."""
    deadline: float | None = None
    """Time until which pods may run on the node (seconds since the epoch). None if not known."""
    certain: bool = True
    """False if the disruption is only likely, as with a cordon.

    Members there move if another node is available.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Observations about a job besides its object."""

    pods: tuple[PodFacts, ...] = ()
    acknowledged_generation: int | None = None
    """Generation whose record the store's agent has acknowledged to this operator."""
    contradicted_generation: int | None = None
    """Generation for which the store's agent has a record with other members than the status."""
    evictable: int | None = None
    """Number of members that the job's own PodDisruptionBudget lets a drain evict.

    None if this operator does not know whether it exists. It counts only for pods that the
    namespace's budget does not protect.
    """
    predecessors: Standing = FREE
    """State of the jobs that this one starts after."""
    is_awaited: bool = False
    """True if it has ended and a successor has not recorded that yet."""
    progress: Progress | None = None
    """The agents' figures, if a refresh of the status is due."""
    refresh_due: bool = True
    """True if the write budget allows a status that only refreshes figures and messages."""
    expected_pods: frozenset[str] = field(default_factory=frozenset[str])
    """Names of pods that this operator created and that are not in the cache yet."""
    pod_events: Mapping[str, PodEvents] = field(default_factory=dict[str, PodEvents])
    """Events of pods that do not start, by the pod's uid, as read last.

    For a large gang only the events of some pods are read.
    """
    silent: frozenset[str] = frozenset()
    """Uids of pods whose agents answer neither their peers nor the operator."""
    gone_nodes: frozenset[str] = frozenset()
    """Nodes that were deleted or are marked out of service."""
    waiting_for: str | None = None
    """Why the gang waits instead of training, as its agents report it.

    Empty if it does not wait, None without a report.
    """
    remark: Remark | None = None
    """Other remark of the agents about a training gang."""
    pause: Pause | None = None
    """Time for which no rank has shown work, 0 s if the agents cannot determine it.

    None without a report of this generation.
    """
    orphaned: tuple[Reason, str] | None = None
    """Reason and sentence if the queue or the pool of a job with nodes was deleted."""
    broken_domain: str = ""
    """Sentence if the nodes of a gang are no longer in one domain of its required level."""
    idle_rules: IdleRules = DEFAULT_IDLE_RULES
    """Rules of the job's queue."""
    node_disruptions: tuple[NodeDisruption, ...] = ()
    """Announced disruptions of nodes with members of the job, at most one for each node."""
    incidents: tuple[Incident, ...] = ()
    """The agents' log of recoveries, oldest first."""
    notice: NoticeAnswer | None = None
    """The agents' answer to the newest notice that they have."""
    acknowledges_saves: bool = False
    """True if the agents report that a template's program answers notices with the client."""
    notified: str = ""
    """Id of the notice that the agents acknowledged to this operator.

    Empty again after they acknowledged its withdrawal.
    """
    withdrawn: str = ""
    """Id of the notice whose withdrawal the agents acknowledged last."""
