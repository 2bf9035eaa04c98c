"""Remedies for reasons: the sentences of docs/troubleshooting.md.

Reasons are plain strings here, because `api.conditions` takes half a second to import.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_AGAIN: Final = (
    "Then run drumline retry, or create a new job if its code has changed. A new job continues from"
    " checkpoints with the same checkpoint.path and this job as checkpoint.continueFrom."
)

# Each sentence starts with the action, because readers stop at the first clause.
BY_REASON: Final[Mapping[str, str]] = {
    "NoDurableStorage": "Set checkpoint.claimName or bucket. Without it, a restart of all pods"
    " begins at step 0.",
    "StartingPods": "If it persists, inspect its pods with kubectl describe. A kubelet reports"
    " which claim, Secret or image is missing.",
    "PullingImages": "If the pull takes too long, inspect its pods with kubectl describe.",
    "WaitingForAgents": "If it persists, read the logs of the named pods with kubectl logs."
    " Common causes are a slow import or a volume that is being attached.",
    "StartBlocked": "Follow the message. The kubelet names the object that is missing or"
    " unavailable.",
    "StorageUnavailable": "Free space on the checkpoint claim or repair its storage. The job"
    " retries at least once a minute and then continues. It holds its GPUs"
    " meanwhile.",
    "Held": "Inspect the pods with drumline shell. They end at the time in the message. The job"
    " then fails or starts again. drumline stop ends them immediately.",
    "RanksEnded": "Make all ranks end together. Read the logs of the ranks that ended first to"
    " find out why they ended.",
    "LossNotFinite": "Stop the job. Lower the learning rate or check the data, then continue from a"
    " checkpoint of an earlier step.",
    "ProgressUnreadable": "Compare template.progress.patterns with the output of the pod with"
    " the lowest index. Without a match, step and loss are unknown."
    " Training continues.",
    "NoSteps": "Check what its ranks are doing: drumline logs, drumline shell. Common causes are"
    " a waiting data loader, a script after its loop, or a debugger. The condition"
    " clears with the next step.",
    "StaysIdle": "Check what its ranks are doing. If its queue requires it, the job is saved and"
    " suspended next. spec.whenIdle: Keep prevents this.",
    "IdleGpus": "Fix the cause of the idle time, and run drumline resume. The job continues from"
    " its saved state. For a shell, run drumline shell.",
    "StartDeadlineExceeded": "Inspect the named pods, and raise startDeadlineSeconds if programs"
    " are slow to start.",
    "StartFailed": "Follow the message, and create the job again.",
    "ApiRefused": "Read the message of the API server. It comes from a ResourceQuota, Pod"
    " Security or a webhook.",
    "DeviceFailed": "Check the GPUs of the node that the incident names (nvidia-smi, Xid in"
    " dmesg), and cordon it until they are repaired. This job avoids the node"
    " for an hour, but other jobs do not.",
    "SuspendedByUser": "Set suspend to false to continue the job.",
    "RestartsExhausted": f"Read the cause and the pods' logs, and fix it. {_AGAIN}",
    "NoProgress": "Read the cause, and fix it. The same step fails repeatedly, so restarts cannot"
    f" help. {_AGAIN}",
    "ActiveDeadlineExceeded": "Create a new job with the same checkpoint.path, this job as"
    " checkpoint.continueFrom, and a longer activeDeadlineSeconds.",
    "ConfigRefused": "Fix the field that the message names.",
    "MemoryExceeded": "Make the change in the message, or use a pool with larger GPUs.",
    "Unreadable": "Suspend the job and set the field that the message names again.",
    "OperatorError": "Report the message. It is a bug in the operator.",
    "CorruptCheckpoint": "Repair the storage, or set another checkpoint.path. See"
    " docs/checkpoints.md.",
    "InvalidConfig": "Fix the field that the message names.",
    "PriorityClassNotFound": "Fix priorityClassName, or create the class.",
    "QuotaExhausted": "Wait, stop one of the named holders, or raise the queue's nominalGpus.",
    "ClaimInUse": "Wait until the named pod ends, or name another claim.",
    "InsufficientGpus": "Wait, or add nodes.",
    "TopologyDoesNotFit": "Wait, or use topology.preferred instead of required.",
    "InsufficientResources": "Lower resources, or free resources on the nodes.",
    "NodesUnavailable": "Uncordon nodes, or fix nodeSelector, nodeAffinity and tolerations; the"
    " message has the counts.",
    "SchedulerError": "Report the message with the capture that it names. The scheduler retries"
    " the job. If you change its spec, it retries immediately.",
    "BackingOff": "It tries again by itself. If it comes back here, fix what the message names: the"
    " same cause stops every try.",
    "BehindHigherPriority": "Wait, or raise its priority.",
    "WouldDelayReservation": "Wait, or set activeDeadlineSeconds. A job with a short deadline"
    " may start earlier.",
    "UserLimit": "Wait for the user's other jobs, or raise the queue's userLimitGpus.",
    "WaitingForNodes": "Usually nothing. If it recurs after each timeout, check the limits and"
    " labels of the NodePool or node group. See docs/autoscaling.md.",
    "WaitingForGroup": "Create the other jobs of its group, or correct group.jobs.",
    "SweepLimit": "Wait, or raise sweep.maxParallel of this job.",
    "PredecessorFailed": "Delete the failed job and create it again, or change spec.after.",
    "PredecessorNotFound": "Create the job that spec.after names, or correct the name.",
    "CircularDependency": "Change spec.after of one of the jobs in the circle.",
    "CheckpointFolderInUse": "Wait until the named job ends, or delete this job and create it with"
    " another checkpoint.path. To continue from that job, set checkpoint.continueFrom.",
    "ExceedsQuota": "It can never start with this request. Request less, use another queue, or"
    " raise nominalGpus.",
    "ExceedsCluster": "It can never start with this request. Request less, or add nodes.",
    "PoolWithoutNodes": "Label nodes, or correct the selector of the GpuPool. Run drumline doctor.",
    "LevelLabelMissing": "Label the named nodes, or require no such topology level. Run drumline"
    " doctor.",
    "ResourceNotOffered": "Check the pods of the device plugin on the named nodes. Run drumline"
    " doctor.",
    "QueueNotFound": "Fix spec.queue, or create the queue.",
    "PoolNotFound": "Fix spec.gpuPool, or the queue's quotas.",
    "NoQuotaInPool": "Fix spec.gpuPool, add a quota to the queue, or create a deleted pool again.",
    "QueueHeld": "Wait for the queue's owner, or use another queue.",
    "BudgetSpent": "Wait until enough becomes available again, use another queue, or raise the"
    " limit of the queue's budget that the message names.",
    "ResourceNotAllowed": "Ask for GPUs by gpusPerNode, or add the device to auxiliaryResources of"
    " the GpuPool.",
    "CapacityTypeNotAccepted": "Use a queue with quota in such pools, or change spot of the"
    " queue or the job.",
    "PriceTooHigh": "Wait for a lower price, or raise maxPricePerGpuHour of the queue or the job.",
    "NamespaceNotAllowed": "Use another queue, or add the namespace to the queue.",
    "NamespaceTerminating": "Create the job in another namespace.",
    "PriorityTooHigh": "Use a lower priority class, or raise the queue's maxPriority.",
    "QueueDeleted": "Create the queue again.",
    "PoolDeleted": "Create the pool again.",
    "LabelsMoved": "Restore the labels of the nodes, or clone the job to place it anew.",
    "TopologyLevelUnknown": "Use a level of the pool's topologyLevels.",
}
"""Reasons that need a person. All other reasons resolve by themselves, or are as they should be."""

# A running job rejects changes of these fields (CEL rules of the CRD).
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
        "LevelLabelMissing",
        "ResourceNotOffered",
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
    "You can change its spec while it is suspended: set suspend to true, change the field, and"
    " set suspend to false."
)


ENDED: Final = (
    "It has ended, so a change of its spec has no effect. Create a changed copy: drumline clone JOB"
    " --set FIELD=VALUE, or drumline clone JOB -- COMMAND."
)


def advice_for(reason: str, *, suspended: bool, ended: bool = False) -> tuple[str, ...]:
    """Sentences; none where nothing has to be done.

    Args:
        reason: reason of the job's phase.
        suspended: whether its spec can be changed already.
        ended: whether it has succeeded or failed.
    """
    # No entry means that waiting is the right thing to do.
    what = BY_REASON.get(reason)
    # The sentence about suspending comes first, because the change fails without it.
    first = None
    if reason in IN_THE_SPEC and (ended or not suspended):
        first = ENDED if ended else SUSPEND_FIRST
    return tuple(sentence for sentence in (first, what) if sentence)


def page_of(reason: str) -> str:
    """Return the place of a reason in the documents; empty without a reason."""
    return f"docs/troubleshooting.md#{reason.lower()}" if reason else ""
