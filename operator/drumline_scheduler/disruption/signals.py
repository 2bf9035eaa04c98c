"""Read every disruption that is announced by a node's taints, labels and conditions.

`announced_disruptions` reads the table, then the few signals that need more than one field. A
deadline that a component states is used as it is. A default notice counts from the signal's own
time, or from `now` if it has none. `merge.keep_earliest_deadlines` keeps the first deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime

from drumline_api.conditions import DisruptionKind
from drumline_scheduler.disruption.model import (
    ConditionFact,
    Confidence,
    Disruption,
    NodeFacts,
    TaintFact,
)
from drumline_scheduler.disruption.signal_table import AWS_SPOT_SECONDS, NTH, TABLE, Carrier, Signal

AUTOSCALER_SECONDS = 600.0
"""cluster-autoscaler's default of --max-graceful-termination-sec."""
AZURE_PREEMPT_SECONDS = 30.0
GKE_SPOT_SECONDS = 15.0
"""User pods get 15 of a Spot VM's 30 s."""
GKE_GRACEFUL_SECONDS = 3600.0
GPU_REPAIR_SECONDS = 600.0
"""Time for which Karpenter's node repair tolerates accelerators that are not ready."""
SHUTDOWN_SECONDS = 15.0
"""A kubelet that shuts down already terminates pods. Half of the usual 30 s may remain."""
MAINTENANCE_HORIZON_SECONDS = 900.0
"""A maintenance announced days ahead counts as certain when it is this near."""
XID_REPLACE = frozenset({"64", "74", "79", "119", "120"})
"""XIDs after which a restart does not repair the GPU."""
GPU_CONDITIONS = frozenset(
    {
        *(
            f"Gpu{part}Watch"
            for part in (
                *("Mem", "Thermal", "Pcie", "Power", "Inforom", "Sm", "Nvlink", "Mcu", "Pmu"),
                *("Driver", "Cpuset"),
            )
        ),
        *("SysLogsXIDError", "SysLogsSXIDError", "SysLogsGPUFallenOff"),
        *("NVSwitchFatalError", "NVSwitchDown", "DCGMError"),
    }
)


def announced_disruptions(node: NodeFacts, *, now: float) -> tuple[Disruption, ...]:
    """Return every disruption announced for this node, in no particular order.

    Args:
        node: fields of the node.
        now: seconds since the epoch.
    """
    # The table covers signals of one field. The readers cover signals that depend on several.
    rows = [disruption for signal in TABLE for disruption in _read(signal, node, now)]
    computed = [disruption for reader in _READERS for disruption in reader(node, now)]
    return (*rows, *computed)


def out_of_service(node: NodeFacts) -> bool:
    """Return whether the out-of-service taint states that nothing runs there (KEP-2268)."""
    return any(taint.key == "node.kubernetes.io/out-of-service" for taint in node.taints)


def _read(signal: Signal, node: NodeFacts, now: float) -> Iterable[Disruption]:
    for since in _marked(signal, node):
        start = now if since is None else since
        notice = signal.notice_seconds
        yield Disruption(
            node=node.name,
            kind=signal.kind,
            source=signal.name,
            deadline=None if notice is None else start + notice,
            confidence=signal.confidence,
        )


def _marked(signal: Signal, node: NodeFacts) -> Iterable[float | None]:
    """Yield the time of this signal for each occurrence on the node; None if it has no time."""
    match signal.carrier:
        case Carrier.TAINT:
            for taint in node.taints:
                if taint.key == signal.name and signal.value in {None, taint.value}:
                    yield taint.added_at
        case Carrier.LABEL:
            value = node.labels.get(signal.name)
            if value is not None and signal.value in {None, value}:
                yield None
        case Carrier.CONDITION:
            for condition in node.conditions:
                if condition.type == signal.name and signal.value in {None, condition.status}:
                    yield condition.since


