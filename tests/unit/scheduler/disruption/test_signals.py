"""One row a signal: the mark as its component sets it -> the disruption it announces."""

from __future__ import annotations

import pytest

from drumline_api.conditions import DisruptionKind
from drumline_scheduler.disruption.model import (
    ConditionFact,
    Confidence,
    Disruption,
    NodeFacts,
    TaintFact,
)
from drumline_scheduler.disruption.signals import (
    GPU_CONDITIONS,
    announced_disruptions,
    out_of_service,
)

NOW = 1_800_000_000.0
NTH = "aws-node-termination-handler"
HYPERPOD = "sagemaker.amazonaws.com"
CERTAIN, LIKELY = Confidence.CERTAIN, Confidence.LIKELY
SUSPECT, POSSIBLE = Confidence.SUSPECT, Confidence.POSSIBLE
SPOT, MAINTENANCE, DRAIN = (
    DisruptionKind.SPOT_RECLAIM,
    DisruptionKind.MAINTENANCE,
    DisruptionKind.DRAIN,
)
SCALE_DOWN, UNHEALTHY, HARDWARE = (
    DisruptionKind.SCALE_DOWN,
    DisruptionKind.UNHEALTHY,
    DisruptionKind.HARDWARE,
)


def tainted(key: str, value: str = "", **labels: str) -> NodeFacts:
    taint = TaintFact(key=key, effect="NoSchedule", value=value)
    return NodeFacts(name="n", taints=(taint,), labels=_keys(labels))


def labelled(key: str, value: str) -> NodeFacts:
    return NodeFacts(name="n", labels={key: value})


def condition(
    kind: str, status: str = "True", *, reason: str = "", message: str = "", since: float = NOW
) -> NodeFacts:
    fact = ConditionFact(type=kind, status=status, reason=reason, message=message, since=since)
    return NodeFacts(name="n", conditions=(fact,))


def _keys(labels: dict[str, str]) -> dict[str, str]:
    names = {"gke_spot": "cloud.google.com/gke-spot", "karpenter": "karpenter.sh/capacity-type"}
    return {names[name]: value for name, value in labels.items()}


