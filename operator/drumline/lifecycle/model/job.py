"""A TrainingJob as its life is decided from: identity, spec and status at one resource version."""

from __future__ import annotations

from dataclasses import dataclass

from drumline.api.trainingjob import TrainingJobSpec, TrainingJobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A TrainingJob as read at one resource version."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    object_generation: int
    """metadata.generation: counts changes of the spec, not memberships."""
    created_at: float
    spec: TrainingJobSpec
    status: TrainingJobStatus
    deleting: bool = False
    """Deleted, and still held by somebody's finalizer."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def runs_trainer(self) -> bool:
        """Whether the pods run the bundled trainer rather than a template of the user's own."""
        return self.spec.trainer is not None

    @property
    def has_agents(self) -> bool:
        """Whether the pods wait for a generation record (a lone pod has nobody to wait for)."""
        return self.runs_trainer or self.spec.nodes > 1

    @property
    def size(self) -> int:
        """Pods of the gang as it is; as many as wanted while it holds no places."""
        assignment = self.status.assignment
        return self.spec.nodes if assignment is None else len(assignment.nodes)

    @property
    def finished(self) -> bool:
        """Whether the job succeeded or failed for good."""
        return self.status.finished_at is not None
