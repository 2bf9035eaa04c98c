"""What is known of a job besides its object: pods, nodes, and what its agents reported."""

from __future__ import annotations

from dataclasses import dataclass, field

from drumline.api.conditions import DisruptionKind
from drumline_trainer.contract import Incident, NoticeAnswer, Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnd:
    """How a pod ended."""

    succeeded: bool
    exit_code: int | None = None
    """Of the main container; None when the kubelet refused the pod or the node took it."""
    reason: str = ""
    """Of the container (`OOMKilled`, `Error`) or of the pod (`Evicted`, `OutOfcpu`)."""
    message: str = ""
    """Termination message: a `FinalReport` where the agent wrote it, else text."""
    ended_at: float | None = None
    """When the container ended, by the kubelet's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """One pod of a job: a member's, or a stray."""

    name: str
    uid: str
    index: int
    generation: int
    """The one it was created in."""
    node: str
    ip: str = ""
    ready: bool = False
    """Readiness: the agent answers (bundled trainer) or the container runs (own template)."""
    joining: bool = False
    """The init container that waits for the generation record runs."""
    terminating: bool = False
    waiting: str = ""
    """Why a container does not start, e.g. `ImagePullBackOff: ...`."""
    end: PodEnd | None = None

    @property
    def reachable(self) -> bool:
        """Whether its agent can be told the generation record."""
        return bool(self.ip) and (self.ready or self.joining)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDisruption:
    """A node of the job will certainly stop to serve."""

    node: str
    kind: DisruptionKind
    source: str
    """Who says so."""
    deadline: float | None = None
    """Until then its pods may run; None: until they are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known besides the object: pods, nodes, and what the agents said."""

    pods: tuple[PodFacts, ...] = ()
    acknowledged_generation: int | None = None
    """The generation whose record the store's agent has acknowledged to this operator."""
    contradicted_generation: int | None = None
    """The generation that the store's agent knows with other members than there are now."""
    protected: bool = False
    """Whether this operator has made sure of the PodDisruptionBudget."""
    progress: Progress | None = None
    """Given when a refresh of the figures in status is due."""
    refresh_due: bool = True
    """Whether the write budget allows a status that only says more of the same."""
    expected_pods: frozenset[str] = field(default_factory=frozenset[str])
    """Names of pods created by us that the cache has not shown yet."""
    silent: frozenset[str] = frozenset()
    """Uids of pods lost by silence: neither their peers nor the operator hear them."""
    gone_nodes: frozenset[str] = frozenset()
    """Nodes that are no more, or are out of service for good."""
    node_disruptions: tuple[NodeDisruption, ...] = ()
    """Of the nodes the job is on, those that are about to go; one a node."""
    incidents: tuple[Incident, ...] = ()
    """The agents' log of recoveries, oldest first."""
    notice: NoticeAnswer | None = None
    """What the agents make of the newest notice they have."""
    notified: str = ""
    """Id of the notice that the agents took from this operator; empty again once they took its
    withdrawal."""
    withdrawn: str = ""
    """Id of the notice whose withdrawal they took last."""
