"""A TrainingJob for the lifecycle: identity, spec and status at one resource version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from drumline.lifecycle.model.roles import gang_gpus, role_pods
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline.lifecycle.model.verdict import Refusal, Verdict
from drumline_api.conditions import Reason
from drumline_api.trainingjob import TrainingJobSpec, TrainingJobStatus
from drumline_contract import Launch

DATA_FOLDER: Final = "/data"
CHECKPOINT_FOLDER: Final = "/checkpoints"
"""Mount points in pods of the bundled trainer."""
ARRIVAL_SECONDS: Final = 1e-6
"""Distance between jobs of the same second of creation, in the order of arrival."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A TrainingJob as read at one resource version."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    object_generation: int
    """metadata.generation, which counts changes of the spec. Not the generation of the gang."""
    created_at: float
    spec: TrainingJobSpec
    status: TrainingJobStatus
    deleting: bool = False
    """True if metadata.deletionTimestamp is set and a finalizer still holds the object."""
    verdict: Verdict | None = None
    """Verdict on this spec, if a cache keeps it. None: the caller judges it."""
    arrival: int = 0
    """Number of jobs of the same second of creation that arrived before. Until it is queued."""

    @property
    def unreadable(self) -> bool:
        """Return whether a field cannot be read. Then other fields may be misleading."""
        return isinstance(self.verdict, Refusal) and self.verdict.reason is Reason.UNREADABLE

    @property
    def key(self) -> str:
        """Return `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def runs_trainer(self) -> bool:
        """Return whether the pods run the bundled trainer instead of a pod template."""
        return self.spec.trainer is not None

    @property
    def launch(self) -> Launch | None:
        """Return how an agent starts the template's command, or None if the kubelet does."""
        template = self.spec.template
        if template is None or template.launch in (None, "Direct"):
            return None
        return Launch(template.launch)

    @property
    def is_supervised(self) -> bool:
        """Return whether an agent runs the ranks as long as each pod lives.

        Such a gang, like one of the bundled trainer, restarts ranks in place and replaces lost
        members alone.
        """
        return self.runs_trainer or self.launch is not None

    @property
    def has_agents(self) -> bool:
        """Return whether the pods wait for a generation record.

        A single pod of a template whose command the kubelet starts does not.
        """
        return self.is_supervised or self.spec.nodes > 1 or bool(self.spec.roles)

    @property
    def ranks_per_pod(self) -> int:
        """Return the number of processes that the agent of a pod starts."""
        return 1 if self.launch is Launch.PER_POD else self.spec.gpus_per_node

    @property
    def size(self) -> int:
        """Return the members with ranks now, or spec.nodes without an assignment."""
        return self.members - role_pods(self.spec)

    @property
    def members(self) -> int:
        """Return the pods of the gang now including roles, or the wanted ones without places."""
        assignment = self.status.assignment
        return self.wanted if assignment is None else len(assignment.nodes)

    @property
    def wanted(self) -> int:
        """Return the pods of the whole gang, including roles."""
        return self.spec.nodes + role_pods(self.spec)

    @property
    def gpus(self) -> int:
        """Return the GPUs of the gang now, including roles."""
        return gang_gpus(self.spec, members=self.members)

    @property
    def queued_at(self) -> float:
        """Return the time since which it waits, or waited, for GPUs (seconds since the epoch).

        The API server counts seconds, so jobs of one second are distinguished by microseconds, in
        the order of their arrival.
        """
        queued_at = self.status.queued_at
        if queued_at is None:
            return self.created_at + self.arrival * ARRIVAL_SECONDS
        return parse_timestamp(queued_at)

    @property
    def waits_since(self) -> float:
        """Return the time at which it last began to wait (seconds since the epoch).

        After a preemption `queued_at` keeps the place in line, and the last stay on GPUs lies
        after it.
        """
        account = self.status.gpu_seconds
        ends = (parse_timestamp(stay.until) for stay in (account and account.stays) or ())
        return max((self.queued_at, *ends))

    def queued_after(self, ended_at: float) -> float:
        """Return the queue time of a job whose predecessors ended at `ended_at`.

        Jobs that were created in the same second keep their order.
        """
        # The fraction of a second keeps the order of jobs that were created together.
        if ended_at <= self.queued_at:
            return self.queued_at
        return ended_at + self.queued_at % 1.0

    @property
    def finished(self) -> bool:
        """Return whether the job succeeded or failed for good."""
        return self.status.finished_at is not None
