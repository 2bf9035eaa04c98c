"""What to do about a job: the sentences of docs/operations.md, for this job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from drumline.api.conditions import Phase, Reason
from drumline.api.trainingjob import TrainingJob
from drumline.cli.formatting import many
from drumline.cli.report.model import IncidentReport, RestartBudget
from drumline_trainer.contract import FaultClass, plain

BY_REASON: Final[Mapping[str, str]] = {
    Reason.NO_DURABLE_STORAGE: "Name checkpoint.claimName: without it a restart of all pods begins"
    " at step 0.",
    Reason.STARTING_PODS: "If it lasts, look at its pods with kubectl describe: a kubelet says"
    " there which claim, Secret or image is missing.",
    Reason.PULLING_IMAGES: "If the pull lasts, look at its pods with kubectl describe.",
    Reason.WAITING_FOR_AGENTS: "If it lasts, look at the pods that are named with kubectl logs: a"
    " slow import, a volume that is being attached.",
    Reason.START_BLOCKED: "Do what the message says: the kubelet names what does not exist or"
    " cannot be had.",
    Reason.STORAGE_UNAVAILABLE: "Make room on the checkpoint claim or repair its storage: the job"
    " tries again at least once a minute and goes on by itself, and holds its GPUs meanwhile.",
    Reason.START_DEADLINE_EXCEEDED: "Look at the pods that are named, and raise"
    " startDeadlineSeconds where programs are slow to start.",
    Reason.START_FAILED: "Do what the message says, and create the job again.",
    Reason.API_REFUSED: "Read the message: it is the API server's own, of a ResourceQuota, Pod"
    " Security or a webhook.",
    Reason.SUSPENDED_BY_USER: "Set suspend to false when it should go on.",
    Reason.RESTARTS_EXHAUSTED: "Read the cause and the pods' logs, fix it, and create a new job"
    " with the same checkpoint.path.",
    Reason.NO_PROGRESS: "Read the cause: the same step fails again and again, so restarts cannot"
    " help. Fix it, and create a new job with the same checkpoint.path.",
    Reason.ACTIVE_DEADLINE_EXCEEDED: "Create a new job with the same checkpoint.path and a longer"
    " activeDeadlineSeconds.",
    Reason.CONFIG_REFUSED: "Fix the field that the message names.",
    Reason.MEMORY_EXCEEDED: "Make the change that the message names, or use a pool with larger"
    " GPUs.",
    Reason.UNREADABLE: "Suspend the job and write the field that the message names anew.",
    Reason.OPERATOR_ERROR: "Report the message: it is a defect of the operator.",
    Reason.CORRUPT_CHECKPOINT: "Repair the storage, or name another checkpoint.path; see"
    " docs/checkpoints.md.",
    "InvalidConfig": "Fix the field that the message names.",
    "PriorityClassNotFound": "Fix priorityClassName, or create the class.",
    "QuotaExhausted": "Wait, suspend one of the jobs that are named, or raise the queue's"
    " nominalGpus.",
    "InsufficientGpus": "Wait, or add nodes.",
    "TopologyDoesNotFit": "Wait, or ask for topology.preferred instead of required.",
    "InsufficientResources": "Lower resources, or make room on the nodes.",
    "NodesUnavailable": "Uncordon nodes, or fix nodeSelector, nodeAffinity and tolerations; the"
    " message has the counts.",
    "BackingOff": "It tries again by itself. If it comes back here, fix what the message names: the"
    " same cause stops every try.",
    "BehindHigherPriority": "Wait, or raise its priority.",
    "WouldDelayReservation": "Wait, or state activeDeadlineSeconds: a job that is known to be short"
    " may go first.",
    "UserLimit": "Wait for the user's other jobs, or raise the queue's userLimitGpus.",
    "WaitingForGroup": "Create the other jobs of its group, or correct group.jobs.",
    "ExceedsQuota": "It never starts like this: ask for less, use another queue, or raise"
    " nominalGpus.",
    "ExceedsCluster": "It never starts like this: ask for less, or add nodes.",
    "QueueNotFound": "Fix spec.queue, or create the queue.",
    "PoolNotFound": "Fix spec.gpuPool, or the queue's quotas.",
    "NoQuotaInPool": "Fix spec.gpuPool, or add a quota to the queue.",
    "NamespaceNotAllowed": "Use another queue, or add the namespace to the queue's.",
    "PriorityTooHigh": "Use a lower priority class, or raise the queue's maxPriority.",
    "TopologyLevelUnknown": "Use a level of the pool's topologyLevels.",
}
"""Reasons that need a person. All other reasons resolve by themselves, or are as they should be."""

_IN_THE_SPEC: Final = frozenset(
    {
        "InvalidConfig",
        "TopologyDoesNotFit",
        "InsufficientResources",
        "NodesUnavailable",
        "WaitingForGroup",
        "ExceedsQuota",
        "ExceedsCluster",
        "QueueNotFound",
        "PoolNotFound",
        "NoQuotaInPool",
        "NamespaceNotAllowed",
        "TopologyLevelUnknown",
    }
)
"""Reasons whose remedy may be a field that `api.mutability` lets change only while the job is
suspended, whether or not it holds nodes."""
_SUSPEND_FIRST: Final = (
    "Its spec can be changed while it is suspended: set suspend to true, change the field, and set"
    " suspend to false."
)

_BY_CLASS: Final[Mapping[str, str]] = {
    FaultClass.APPLICATION: "the next error of the training code ends the job: fix its cause, or"
    " raise recovery.maxRestarts",
    FaultClass.OUT_OF_MEMORY: "the next rank that runs out of memory ends the job: lower"
    " the micro-batch or the model, or raise resources.memory",
    FaultClass.HANG: "the next rank that hangs ends the job: find out where it hung (the"
    " cause names step and phase)",
    FaultClass.INFRASTRUCTURE: "the next lost pod ends the job: raise"
    " recovery.maxInfrastructureRestarts, or find out what takes the nodes",
}
_SUSPECT_INCIDENTS: Final = 3


def next_steps(
    job: TrainingJob, *, incidents: tuple[IncidentReport, ...], budgets: tuple[RestartBudget, ...]
) -> tuple[str, ...]:
    """Sentences, the most urgent first; none when there is nothing to do."""
    return tuple(dict.fromkeys(_advice(job, incidents=incidents, budgets=budgets)))


def _advice(
    job: TrainingJob, *, incidents: tuple[IncidentReport, ...], budgets: tuple[RestartBudget, ...]
) -> Iterator[str]:
    status = job.status
    if status is None or status.phase is None:
        yield (
            "If it stays like this, look for an operator that leads:"
            " kubectl get lease --namespace drumline-system."
        )
        return
    reason = plain(status.reason or "")
    if (advice := BY_REASON.get(reason)) is not None:
        yield advice
    if reason in _IN_THE_SPEC and not job.spec.suspend:
        yield _SUSPEND_FIRST
    if status.phase in {Phase.SUCCEEDED, Phase.FAILED}:
        return
    reasons = {condition.reason for condition in status.conditions or []}
    if Reason.NO_DURABLE_STORAGE in reasons:
        yield BY_REASON[Reason.NO_DURABLE_STORAGE]
    for budget in budgets:
        if budget.left == 0 and budget.used:
            yield f"{budget.fault_class} restarts are used up; {_BY_CLASS[budget.fault_class]}."
    yield from _suspects(incidents)


def _suspects(incidents: tuple[IncidentReport, ...]) -> Iterator[str]:
    """A node that is at fault again and again is broken, whatever it says of itself."""
    nodes = Counter(incident.node for incident in incidents if incident.node)
    for node, times in nodes.most_common():
        if times >= _SUSPECT_INCIDENTS:
            yield (
                f"Node {node} was at fault in {times} of the last"
                f" {many(len(incidents), 'incident')}: cordon it and have it looked at."
            )
