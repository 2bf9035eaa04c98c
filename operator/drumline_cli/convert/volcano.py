"""Volcano's Job (batch.volcano.sh/v1alpha1).

https://github.com/volcano-sh/apis/blob/master/pkg/apis/batch/v1alpha1/job.go
"""

from __future__ import annotations

from typing import Final

from drumline_cli.convert.assembly import PodRole, head_of, job_of_roles
from drumline_cli.convert.fields import Fields
from drumline_cli.convert.model import Conversion, Json, Wanted

_PLUGINS: Final = {
    "pytorch": "the launcher's variables are set: MASTER_ADDR, MASTER_PORT, NODE_RANK, RANK",
    "svc": "pods find each other as NAME-INDEX in /etc/hosts",
    "ssh": "Drumline creates no SSH keys: mount a Secret with them, as in examples/roles.yaml",
    "env": "VC_TASK_INDEX is NODE_RANK",
    "mpi": "MPI's variables contain the path of the host file; mount a Secret with SSH keys",
}
_TASK: Final = {
    "topologyPolicy": "the kubelet's topology manager decides",
    "maxRetry": "spec.recovery limits restarts, of the gang as a whole",
    "dependsOn": "all pods start together; init containers run before the command",
}
_SPEC: Final = {
    "schedulerName": "Drumline places the pods itself",
    "policies": "spec.recovery limits restarts by cause; a job ends when all its pods have ended",
    "runningEstimate": "spec.activeDeadlineSeconds is a limit, not an estimate",
    "minSuccess": "a job succeeds when all its pods have succeeded",
    "networkTopology": "tiers correspond to levels of the GpuPool: set spec.topology.required"
    " (hard) or spec.topology.preferred (soft)",
}


def convert_volcano(document: Fields, wanted: Wanted) -> Conversion:
    """Return the Volcano Job as a TrainingJob.

    Raises:
        ConversionError: it cannot be one.
    """
    head = head_of(document)
    fields = document.below("spec")
    spec: Json = {}
    for name in ("queue", "priorityClassName"):
        text = fields.text(name, to=f"spec.{name}")
        if text is not None:
            spec[name] = text
    seconds = fields.number("ttlSecondsAfterFinished", to="spec.ttlSecondsAfterFinished")
    if seconds is not None:
        spec["ttlSecondsAfterFinished"] = seconds
    retries = fields.number("maxRetry", to="spec.recovery.maxRestarts")
    if retries is not None:
        spec["recovery"] = {"maxRestarts": retries}
    _volumes(fields, spec)
    roles = [_role(entry) for entry in fields.each("tasks")]
    least, pods = fields.number("minAvailable"), sum(role.replicas for role in roles)
    if least is not None and least < pods:
        fields.notes.left_out(
            fields.at("minAvailable"), f"all {pods} pods start together, or none; not {least}"
        )
    elif least is not None:
        fields.notes.carried(fields.at("minAvailable"), "spec.nodes: all pods start together")
    plugins = fields.below("plugins")
    for name in plugins.names(empty=True):
        plugins.raw(name)
        fields.notes.left_out(plugins.at(name), _PLUGINS.get(name, "Drumline has no plugins"))
    for name, why in _SPEC.items():
        fields.leave_out(name, why)
    return job_of_roles(document, roles, head=head, spec=spec, wanted=wanted)


def _role(entry: Fields) -> PodRole:
    name = entry.text("name") or "task"
    completes = _completes(entry)
    least, replicas = entry.number("minAvailable"), entry.number("replicas", to="spec.nodes")
    pods = 1 if replicas is None else replicas
    if least is not None and least != pods:
        entry.notes.left_out(entry.at("minAvailable"), "all pods start together, or none")
    for field, why in _TASK.items():
        entry.leave_out(field, why)
    return PodRole(
        fields=entry,
        template=entry.below("template"),
        name=name,
        replicas=pods,
        completes=completes,
    )


def _completes(entry: Fields) -> bool:
    """Return whether a policy ends the job with this task, as with a launcher."""
    completes = False
    for policy in entry.each("policies"):
        events = {policy.text("event"), *policy.texts("events")}
        if "TaskCompleted" in events and policy.text("action") == "CompleteJob":
            completes = True
            entry.notes.carried(policy.path, "set completesJob of the role")
        else:
            policy.forget()
            entry.notes.left_out(policy.path, "spec.recovery limits restarts by cause")
    return completes


def _volumes(fields: Fields, spec: Json) -> None:
    """Convert the claims that all pods mount."""
    volumes: list[Json] = []
    mounts: list[Json] = []
    for entry in fields.each("volumes"):
        claim = entry.text("volumeClaimName")
        folder = entry.text("mountPath")
        entry.leave_out("volumeClaim", "create the claim first, and name it in template.volumes")
        if claim is None or folder is None:
            fields.notes.left_out(entry.path, "the volume needs an existing claim")
            continue
        name = f"job-volume-{len(volumes)}"  # no pod's own volume has this name
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": claim}})
        mounts.append({"name": name, "mountPath": folder})
        fields.notes.carried(entry.path, "spec.template.volumes")
    if volumes:
        spec.update(volumes=volumes, volumeMounts=mounts)
