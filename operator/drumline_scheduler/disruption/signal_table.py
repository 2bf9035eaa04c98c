"""Table of signals that are one taint, label or condition, with the disruption and its notice.

`notice_seconds` is the component's default, counted from the time of the taint or condition if it
has one. Signals that depend on more than one field of the node are functions in `signals`.

These are left out on purpose:

* `not-ready` and `unreachable`: a node whose kubelet is silent may still train. The silence of its
  agent decides.
* Pressure taints: they only repel new pods.
* Labels that describe a node, such as `gke-spot` and `scalesetpriority=spot`.
* Events of nodes: a watch that starts later never sees them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from drumline_api.conditions import DisruptionKind
from drumline_scheduler.disruption.model import Confidence


class Carrier(StrEnum):
    """The kind of field of a node in which a signal is."""

    TAINT = "taint"
    LABEL = "label"
    CONDITION = "condition"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One row: a taint, label or condition, and what it announces."""

    carrier: Carrier
    name: str
    """Key of the taint or label, or type of the condition."""
    kind: DisruptionKind
    value: str | None = None
    """Value of the taint or label, or status of the condition. None: any value."""
    confidence: Confidence = Confidence.CERTAIN
    notice_seconds: float | None = None


NTH = "aws-node-termination-handler"
HYPERPOD = "sagemaker.amazonaws.com"

AWS_SPOT_SECONDS = 120.0
AZURE_TERMINATE_SECONDS = 300.0
AZURE_REDEPLOY_SECONDS = 600.0
AZURE_REBOOT_SECONDS = 900.0
GKE_MAINTENANCE_SECONDS = 3600.0
KARPENTER_REPAIR_SECONDS = 1800.0
"""Time for which Karpenter's node repair tolerates an unhealthy node."""

_AWS = (
    Signal(
        carrier=Carrier.TAINT,
        name=f"{NTH}/spot-itn",
        kind=DisruptionKind.SPOT_RECLAIM,
        notice_seconds=AWS_SPOT_SECONDS,
    ),
    Signal(  # a reclaim may follow in minutes, in hours or never
        carrier=Carrier.TAINT,
        name=f"{NTH}/rebalance-recommendation",
        kind=DisruptionKind.SPOT_RECLAIM,
        confidence=Confidence.LIKELY,
    ),
    Signal(
        carrier=Carrier.TAINT, name=f"{NTH}/scheduled-maintenance", kind=DisruptionKind.MAINTENANCE
    ),
    Signal(
        carrier=Carrier.TAINT,
        name=f"{NTH}/asg-lifecycle-termination",
        kind=DisruptionKind.SCALE_DOWN,
    ),
    Signal(  # set when a reboot is expected, and removed after it
        carrier=Carrier.LABEL,
        name=f"{NTH}/action",
        value="UncordonAfterReboot",
        kind=DisruptionKind.MAINTENANCE,
    ),
    Signal(
        carrier=Carrier.LABEL,
        name=f"{HYPERPOD}/node-health-status",
        value="Unschedulable",
        kind=DisruptionKind.UNHEALTHY,
        confidence=Confidence.SUSPECT,
    ),
    Signal(
        carrier=Carrier.LABEL,
        name=f"{HYPERPOD}/node-health-status",
        value="UnschedulablePendingReplacement",
        kind=DisruptionKind.HARDWARE,
    ),
    Signal(
        carrier=Carrier.LABEL,
        name=f"{HYPERPOD}/node-health-status",
        value="UnschedulablePendingReboot",
        kind=DisruptionKind.UNHEALTHY,
    ),
    Signal(
        carrier=Carrier.LABEL,
        name=f"{HYPERPOD}/deep-health-check-status",
        value="InProgress",
        kind=DisruptionKind.MAINTENANCE,
        confidence=Confidence.SUSPECT,
    ),
    Signal(
        carrier=Carrier.LABEL,
        name=f"{HYPERPOD}/deep-health-check-status",
        value="Failed",
        kind=DisruptionKind.HARDWARE,
    ),
    *(
        Signal(
            carrier=Carrier.CONDITION,
            name=name,
            value="False",
            kind=DisruptionKind.UNHEALTHY,
            notice_seconds=KARPENTER_REPAIR_SECONDS,
        )
        for name in ("KernelReady", "NetworkingReady", "StorageReady", "ContainerRuntimeReady")
    ),
)