def _cordon(node: NodeFacts, now: float) -> Iterable[Disruption]:
    """Yield the disruption of a cordon. Some termination handlers add a label to it.

    A cordon alone ends nothing. Administrators cordon nodes hours before they drain them, or never
    do. The drain itself shows as an eviction of a pod (`DisruptionTarget`), not on the node.
    """
    if not node.unschedulable:
        return
    # The handler's label names the event. Only a spot interruption has a fixed notice.
    event = node.labels.get(f"{NTH}/event-id", "")
    if event.startswith("spot-itn"):
        kind, deadline = DisruptionKind.SPOT_RECLAIM, now + AWS_SPOT_SECONDS
        yield Disruption(node=node.name, kind=kind, source=f"{NTH}/event-id", deadline=deadline)
    if "k8s.nvidia.com/cordon-by" in node.labels:
        source = "k8s.nvidia.com/cordon-by"
        yield Disruption(node=node.name, kind=DisruptionKind.UNHEALTHY, source=source)
        return
    yield Disruption(
        node=node.name,
        kind=DisruptionKind.DRAIN,
        source="spec.unschedulable",
        confidence=Confidence.LIKELY,
    )


def _terminating(node: NodeFacts, now: float) -> Iterable[Disruption]:
    """Yield Karpenter's disruption: a taint, the Node's deletion, or a stated hard deadline.

    A spot machine may be disrupted by a reclaim, so its two minutes are assumed.
    """
    disrupted = _taint(node, "karpenter.sh/disrupted")
    # Karpenter states a deadline only if terminationGracePeriod of the NodePool is set.
    stated = _time_of(node.annotations.get("karpenter.sh/nodeclaim-termination-timestamp", ""))
    if disrupted is None and stated is None and not node.terminating:
        return
    source = "metadata.deletionTimestamp" if disrupted is None else disrupted.key
    spot = node.labels.get("karpenter.sh/capacity-type") == "spot"
    assumed = None
    if spot and disrupted is not None:
        assumed = (disrupted.added_at or now) + AWS_SPOT_SECONDS
    yield Disruption(
        node=node.name,
        kind=DisruptionKind.SPOT_RECLAIM if spot else DisruptionKind.SCALE_DOWN,
        source="karpenter.sh/nodeclaim-termination-timestamp" if stated is not None else source,
        deadline=assumed if stated is None else stated,
    )


def _shutdown(node: NodeFacts, now: float) -> Iterable[Disruption]:
    """Yield the disruption of a graceful node shutdown, which the kubelet states in Ready."""
    for condition in node.conditions:
        if (
            condition.type == "Ready"
            and condition.status == "False"
            and "node is shutting down" in condition.message
        ):
            start = now if condition.since is None else condition.since
            yield Disruption(
                node=node.name,
                kind=DisruptionKind.MAINTENANCE,
                source="node shutdown",
                deadline=start + SHUTDOWN_SECONDS,
            )


def _google(node: NodeFacts, now: float) -> Iterable[Disruption]:
    """Yield GKE's disruptions: a termination now, or a maintenance at a stated time."""
    # 1. A termination that has begun. A Spot VM gets less notice than others.
    taint = _taint(node, "cloud.google.com/impending-node-termination")
    if taint is not None:
        spot = node.labels.get("cloud.google.com/gke-spot") == "true"
        notice = GKE_SPOT_SECONDS if spot else GKE_GRACEFUL_SECONDS
        yield Disruption(
            node=node.name,
            kind=DisruptionKind.SPOT_RECLAIM if spot else DisruptionKind.MAINTENANCE,
            source=taint.key,
            deadline=(taint.added_at or now) + notice,
        )
    # 2. A maintenance at a stated time. It counts as certain only when it is near.
    label = "cloud.google.com/scheduled-maintenance-time"
    at = _number(node.labels.get(label, ""))
    if at is not None:
        near = at <= now + MAINTENANCE_HORIZON_SECONDS
        yield Disruption(
            node=node.name,
            kind=DisruptionKind.MAINTENANCE,
            source=label,
            deadline=at,
            confidence=Confidence.CERTAIN if near else Confidence.POSSIBLE,
        )


