"""Pods, Jobs and the like that are no TrainingJob's and name a queue, as far as rows read them."""

from __future__ import annotations

from typing import Final

import msgspec

from drumline.overview.object_parts import ObjectMetadata, ObjectPart

GROUP: Final = "drumline.dev"
QUEUE: Final = f"{GROUP}/queue"
"""The label, and the scheduling gate of the same name."""
JOB: Final = f"{GROUP}/job"
POD_GROUP: Final = f"{GROUP}/pod-group"
ADMITTED: Final = f"{GROUP}/admitted"


class OwnerOfObject(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of metadata.ownerReferences."""

    kind: str = ""
    name: str = ""
    controller: bool | None = None


class WorkloadMetadata(ObjectMetadata, frozen=True, rename="camel", gc=False):
    """What every object has, with whose it is."""

    annotations: dict[str, str] | None = None
    owner_references: list[OwnerOfObject] | None = None
    deletion_timestamp: str | None = None

    def label(self, name: str) -> str:
        """The label of this name; empty: it has none."""
        return (self.labels or {}).get(name, "")

    @property
    def is_admitted(self) -> bool:
        """Whether the operator has let it go."""
        return ADMITTED in (self.annotations or {})


class Limits(ObjectPart, frozen=True, rename="camel", gc=False):
    """A container's resources: of devices requests and limits are equal."""

    limits: dict[str, str | int] | None = None


class AskedByContainer(ObjectPart, frozen=True, rename="camel", gc=False):
    """One container."""

    resources: Limits = Limits()


class NamedGate(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of spec.schedulingGates."""

    name: str = ""


class PodObjectSpec(ObjectPart, frozen=True, rename="camel", gc=False):
    """What a pod asks for."""

    containers: list[AskedByContainer] = msgspec.field(default_factory=list[AskedByContainer])
    init_containers: list[AskedByContainer] | None = None
    scheduling_gates: list[NamedGate] | None = None

    def devices(self, resource: str) -> int:
        """How many of a device it takes: all its containers' together, or an init container's."""
        beside = sum(_amount(each, resource) for each in self.containers)
        before = (_amount(each, resource) for each in self.init_containers or ())
        return max((beside, *before))


class TerminatedContainer(ObjectPart, frozen=True, rename="camel", gc=False):
    """How a container ended."""

    finished_at: str | None = None


class ContainerStates(ObjectPart, frozen=True, rename="camel", gc=False):
    """The state of a container, if it has ended."""

    terminated: TerminatedContainer | None = None


class ContainerReport(ObjectPart, frozen=True, rename="camel", gc=False):
    """One container as its kubelet reports it."""

    state: ContainerStates = ContainerStates()


class PodReport(ObjectPart, frozen=True, rename="camel", gc=False):
    """A pod's status."""

    phase: str = "Pending"
    start_time: str | None = None
    container_statuses: list[ContainerReport] | None = None


class PodObject(ObjectPart, frozen=True, rename="camel", gc=False):
    """A pod."""

    metadata: WorkloadMetadata
    spec: PodObjectSpec = PodObjectSpec()
    status: PodReport = PodReport()

    @property
    def has_ended(self) -> bool:
        """Whether it holds nothing any more."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def is_accepted(self) -> bool:
        """Whether a kubelet has begun with it."""
        return self.status.phase != "Pending" or bool(self.status.container_statuses)

    @property
    def is_gated(self) -> bool:
        """Whether our gate holds it."""
        return any(gate.name == QUEUE for gate in self.spec.scheduling_gates or ())


class RunPolicy(ObjectPart, frozen=True, rename="camel", gc=False):
    """spec.runPolicy of Kubeflow's kinds."""

    suspend: bool | None = None


class SuspendableSpec(ObjectPart, frozen=True, rename="camel", gc=False):
    """The switch of a Job and the like."""

    suspend: bool | None = None
    run_policy: RunPolicy = RunPolicy()

    @property
    def is_suspended(self) -> bool:
        """Whether it is to have no pods."""
        return bool(self.suspend or self.run_policy.suspend)


class WorkloadCondition(ObjectPart, frozen=True, rename="camel", gc=False):
    """One of status.conditions."""

    type: str
    status: str = ""


class WorkloadReport(ObjectPart, frozen=True, rename="camel", gc=False):
    """Whether it has ended."""

    conditions: list[WorkloadCondition] | None = None
    job_deployment_status: str = ""


class WorkloadObject(ObjectPart, frozen=True, rename="camel", gc=False):
    """A Job or the like."""

    metadata: WorkloadMetadata
    spec: SuspendableSpec = SuspendableSpec()
    status: WorkloadReport = WorkloadReport()

    @property
    def has_ended(self) -> bool:
        """Whether no pod of it is to come."""
        ends = {"Complete", "Completed", "Succeeded", "Failed"}
        if self.status.job_deployment_status in ends:
            return True
        conditions = self.status.conditions or ()
        return any(each.type in ends and each.status == "True" for each in conditions)


def _amount(container: AskedByContainer, resource: str) -> int:
    """Devices are whole; what is no number asks for none."""
    text = str((container.resources.limits or {}).get(resource, 0))
    return int(text[:9]) if text.isdecimal() else 0
