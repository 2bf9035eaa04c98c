"""A TrainingJob as its life is decided from: identity, spec and status at one resource version."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.api.conditions import Reason
from drumline.api.trainingjob import TrainingJobSpec, TrainingJobStatus
from drumline.lifecycle.model.verdict import Refusal, Verdict


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
    def has_agents(self) -> bool:
        """Whether the pods wait for a generation record; a single pod of a template does not."""
        return self.runs_trainer or self.spec.nodes > 1

    @property
    def size(self) -> int:
        """Members of the gang now; spec.nodes while it has no assignment."""
        assignment = self.status.assignment
        return self.spec.nodes if assignment is None else len(assignment.nodes)

    @property
    def finished(self) -> bool:
        """Whether the job succeeded or failed for good."""
        return self.status.finished_at is not None
