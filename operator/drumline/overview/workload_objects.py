"""Pods, Jobs and other workloads that name a queue, with the fields that rows read."""

from __future__ import annotations

from typing import Final

from drumline_api.objects.base import Metadata, ObjectPart
from drumline_api.objects.builtin import ENDS, Container, Pod, WorkloadStatus, has_ended

GROUP: Final = "drumline.dev"
QUEUE: Final = f"{GROUP}/queue"
"""The label, and the scheduling gate of the same name."""
JOB: Final = f"{GROUP}/job"
POD_GROUP: Final = f"{GROUP}/pod-group"
ADMITTED: Final = f"{GROUP}/admitted"
_JOB_SET: Final = "jobset.sigs.k8s.io/jobset-name"
_TEMPLATE_HASH: Final = "pod-template-hash"


class PodObject(Pod, frozen=True):
    """A pod."""

    @property
    def has_ended(self) -> bool:
        """Return whether it holds no resources any more."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def is_accepted(self) -> bool:
        """Return whether a kubelet has started it."""
        return self.status.phase != "Pending" or bool(self.status.container_statuses)

    @property
    def is_gated(self) -> bool:
        """Return whether our gate holds it."""
        return any(gate.name == QUEUE for gate in self.spec.scheduling_gates or ())

    def devices(self, resource: str) -> int:
        """Return the number of its devices: all containers together, or one init container."""
        beside = sum(_amount(each, resource) for each in self.spec.containers)
        before = (_amount(each, resource) for each in self.spec.init_containers or ())
        return max((beside, *before))


class RunPolicy(ObjectPart, frozen=True):
    """spec.runPolicy of Kubeflow's kinds."""

    suspend: bool | None = None


class SuspendableSpec(ObjectPart, frozen=True):
    """The switch of a Job and the like."""

    suspend: bool | None = None
    run_policy: RunPolicy = RunPolicy()

    @property
    def is_suspended(self) -> bool:
        """Return whether it must have no pods."""
        return bool(self.suspend or self.run_policy.suspend)


class WorkloadObject(ObjectPart, frozen=True):
    """A Job or the like."""

    metadata: Metadata
    spec: SuspendableSpec = SuspendableSpec()
    status: WorkloadStatus = WorkloadStatus()

    @property
    def has_ended(self) -> bool:
        """Return whether it will get no more pods."""
        return self.status.job_deployment_status in ENDS or has_ended(self.status.conditions)


def is_admitted(asked: PodObject | WorkloadObject) -> bool:
    """Return whether the operator has admitted it."""
    return ADMITTED in (asked.metadata.annotations or {})


def workload_of(pod: PodObject) -> str:
    """`namespace/kinds/name` of what made it, as far as its owner and its labels say."""
    metadata = pod.metadata
    if job_set := metadata.label(_JOB_SET):
        return f"{metadata.namespace}/jobsets/{job_set}"
    owner = next((each for each in metadata.owner_references or () if each.controller), None)
    if owner is None:
        return f"{metadata.namespace}/pods/{metadata.name}"
    suffix = f"-{metadata.label(_TEMPLATE_HASH)}"
    if owner.kind == "ReplicaSet" and suffix != "-" and owner.name.endswith(suffix):
        return f"{metadata.namespace}/deployments/{owner.name.removesuffix(suffix)}"
    return f"{metadata.namespace}/{owner.kind.lower()}s/{owner.name}"


def _amount(container: Container, resource: str) -> int:
    """Return a number of devices. An invalid text counts as 0."""
    text = str((container.resources.limits or {}).get(resource, 0))
    return int(text[:9]) if text.isdecimal() else 0
