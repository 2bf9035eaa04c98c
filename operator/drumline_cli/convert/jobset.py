"""JobSet (jobset.x-k8s.io/v1alpha2), with Kueue's labels on it.

https://github.com/kubernetes-sigs/jobset/blob/main/api/jobset/v1alpha2/jobset_types.go
"""

from __future__ import annotations

from typing import Final

from drumline_cli.convert.assembly import PodRole, head_of, job_of_roles
from drumline_cli.convert.fields import Fields
from drumline_cli.convert.model import Conversion, Json, Wanted

_SPEC: Final = {
    "network": "pods find each other as NAME-INDEX in /etc/hosts",
    "coordinator": "MASTER_ADDR and JAX_COORDINATOR_ADDRESS contain the address of pod 0",
    "startupPolicy": "all pods start together",
    "managedBy": "Drumline runs the TrainingJob",
}
_FAILURE: Final = {
    "rules": "spec.recovery limits restarts by cause",
    "restartStrategy": "template.launch restarts processes in place, and replaces only lost pods",
}
_JOB: Final = {
    "backoffLimit": "spec.recovery limits restarts, of the gang as a whole",
    "backoffLimitPerIndex": "spec.recovery limits restarts, of the gang as a whole",
    "completionMode": "pods are numbered: NODE_RANK",
    "podFailurePolicy": "spec.recovery limits restarts by cause",
    "podReplacementPolicy": "a lost pod is replaced after the old pod has ended",
    "ttlSecondsAfterFinished": "the JobSet's own counts",
    "suspend": "the JobSet's own counts",
}


def convert_jobset(document: Fields, wanted: Wanted) -> Conversion:
    """Return the JobSet as a TrainingJob.

    Raises:
        ConversionError: it cannot be one.
    """
    head = head_of(document)
    fields = document.below("spec")
    spec: Json = {}
    restarts = fields.below("failurePolicy")
    limit = restarts.number("maxRestarts", to="spec.recovery.maxRestarts")
    if limit is not None:
        spec["recovery"] = {"maxRestarts": limit}
    seconds = fields.number("ttlSecondsAfterFinished", to="spec.ttlSecondsAfterFinished")
    if seconds is not None:
        spec["ttlSecondsAfterFinished"] = seconds
    if fields.flag("suspend", to="spec.suspend"):
        spec["suspend"] = True
        fields.notes.check(
            fields.at("suspend"), "Kueue sets it; remove spec.suspend if no user set it"
        )
    deciding = _deciding(fields.below("successPolicy"))
    roles = [_role(entry, spec, deciding=deciding) for entry in fields.each("replicatedJobs")]
    for name, why in _FAILURE.items():
        restarts.leave_out(name, why)
    for name, why in _SPEC.items():
        fields.leave_out(name, why)
    return job_of_roles(document, roles, head=head, spec=spec, wanted=wanted)


def _deciding(policy: Fields) -> frozenset[str]:
    """Return the replicated jobs whose success is the JobSet's. None: all of them."""
    targets = policy.texts("targetReplicatedJobs", to="spec.roles, completesJob")
    operator = policy.text("operator")
    if operator == "Any":
        policy.notes.left_out(
            policy.at("operator"),
            "a job succeeds when all pods that determine its result have succeeded",
        )
    return frozenset(targets)


def _role(entry: Fields, spec: Json, *, deciding: frozenset[str]) -> PodRole:
    """Convert a replicated job to a role of `replicas` x `parallelism` pods."""
    name = entry.text("name") or "role"
    entry.leave_out("groupName", "all pods of a TrainingJob form one group")
    entry.leave_out("dependsOn", "all pods start together; init containers run before the command")
    jobs = entry.number("replicas", to="spec.nodes")
    job_template = entry.below("template")
    job = job_template.below("spec")
    pods = job.number("parallelism", to="spec.nodes")
    completions = job.number("completions")
    if completions is not None and completions != (1 if pods is None else pods):
        job.notes.left_out(job.at("completions"), "every pod of a gang runs to completion once")
    deadline = job.number("activeDeadlineSeconds", to="spec.activeDeadlineSeconds")
    if deadline is not None:
        spec["activeDeadlineSeconds"] = deadline
    for field, why in _JOB.items():
        job.leave_out(field, why)
    return PodRole(
        fields=entry,
        template=job.below("template"),
        name=name,
        completes=name in deciding,
        replicas=(1 if jobs is None else jobs) * (1 if pods is None else pods),
    )
