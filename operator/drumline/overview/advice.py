"""What to do about a reason: the sentences of docs/troubleshooting.md.

Reasons are words here: `api.conditions` has them all, and takes half a second to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BY_REASON: Final[Mapping[str, str]] = {
    "NoDurableStorage": "Name checkpoint.claimName or bucket: without it a restart of all pods"
    " begins at step 0.",
    "StartingPods": "If it lasts, look at its pods with kubectl describe: a kubelet says"
    " there which claim, Secret or image is missing.",
    "PullingImages": "If the pull lasts, look at its pods with kubectl describe.",
    "WaitingForAgents": "If it lasts, look at the pods that are named with kubectl logs: a"
    " slow import, a volume that is being attached.",
    "StartBlocked": "Do what the message says: the kubelet names what does not exist or"
    " cannot be had.",
    "StorageUnavailable": "Make room on the checkpoint claim or repair its storage: the job"
    " tries again at least once a minute and goes on by itself, and holds its GPUs meanwhile.",
    "Held": "Look into the pods with drumline shell; they end at the time that the message says,"
    " and the job then fails or starts again. drumline stop ends them at once.",
    "RanksEnded": "Let all ranks end together: look at the logs of those that ended for why"
    " they were done before the others.",
    "ProgressUnreadable": "Compare template.progress.patterns with what the pod of the lowest"
    " index prints: without a match its step and loss are unknown. Training goes on.",
    "NoSteps": "Look at what its ranks do: drumline logs, drumline shell. A loader that waits, a"
    " script that has ended its loop, a debugger. It goes on as before with its next step.",
    "StaysIdle": "The same; where its queue says so, it is saved and suspended next"
    " (spec.whenIdle: Keep keeps it).",
    "IdleGpus": "Fix why it stood still, and drumline resume it: it goes on at what it has saved."
    " A shell: drumline shell.",
    "StartDeadlineExceeded": "Look at the pods that are named, and raise"
    " startDeadlineSeconds where programs are slow to start.",
    "StartFailed": "Do what the message says, and create the job again.",
    "ApiRefused": "Read the message: it is the API server's own, of a ResourceQuota, Pod"
    " Security or a webhook.",
    "DeviceFailed": "Look at the GPUs of the node that the incident names (nvidia-smi, Xid in"
    " dmesg) and cordon it until they are mended: this job avoids it for an hour, others do not.",
    "SuspendedByUser": "Set suspend to false when it should go on.",
    "RestartsExhausted": "Read the cause and the pods' logs, fix it, and create a new job"
    " with the same checkpoint.path.",
    "NoProgress": "Read the cause: the same step fails again and again, so restarts cannot"
    " help. Fix it, and create a new job with the same checkpoint.path.",
    "ActiveDeadlineExceeded": "Create a new job with the same checkpoint.path and a longer"
    " activeDeadlineSeconds.",
    "ConfigRefused": "Fix the field that the message names.",
    "MemoryExceeded": "Make the change that the message names, or use a pool with larger GPUs.",
    "Unreadable": "Suspend the job and write the field that the message names anew.",
    "OperatorError": "Report the message: it is a defect of the operator.",
    "CorruptCheckpoint": "Repair the storage, or name another checkpoint.path; see"
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
    "SchedulerError": "Report the message with the capture that it names. The scheduler tries the"
    " job again by itself; a change of its spec is tried at once.",
    "BackingOff": "It tries again by itself. If it comes back here, fix what the message names: the"
    " same cause stops every try.",
    "BehindHigherPriority": "Wait, or raise its priority.",
    "WouldDelayReservation": "Wait, or state activeDeadlineSeconds: a job that is known to be short"
    " may go first.",
    "UserLimit": "Wait for the user's other jobs, or raise the queue's userLimitGpus.",
    "WaitingForNodes": "Nothing; if it comes back after each timeout, look at the limits and labels"
    " of the NodePool or node group; see docs/autoscaling.md.",
    "WaitingForGroup": "Create the other jobs of its group, or correct group.jobs.",
    "SweepLimit": "Wait, or raise sweep.maxParallel of this job.",
    "PredecessorFailed": "Delete the failed job and create it again, or change spec.after.",
    "PredecessorNotFound": "Create the job that spec.after names, or correct the name.",
    "CircularDependency": "Change spec.after of one of the jobs in the circle.",
    "ExceedsQuota": "It never starts like this: ask for less, use another queue, or raise"
    " nominalGpus.",
    "ExceedsCluster": "It never starts like this: ask for less, or add nodes.",
    "QueueNotFound": "Fix spec.queue, or create the queue.",
    "PoolNotFound": "Fix spec.gpuPool, or the queue's quotas.",
    "NoQuotaInPool": "Fix spec.gpuPool, or add a quota to the queue.",
    "QueueHeld": "Wait for the queue's owner, or use another queue.",
    "BudgetSpent": "Wait until enough has flowed back, use another queue, or raise what the"
    " message names of the queue's budget.",
    "ResourceNotAllowed": "Ask for GPUs by gpusPerNode, or add the device to auxiliaryResources of"
    " the GpuPool.",
    "CapacityTypeNotAccepted": "Use a queue with quota in such pools, or change spot of the queue"
    " or the job.",
    "PriceTooHigh": "Wait for a lower price, or raise maxPricePerGpuHour of the queue or the job.",
    "NamespaceNotAllowed": "Use another queue, or add the namespace to the queue's.",
    "PriorityTooHigh": "Use a lower priority class, or raise the queue's maxPriority.",
    "TopologyLevelUnknown": "Use a level of the pool's topologyLevels.",
}
"""Reasons that need a person. All other reasons resolve by themselves, or are as they should be."""

IN_THE_SPEC: Final = frozenset(
    {
        "InvalidConfig",
        "ConfigRefused",
        "MemoryExceeded",
        "NoDurableStorage",
        "ProgressUnreadable",
        "QueueHeld",
        "BudgetSpent",
        "CapacityTypeNotAccepted",
        "TopologyDoesNotFit",
        "InsufficientResources",
        "NodesUnavailable",
        "WaitingForGroup",
        "PredecessorFailed",
        "PredecessorNotFound",
        "CircularDependency",
        "ExceedsQuota",
        "ExceedsCluster",
        "QueueNotFound",
        "PoolNotFound",
        "NoQuotaInPool",
        "ResourceNotAllowed",
        "NamespaceNotAllowed",
        "TopologyLevelUnknown",
    }
)
"""Reasons whose remedy may be a field that `api.mutability` lets change only while the job is
suspended, whether or not it holds nodes."""
SUSPEND_FIRST: Final = (
    "Most of its spec changes only while it is suspended: set suspend to true first, and to false"
    " after the change."
)


def advice_for(reason: str, *, suspended: bool) -> tuple[str, ...]:
    """Sentences; none where nothing has to be done.

    Args:
        reason: of the job's phase.
        suspended: whether its spec can be changed already.
    """
    what = BY_REASON.get(reason)
    first = SUSPEND_FIRST if reason in IN_THE_SPEC and not suspended else None
    return tuple(sentence for sentence in (first, what) if sentence)