_GOOGLE = (
    Signal(
        carrier=Carrier.LABEL,
        name="cloud.google.com/active-node-maintenance",
        value="ONGOING",
        kind=DisruptionKind.MAINTENANCE,
        notice_seconds=GKE_MAINTENANCE_SECONDS,
    ),
)

_AZURE = (
    Signal(
        carrier=Carrier.TAINT,
        name="remediator.kubernetes.azure.com/unschedulable",
        kind=DisruptionKind.UNHEALTHY,
    ),
    Signal(
        carrier=Carrier.CONDITION,
        name="TerminateScheduled",
        value="True",
        kind=DisruptionKind.SCALE_DOWN,
        notice_seconds=AZURE_TERMINATE_SECONDS,
    ),
    Signal(
        carrier=Carrier.CONDITION,
        name="RedeployScheduled",
        value="True",
        kind=DisruptionKind.MAINTENANCE,
        notice_seconds=AZURE_REDEPLOY_SECONDS,
    ),
    Signal(
        carrier=Carrier.CONDITION,
        name="RebootScheduled",
        value="True",
        kind=DisruptionKind.MAINTENANCE,
        notice_seconds=AZURE_REBOOT_SECONDS,
    ),
    Signal(  # a pause of seconds: no member has to leave
        carrier=Carrier.CONDITION,
        name="FreezeScheduled",
        value="True",
        kind=DisruptionKind.MAINTENANCE,
        confidence=Confidence.POSSIBLE,
        notice_seconds=AZURE_REBOOT_SECONDS,
    ),
)

_AUTOSCALER = (
    Signal(  # idle enough to be removed; the taint is removed when the node is used again
        carrier=Carrier.TAINT,
        name="DeletionCandidateOfClusterAutoscaler",
        kind=DisruptionKind.SCALE_DOWN,
        confidence=Confidence.POSSIBLE,
    ),
)

_PROBLEM_DETECTOR = (
    *(
        Signal(carrier=Carrier.CONDITION, name=name, value="True", kind=DisruptionKind.UNHEALTHY)
        for name in ("KernelDeadlock", "ReadonlyFilesystem", "CorruptDockerOverlay2")
    ),
    *(
        Signal(  # bad for new pods; running pods are not affected
            carrier=Carrier.CONDITION,
            name=name,
            value="True",
            kind=DisruptionKind.UNHEALTHY,
            confidence=Confidence.SUSPECT,
        )
        for name in (
            "FrequentKubeletRestart",
            "FrequentContainerdRestart",
            "FrequentDockerRestart",
            "KubeletProblem",
            "FDPressure",
        )
    ),
)

_NVSENTINEL = (
    Signal(carrier=Carrier.TAINT, name="nvidia.com/gpu-xid-error", kind=DisruptionKind.HARDWARE),
    *(
        Signal(
            carrier=Carrier.LABEL,
            name="dgxc.nvidia.com/nvsentinel-state",
            value=value,
            kind=DisruptionKind.UNHEALTHY,
        )
        for value in (
            "quarantined",
            "draining",
            "drain-succeeded",
            "drain-failed",
            "remediating",
            "remediation-failed",
        )
    ),
)

TABLE: tuple[Signal, ...] = (
    *_AWS,
    *_GOOGLE,
    *_AZURE,
    *_AUTOSCALER,
    *_PROBLEM_DETECTOR,
    *_NVSENTINEL,
)
"""All rows. Their order does not matter."""
