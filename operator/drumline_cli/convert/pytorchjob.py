"""Kubeflow's PyTorchJob (kubeflow.org/v1).

https://github.com/kubeflow/training-operator/blob/master/pkg/apis/kubeflow.org/v1/pytorch_types.go
"""

from __future__ import annotations

from typing import Any, Final

from drumline_cli.convert.assembly import PodRole, head_of, job_of_roles
from drumline_cli.convert.fields import Fields
from drumline_cli.convert.model import Conversion, ConversionError, Json, Wanted

_CONTAINER: Final = "pytorch"
_RUN_POLICY: Final = {
    "cleanPodPolicy": "ended pods hold no GPU",
    "managedBy": "Drumline runs the TrainingJob",
}
_SCHEDULING: Final = {
    "minAvailable": "all pods start together, or none",
    "minResources": "all pods start together, or none",
    "scheduleTimeoutSeconds": "a job waits in its queue without a time limit",
}


def convert_pytorchjob(document: Fields, wanted: Wanted) -> Conversion:
    """Return the PyTorchJob as a TrainingJob.

    Raises:
        ConversionError: it cannot be one.
    """
    head = head_of(document)
    fields = document.below("spec")
    spec = run_policy(fields.below("runPolicy"))
    _elastic(fields.below("elasticPolicy"), spec)
    replicas = fields.below("pytorchReplicaSpecs")
    roles: list[PodRole] = []
    for name in ("Master", "Worker"):
        if replicas.has(name):
            role = replicas.below(name)
            role.leave_out("restartPolicy", "spec.recovery limits restarts by cause")
            number = role.number("replicas", to="spec.nodes")
            template = role.below("template")
            roles.append(
                PodRole(
                    fields=role,
                    template=template,
                    name=name,
                    replicas=1 if number is None else number,
                )
            )
    if not roles:
        raise ConversionError(path=replicas.path, problem="needs a Master or a Worker")
    processes = fields.text("nprocPerNode")
    if processes is not None:
        fields.notes.check(
            fields.at("nprocPerNode"), "a pod has one rank per GPU: set spec.gpusPerNode"
        )
    return job_of_roles(
        document, roles, head=head, spec=spec, wanted=wanted, container_name=_CONTAINER
    )


def run_policy(policy: Fields) -> Json:
    """Convert a Kubeflow job's limits, suspension, queue and priority class."""
    spec: dict[str, Any] = {}
    numbers = ("ttlSecondsAfterFinished", "activeDeadlineSeconds")
    for name in numbers:
        value = policy.number(name, to=f"spec.{name}")
        if value is not None:
            spec[name] = value
    limit = policy.number("backoffLimit", to="spec.recovery.maxRestarts")
    if limit is not None:
        spec["recovery"] = {"maxRestarts": limit}
    if policy.flag("suspend", to="spec.suspend"):
        spec["suspend"] = True
    scheduling = policy.below("schedulingPolicy")
    for name, ours in (("queue", "queue"), ("priorityClass", "priorityClassName")):
        text = scheduling.text(name, to=f"spec.{ours}")
        if text is not None:
            spec[ours] = text
    for name, why in _SCHEDULING.items():
        scheduling.leave_out(name, why)
    for name, why in _RUN_POLICY.items():
        policy.leave_out(name, why)
    return spec


def _elastic(policy: Fields, spec: Json) -> None:
    limit = policy.number("maxRestarts", to="spec.recovery.maxRestarts")
    if limit is not None:
        spec["recovery"] = {"maxRestarts": limit}
    for name in ("minReplicas", "maxReplicas", "metrics"):
        policy.leave_out(
            name,
            "spec.minNodes needs template.launch; a template without it has a fixed number of pods",
        )
    for name in ("rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone"):
        policy.leave_out(name, "the launcher's variables are set: MASTER_ADDR, PET_..., NODE_RANK")
    policy.leave_out("nProcPerNode", "a pod has one rank per GPU: set spec.gpusPerNode")