ROWS: dict[str, tuple[NodeFacts, DisruptionKind, float | None, Confidence]] = {
    "cordon": (NodeFacts(name="n", unschedulable=True), DRAIN, None, LIKELY),
    "node object deleted": (NodeFacts(name="n", terminating=True), SCALE_DOWN, None, CERTAIN),
    "kubelet shuts down": (
        condition("Ready", "False", reason="KubeletNotReady", message="node is shutting down"),
        *(MAINTENANCE, NOW + 15, CERTAIN),
    ),
    "karpenter disrupts": (tainted("karpenter.sh/disrupted"), SCALE_DOWN, None, CERTAIN),
    "karpenter disrupts spot capacity": (
        tainted("karpenter.sh/disrupted", karpenter="spot"),
        *(SPOT, NOW + 120, CERTAIN),
    ),
    "karpenter states a deadline": (
        NodeFacts(
            name="n",
            taints=(TaintFact(key="karpenter.sh/disrupted", effect="NoSchedule"),),
            annotations={"karpenter.sh/nodeclaim-termination-timestamp": "2027-01-15T08:05:00Z"},
        ),
        *(SCALE_DOWN, NOW + 300, CERTAIN),
    ),
    "nth spot": (tainted(f"{NTH}/spot-itn", "spot-itn-0a1b"), SPOT, NOW + 120, CERTAIN),
    "nth rebalance": (tainted(f"{NTH}/rebalance-recommendation"), SPOT, None, LIKELY),
    "nth maintenance": (tainted(f"{NTH}/scheduled-maintenance"), MAINTENANCE, None, CERTAIN),
    "nth asg": (tainted(f"{NTH}/asg-lifecycle-termination"), SCALE_DOWN, None, CERTAIN),
    "nth reboots": (labelled(f"{NTH}/action", "UncordonAfterReboot"), MAINTENANCE, None, CERTAIN),
    "eks kernel": (condition("KernelReady", "False"), UNHEALTHY, NOW + 1800, CERTAIN),
    "eks network": (condition("NetworkingReady", "False"), UNHEALTHY, NOW + 1800, CERTAIN),
    "eks storage": (condition("StorageReady", "False"), UNHEALTHY, NOW + 1800, CERTAIN),
    "eks runtime": (condition("ContainerRuntimeReady", "False"), UNHEALTHY, NOW + 1800, CERTAIN),
    "eks xid that a reboot mends": (
        condition("AcceleratedHardwareReady", "False", reason="NvidiaXID48Error"),
        *(UNHEALTHY, NOW + 600, CERTAIN),
    ),
    "eks xid that nothing mends": (
        condition("AcceleratedHardwareReady", "False", reason="NvidiaXID79Error"),
        *(HARDWARE, NOW + 600, CERTAIN),
    ),
    "hyperpod unschedulable": (
        labelled(f"{HYPERPOD}/node-health-status", "Unschedulable"),
        *(UNHEALTHY, None, SUSPECT),
    ),
    "hyperpod replaces": (
        labelled(f"{HYPERPOD}/node-health-status", "UnschedulablePendingReplacement"),
        *(HARDWARE, None, CERTAIN),
    ),
    "hyperpod reboots": (
        labelled(f"{HYPERPOD}/node-health-status", "UnschedulablePendingReboot"),
        *(UNHEALTHY, None, CERTAIN),
    ),
    "hyperpod checks": (
        labelled(f"{HYPERPOD}/deep-health-check-status", "InProgress"),
        *(MAINTENANCE, None, SUSPECT),
    ),
    "hyperpod check failed": (
        labelled(f"{HYPERPOD}/deep-health-check-status", "Failed"),
        *(HARDWARE, None, CERTAIN),
    ),
    "gke spot": (
        tainted("cloud.google.com/impending-node-termination", gke_spot="true"),
        *(SPOT, NOW + 15, CERTAIN),
    ),
    "gke termination of a regular machine": (
        tainted("cloud.google.com/impending-node-termination"),
        *(MAINTENANCE, NOW + 3600, CERTAIN),
    ),
    "gke maintenance goes on": (
        labelled("cloud.google.com/active-node-maintenance", "ONGOING"),
        *(MAINTENANCE, NOW + 3600, CERTAIN),
    ),
    "gke maintenance soon": (
        labelled("cloud.google.com/scheduled-maintenance-time", "1800000600"),
        *(MAINTENANCE, NOW + 600, CERTAIN),
    ),
    "gke maintenance next week": (
        labelled("cloud.google.com/scheduled-maintenance-time", "1800604800"),
        *(MAINTENANCE, NOW + 604_800, POSSIBLE),
    ),
    "azure remediator": (
        tainted("remediator.kubernetes.azure.com/unschedulable"),
        *(UNHEALTHY, None, CERTAIN),
    ),
    "azure preempt": (condition("PreemptScheduled"), SPOT, NOW + 30, CERTAIN),
    "azure preempt, older condition, with its time": (
        condition(
            "VMEventScheduled",
            reason="PreemptScheduled",
            message="Preempt Scheduled: Fri, 15 Jan 2027 08:00:25 GMT",
        ),
        *(SPOT, NOW + 25, CERTAIN),
    ),
    "azure terminate": (condition("TerminateScheduled"), SCALE_DOWN, NOW + 300, CERTAIN),
    "azure redeploy": (condition("RedeployScheduled"), MAINTENANCE, NOW + 600, CERTAIN),
    "azure reboot": (condition("RebootScheduled"), MAINTENANCE, NOW + 900, CERTAIN),
    "azure freeze": (condition("FreezeScheduled"), MAINTENANCE, NOW + 900, POSSIBLE),
    "autoscaler deletes": (
        tainted("ToBeDeletedByClusterAutoscaler", "1799999990"),
        *(SCALE_DOWN, NOW + 590, CERTAIN),
    ),
    "autoscaler considers": (
        tainted("DeletionCandidateOfClusterAutoscaler", "1799999990"),
        *(SCALE_DOWN, None, POSSIBLE),
    ),
    "npd deadlock": (condition("KernelDeadlock"), UNHEALTHY, None, CERTAIN),
    "npd read-only": (condition("ReadonlyFilesystem"), UNHEALTHY, None, CERTAIN),
    "npd overlay": (condition("CorruptDockerOverlay2"), UNHEALTHY, None, CERTAIN),
    "npd kubelet restarts": (condition("FrequentKubeletRestart"), UNHEALTHY, None, SUSPECT),
    "npd containerd restarts": (condition("FrequentContainerdRestart"), UNHEALTHY, None, SUSPECT),
    "npd docker restarts": (condition("FrequentDockerRestart"), UNHEALTHY, None, SUSPECT),
    "npd kubelet": (condition("KubeletProblem"), UNHEALTHY, None, SUSPECT),
    "npd descriptors": (condition("FDPressure"), UNHEALTHY, None, SUSPECT),
    "nvsentinel taints": (tainted("nvidia.com/gpu-xid-error"), HARDWARE, None, CERTAIN),
    "nvsentinel quarantines": (
        labelled("dgxc.nvidia.com/nvsentinel-state", "quarantined"),
        *(UNHEALTHY, None, CERTAIN),
    ),
    "nvsentinel drains": (
        labelled("dgxc.nvidia.com/nvsentinel-state", "draining"),
        *(UNHEALTHY, None, CERTAIN),
    ),
    "nvsentinel cordons": (
        NodeFacts(name="n", unschedulable=True, labels={"k8s.nvidia.com/cordon-by": "NVSentinel"}),
        *(UNHEALTHY, None, CERTAIN),
    ),
    "csp maintenance": (condition("CSPMaintenance"), MAINTENANCE, None, CERTAIN),
    "gpu to be replaced": (
        condition("GpuMemWatch", message="uncorrectable RecommendedAction: REPLACE_VM"),
        *(HARDWARE, None, CERTAIN),
    ),
    "gpu that needs nothing": (
        condition("GpuThermalWatch", message="warm RecommendedAction: NONE"),
        *(UNHEALTHY, None, SUSPECT),
    ),
    **{
        f"gpu health: {name}": (condition(name), UNHEALTHY, None, CERTAIN)
        for name in sorted(GPU_CONDITIONS)
    },
}


