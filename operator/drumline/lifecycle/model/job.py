"""A TrainingJob as its life is decided from: identity, spec and status at one resource version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drumline.lifecycle.model.roles import gang_gpus, role_pods
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.model.verdict import Refusal, Verdict
from drumline_api.conditions import Reason
from drumline_api.trainingjob import TrainingJobSpec, TrainingJobStatus
from drumline_contract import Launch

ARRIVAL_SECONDS: Final = 1e-6
"""Between jobs that were created in the same second, in the order in which they were seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A TrainingJob as read at one resource version."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    object_generation: int
    """metadata.generation: counts changes of the spec; not the generation of the gang."""
    created_at: float
    spec: TrainingJobSpec
    status: TrainingJobStatus
    deleting: bool = False
    """metadata.deletionTimestamp is set and a finalizer still holds the object."""
    verdict: Verdict | None = None
    """Of this spec, where somebody keeps it; None: whoever asks judges."""
    arrival: int = 0
    """How many jobs of the same second of creation were seen before it; until it is queued."""

    @property
    def unreadable(self) -> bool:
        """Whether a field cannot be read: what the other fields say of it may be wrong."""
        return isinstance(self.verdict, Refusal) and self.verdict.reason is Reason.UNREADABLE

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def runs_trainer(self) -> bool:
        """Whether the pods run the bundled trainer instead of a pod template."""
        return self.spec.trainer is not None

    @property
    def launch(self) -> Launch | None:
        """How an agent starts the template's command; None: no agent does."""
        template = self.spec.template
        if template is None or template.launch in (None, "Direct"):
            return None
        return Launch(template.launch)

    @property
    def is_supervised(self) -> bool:
        """Whether an agent runs the ranks as long as each pod lives, as of the bundled trainer.

        Such a gang restarts ranks in place, and replaces lost members alone.
        """
        return self.runs_trainer or self.launch is not None

    @property
    def has_agents(self) -> bool:
        """Whether the pods wait for a generation record.

        A single pod of a template whose command the kubelet starts does not.
        """
        return self.is_supervised or self.spec.nodes > 1 or bool(self.spec.roles)

    @property
    def ranks_per_pod(self) -> int:
        """Processes that the agent of a pod starts."""
        return 1 if self.launch is Launch.PER_POD else self.spec.gpus_per_node

    @property
    def size(self) -> int:
        """Members with ranks now; spec.nodes while it has no assignment."""
        return self.members - role_pods(self.spec)

    @property
    def members(self) -> int:
        """Pods of the gang now, those of roles included; as asked for while it has no place."""
        assignment = self.status.assignment
        return self.wanted if assignment is None else len(assignment.nodes)

    @property
    def wanted(self) -> int:
        """Pods of the whole gang, those of roles included."""
        return self.spec.nodes + role_pods(self.spec)

    @property
    def gpus(self) -> int:
        """GPUs of the gang now, those of roles included."""
        return gang_gpus(self.spec, members=self.members)

    @property
    def queued_at(self) -> float:
        """Since when it waits for GPUs, or did before it had them (seconds since the epoch).

        The API server counts seconds, so jobs of one second are told apart by microseconds, in the
        order in which they were seen.
        """
        queued_at = self.status.queued_at
        if queued_at is None:
            return self.created_at + self.arrival * ARRIVAL_SECONDS
        return parse_timestamp(queued_at)

    def queued_after(self, ended_at: float) -> float:
        """The same for a job that waits for others, which ended then.

        Jobs that were applied in the same second keep their order.
        """
        if ended_at <= self.queued_at:
            return self.queued_at
        return ended_at + self.queued_at % 1.0

    @property
    def finished(self) -> bool:
        """Whether the job succeeded or failed for good."""
        return self.status.finished_at is not None
