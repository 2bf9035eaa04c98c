"""One node's taints, labels and conditions -> every disruption that is announced for it.

`announced_disruptions` reads the table, then the few signals that need more than one field. A
deadline that a component states is used as it is; a default notice counts from the signal's own
time, or from `now` if it has none: `merge.keep_earliest_deadlines` keeps the first one.
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
"""Of a Spot VM's 30 s, user pods get 15."""
GKE_GRACEFUL_SECONDS = 3600.0
GPU_REPAIR_SECONDS = 600.0
"""How long Karpenter's node repair tolerates accelerators that are not ready."""
SHUTDOWN_SECONDS = 15.0
"""A kubelet that shuts down already terminates pods; half of the usual 30 s may be left."""
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
    """Every disruption announced for this node, in no particular order.

    Args:
        node: what the node shows.
        now: seconds since the epoch.
    """
    rows = [disruption for signal in TABLE for disruption in _read(signal, node, now)]
    computed = [disruption for reader in _READERS for disruption in reader(node, now)]
    return (*rows, *computed)


def out_of_service(node: NodeFacts) -> bool:
    """Whether the out-of-service taint says that nothing runs there any more (KEP-2268)."""
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
    """When this signal was set on the node, once for each occurrence; None: no time is known."""
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
    """A cordon: termination handlers that set no taint set a label with it.

    A cordon alone ends nothing: administrators cordon nodes hours before they drain them, or never
    do. The drain itself shows as an eviction of a pod (`DisruptionTarget`), not on the node.
    """
    if not node.unschedulable:
        return
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
    """Karpenter: a taint, the Node's deletion, and a hard deadline where its owner set one.

    A machine of spot capacity may go for a reclaim: its two minutes are assumed.
    """
    disrupted = _taint(node, "karpenter.sh/disrupted")
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
    """A kubelet in a graceful node shutdown says so in its Ready condition."""
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
    """GKE: a termination now, or a maintenance at a stated time."""
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
    """Azure's reclaim of a spot machine, with the earliest time where the message states it.

    `VMEventScheduled` is the older condition for all events: its reason names which.
    """
    for condition in node.conditions:
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
    """cluster-autoscaler: the taint's value is the Unix time at which it was set."""
    taint = _taint(node, "ToBeDeletedByClusterAutoscaler")
    if taint is not None:
        start = _number(taint.value) or taint.added_at or now
        yield Disruption(
            node=node.name,
            kind=DisruptionKind.SCALE_DOWN,
            source=taint.key,
            deadline=start + AUTOSCALER_SECONDS,
        )


def _accelerators(node: NodeFacts, now: float) -> Iterable[Disruption]:
    """GPU health: EKS' monitoring agent names the XID, NVSentinel what it recommends."""
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
    """A driver that wants pods off a device: they are evicted there, or will be.

    NoSchedule alone is no announcement: the device is not counted any more.
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
    """Unix seconds as labels and taint values spell them."""
    return float(text) if text.isdecimal() and len(text) <= 12 else None


def _time_of(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None


def _mail_time(text: str) -> float | None:
    """The RFC 1123 time at the end of a message, after its last colon-and-space."""
    try:
        return parsedate_to_datetime(text.rpartition(": ")[2]).timestamp()
    except ValueError:
        return None