def _azure(node: NodeFacts, now: float) -> Iterable[Disruption]:
    """Yield Azure's reclaim of a spot machine, with the earliest time if the message states it.

    `VMEventScheduled` is the older condition for all events, and its reason names the event.
    """
    for condition in node.conditions:
        # Older agents use one condition type for all events, so the reason decides.
        preempted = condition.type == "PreemptScheduled" or (
            condition.type == "VMEventScheduled" and "Preempt" in condition.reason
        )
        if preempted and condition.status == "True":
            start = now if condition.since is None else condition.since
            yield Disruption(
                node=node.name,
                kind=DisruptionKind.SPOT_RECLAIM,
                source=condition.type,
                deadline=_mail_time(condition.message) or start + AZURE_PREEMPT_SECONDS,
            )


def _autoscaler(node: NodeFacts, now: float) -> Iterable[Disruption]:
    """Yield cluster-autoscaler's disruption. The taint's value is the Unix time of the taint."""
    taint = _taint(node, "ToBeDeletedByClusterAutoscaler")
    if taint is not None:
        # cluster-autoscaler writes the time of the taint into its value.
        start = _number(taint.value) or taint.added_at or now
        yield Disruption(
            node=node.name,
            kind=DisruptionKind.SCALE_DOWN,
            source=taint.key,
            deadline=start + AUTOSCALER_SECONDS,
        )


def _accelerators(node: NodeFacts, now: float) -> Iterable[Disruption]:
    """Yield disruptions from GPU health conditions.

    The monitoring agent of EKS reports the XID. NVSentinel reports a recommended action.
    """
    for condition in node.conditions:
        if condition.type == "AcceleratedHardwareReady" and condition.status == "False":
            start = now if condition.since is None else condition.since
            yield Disruption(
                node=node.name,
                kind=DisruptionKind.HARDWARE if _is_final(condition) else DisruptionKind.UNHEALTHY,
                source=condition.type,
                deadline=start + GPU_REPAIR_SECONDS,
            )
        elif condition.type in GPU_CONDITIONS and condition.status == "True":
            # NVSentinel ends its message with `RecommendedAction=...`. NONE
            # means that the node still works.
            _, _, action = condition.message.rpartition("RecommendedAction")
            harmless = action.strip(" =:.").upper() == "NONE"
            yield Disruption(
                node=node.name,
                kind=DisruptionKind.HARDWARE if "REPLACE" in action else DisruptionKind.UNHEALTHY,
                source=condition.type,
                confidence=Confidence.SUSPECT if harmless else Confidence.CERTAIN,
            )
        elif condition.type == "CSPMaintenance" and condition.status == "True":
            kind = DisruptionKind.MAINTENANCE
            yield Disruption(node=node.name, kind=kind, source=condition.type)


def _devices(node: NodeFacts, _now: float) -> Iterable[Disruption]:
    """Yield the disruption of a driver that evicts pods from a device.

    NoSchedule alone is not an announcement. The device is simply not counted any more.
    """
    for taint in node.device_taints:
        if taint.effect == "NoExecute":
            yield Disruption(
                node=node.name,
                kind=DisruptionKind.HARDWARE,
                source=taint.key,
                confidence=Confidence.LIKELY,
            )


_READERS: tuple[Callable[[NodeFacts, float], Iterable[Disruption]], ...] = (
    _cordon,
    _terminating,
    _shutdown,
    _google,
    _azure,
    _autoscaler,
    _accelerators,
    _devices,
)


def _is_final(condition: ConditionFact) -> bool:
    number = condition.reason.removeprefix("NvidiaXID").removesuffix("Error")
    return number in XID_REPLACE


def _taint(node: NodeFacts, key: str) -> TaintFact | None:
    return next((taint for taint in node.taints if taint.key == key), None)


def _number(text: str) -> float | None:
    """Return Unix seconds as labels and taint values spell them; None for other text."""
    # Twelve digits hold any plausible time. Longer text is not a time.
    return float(text) if text.isdecimal() and len(text) <= 12 else None


def _time_of(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


def _mail_time(text: str) -> float | None:
    """Return the RFC 1123 time at the end of a message, after its last colon and space."""
    try:
        return parsedate_to_datetime(text.rpartition(": ")[2]).timestamp()
    except ValueError:
        return None
