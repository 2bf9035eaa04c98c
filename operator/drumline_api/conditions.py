"""Define conditions, their reasons, and the phase that is derived from them.

All lists are closed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from drumline_api.base import ApiModel, Timestamp


class ConditionType(StrEnum):
    """Types of conditions. An absent condition is unknown, an absent `Stalled` is false.

    All three kinds have `Ready` and `Stalled`, with the meaning that kstatus gives them. A ready
    object matches its spec (Current), another object is in progress (InProgress), and a stalled
    object needs a change of its spec (Failed).
    https://github.com/kubernetes-sigs/cli-utils/tree/master/pkg/kstatus
    """

    READY = "Ready"
    STALLED = "Stalled"
    # of a GpuPool
    DEGRADED = "Degraded"
    OVERLAPPING = "Overlapping"
    # of a TrainingQueue
    INEFFECTIVE = "Ineffective"
    OVERRIDING = "Overriding"
    # of a TrainingJob
    ADMITTED = "Admitted"
    PLACED = "Placed"
    RUNNING = "Running"
    CHECKPOINTED = "Checkpointed"
    DISRUPTED = "Disrupted"
    RECOVERING = "Recovering"
    IDLE = "Idle"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INVALID_CONFIG = "InvalidConfig"
    EXCEEDS_MEMORY = "ExceedsMemory"
    ORPHANED = "Orphaned"
    DOMAIN_BROKEN = "DomainBroken"


class Phase(StrEnum):
    """Summary of the conditions for `kubectl get`. No decision depends on it."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class Reason(StrEnum):
    """Reasons of conditions. The scheduler's `BlockReason` adds the reasons of Placed=False."""

    # Admitted, Placed, Running
    PLACED = "Placed"
    STARTING_PODS = "StartingPods"
    PULLING_IMAGES = "PullingImages"
    WAITING_FOR_AGENTS = "WaitingForAgents"
    TRAINING = "Training"
    STORAGE_UNAVAILABLE = "StorageUnavailable"
    HELD = "Held"
    RANKS_ENDED = "RanksEnded"
    LOSS_NOT_FINITE = "LossNotFinite"
    PROGRESS_UNREADABLE = "ProgressUnreadable"
    # Checkpointed
    MANIFEST_VERIFIED = "ManifestVerified"
    CHECKPOINT_REPORTED = "CheckpointReported"
    NO_DURABLE_STORAGE = "NoDurableStorage"
    # Recovering
    POD_FAILED = "PodFailed"
    OUT_OF_MEMORY = "OutOfMemory"
    HANG = "Hang"
    POD_LOST = "PodLost"
    NODE_LOST = "NodeLost"
    DEVICE_FAILED = "DeviceFailed"
    MEMBER_SILENT = "MemberSilent"
    MEMBER_PLACED = "MemberPlaced"
    SHRUNK = "Shrunk"
    GROWS = "Grows"
    KUBELET_REFUSED = "KubeletRefused"
    RESIZED = "Resized"
    MEMBERS_CHANGED = "MembersChanged"
    START_BLOCKED = "StartBlocked"
    START_DEADLINE_EXCEEDED = "StartDeadlineExceeded"
    API_REFUSED = "ApiRefused"
    # Disrupted
    PREEMPTED = "Preempted"
    QUEUE_STOPPED = "QueueStopped"
    NODE_DISRUPTED = "NodeDisrupted"
    WITHDRAWN = "Withdrawn"
    # Idle
    NO_STEPS = "NoSteps"
    STAYS_IDLE = "StaysIdle"
    # Suspended
    SUSPENDED_BY_USER = "SuspendedByUser"
    IDLE_GPUS = "IdleGpus"
    RESUMED = "Resumed"
    # ExceedsMemory, InvalidConfig
    MEMORY_EXCEEDED = "MemoryExceeded"
    MEMORY_SUFFICES = "MemorySuffices"
    # InvalidConfig
    UNREADABLE = "Unreadable"
    OPERATOR_ERROR = "OperatorError"
    # Orphaned, DomainBroken
    QUEUE_DELETED = "QueueDeleted"
    POOL_DELETED = "PoolDeleted"
    LABELS_MOVED = "LabelsMoved"
    RESTORED = "Restored"
    # terminal
    COMPLETED = "Completed"
    START_FAILED = "StartFailed"
    RESTARTS_EXHAUSTED = "RestartsExhausted"
    NO_PROGRESS = "NoProgress"
    ACTIVE_DEADLINE_EXCEEDED = "ActiveDeadlineExceeded"
    CONFIG_REFUSED = "ConfigRefused"
    CORRUPT_CHECKPOINT = "CorruptCheckpoint"


class PlatformReason(StrEnum):
    """Reasons of conditions of a GpuPool or a TrainingQueue."""

    NODES_OVERLAP = "NodesOverlap"
    ACCEPTED = "Accepted"
    UNREADABLE = "Unreadable"
    GPU_POOL_NOT_FOUND = "GpuPoolNotFound"
    PARENT_NOT_FOUND = "ParentNotFound"
    PARENT_CYCLE = "ParentCycle"
    NAMESPACE_NOT_FOUND = "NamespaceNotFound"
    QUOTA_ABOVE_POOL = "QuotaAbovePool"
    GPUS_MISSING = "GpusMissing"
    EVICTION_NOT_ALLOWED = "EvictionNotAllowed"
    NO_GUARDED_POOL = "NoGuardedPool"
    OVERRIDE_GRANTED = "OverrideGranted"
    OVERRIDE_ENDED = "OverrideEnded"


class DisruptionKind(StrEnum):
    """Reasons for a job, or its members on one node, to leave."""

    PREEMPTION = "Preemption"
    """Another job is entitled to the GPUs."""
    QUEUE_STOPPED = "QueueStopped"
    """The job's queue stops and releases the GPUs of its running jobs."""
    IDLE = "Idle"
    """The job's GPUs are idle, and its queue suspends idle jobs."""
    SPOT_RECLAIM = "SpotReclaim"
    MAINTENANCE = "Maintenance"
    DRAIN = "Drain"
    SCALE_DOWN = "ScaleDown"
    UNHEALTHY = "Unhealthy"
    HARDWARE = "Hardware"


class Condition(ApiModel):
    """A condition of the object, as in `metav1.Condition`."""

    type: Annotated[str, Field(max_length=316)]
    """Type of the condition."""
    status: Literal["True", "False", "Unknown"]
    """State of the condition: True, False or Unknown."""
    reason: Annotated[str, Field(max_length=1024)]
    """Reason, from a closed list."""
    message: Annotated[str, Field(max_length=2048)] = ""
    """Reason with figures and names."""
    last_transition_time: Timestamp
    """Time at which `status` last changed."""
    observed_generation: int | None = None
    """metadata.generation that the condition describes."""