@pytest.mark.parametrize(("node", "kind", "deadline", "confidence"), ROWS.values(), ids=ROWS.keys())
def test_a_signal(
    node: NodeFacts, kind: DisruptionKind, deadline: float | None, confidence: Confidence
) -> None:
    (announced,) = announced_disruptions(node, now=NOW)
    assert (announced.kind, announced.deadline, announced.confidence) == (
        kind,
        deadline,
        confidence,
    )
    assert (announced.node, bool(announced.source)) == ("n", True)


INNOCENT: dict[str, NodeFacts] = {
    "a healthy node": NodeFacts(name="n"),
    "not heard by the API server": tainted("node.kubernetes.io/unreachable"),
    "not ready": condition("Ready", "Unknown", reason="NodeStatusUnknown"),
    "under pressure": tainted("node.kubernetes.io/memory-pressure"),
    "spot capacity on Azure": labelled("kubernetes.azure.com/scalesetpriority", "spot"),
    "spot capacity on GKE": labelled("cloud.google.com/gke-spot", "true"),
    "hyperpod is content": labelled(f"{HYPERPOD}/node-health-status", "Schedulable"),
    "an event of Azure that is over": condition("PreemptScheduled", "False"),
    "a condition nobody told": condition("KernelReady", "Unknown"),
    "another event of Azure": condition("VMEventScheduled", reason="FreezeScheduled"),
    "a maintenance time that is none": labelled(
        "cloud.google.com/scheduled-maintenance-time", "soon"
    ),
}


@pytest.mark.parametrize("node", INNOCENT.values(), ids=INNOCENT.keys())
def test_what_is_no_disruption(node: NodeFacts) -> None:
    assert announced_disruptions(node, now=NOW) == ()


def test_a_cordon_by_the_termination_handler_that_does_not_taint_has_its_two_minutes() -> None:
    labels = {f"{NTH}/event-id": "spot-itn-0a1b"}
    announced = announced_disruptions(
        NodeFacts(name="n", unschedulable=True, labels=labels), now=NOW
    )
    spot = Disruption(node="n", kind=SPOT, source=f"{NTH}/event-id", deadline=NOW + 120)
    cordon = Disruption(node="n", kind=DRAIN, source="spec.unschedulable", confidence=LIKELY)
    assert set(announced) == {spot, cordon}


def test_the_time_left_counts_from_the_mark() -> None:
    taint = TaintFact(key=f"{NTH}/spot-itn", effect="NoSchedule", added_at=NOW - 100)
    (announced,) = announced_disruptions(NodeFacts(name="n", taints=(taint,)), now=NOW)
    assert announced.deadline == NOW + 20


def test_out_of_service_is_somebodys_word_that_nothing_runs() -> None:
    assert out_of_service(tainted("node.kubernetes.io/out-of-service"))
    assert not out_of_service(tainted("node.kubernetes.io/unreachable"))
