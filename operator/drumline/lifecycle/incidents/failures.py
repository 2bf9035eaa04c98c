"""Classify failures of pods by how they ended. Each class has one consequence.

Exit codes are those of the contract. SIGKILL and SIGTERM without an out-of-memory record come from
outside: a process in a pod cannot kill process 1, and the agent knows its own signals. For a
template's process, which is not an agent of ours, they prove nothing (`plan.failure`). An eviction
through the API is charged to no budget.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from drumline.lifecycle.model.members import GangMember
from drumline.lifecycle.model.observed import PodEnd, PodFacts
from drumline_api.conditions import Reason
from drumline_contract import ContractError, ExitCode, FaultClass, FinalReport


class FailureClass(StrEnum):
    """Cause of a failure, in the order in which one explains another."""

    CONFIGURATION = "Configuration"
    """Can never succeed: the job fails."""
    CORRUPT_CHECKPOINT = "CorruptCheckpoint"
    """No stored checkpoint verifies. The job fails instead of starting again silently."""
    DEVICE = "Device"
    """A GPU of the pod is missing or does not work: rescheduled, and its node is avoided."""
    REFUSED = "Refused"
    """The kubelet rejected the pod, in a race with another scheduler: rescheduled, not charged."""
    INFRASTRUCTURE = "Infrastructure"
    """The pod was evicted, deleted or lost with its node: rescheduled."""
    EVICTED = "Evicted"
    """A drain evicted the pod, or it ended with an announced disruption of its node.

    Rescheduled, not charged.
    """
    LEFT_ON_REQUEST = "LeftOnRequest"
    """The pod saved and exited after a notice: rescheduled, not charged."""
    OUT_OF_MEMORY = "OutOfMemory"
    """A rank ran out of memory: restarted on its node."""
    HANG = "Hang"
    """A rank made no progress and could not be restarted in place: restarted on its node."""
    APPLICATION = "Application"
    """The training program failed, or exceeded a limit of its pod: restarted on its node."""
    KILLED = "Killed"
    """A signal from outside ended a rank or its agent: restarted on its node."""
    PEER_LOST = "PeerLost"
    """A consequence of another member's failure: restarted on its node."""


RESCHEDULED: Final = (
    FailureClass.DEVICE,
    FailureClass.REFUSED,
    FailureClass.INFRASTRUCTURE,
    FailureClass.EVICTED,
    FailureClass.LEFT_ON_REQUEST,
)
"""Classes whose members are given up and placed again. Other members keep their nodes."""

CHARGED_TO: Final = {
    FailureClass.DEVICE: FaultClass.INFRASTRUCTURE,
    FailureClass.INFRASTRUCTURE: FaultClass.INFRASTRUCTURE,
    FailureClass.OUT_OF_MEMORY: FaultClass.OUT_OF_MEMORY,
    FailureClass.HANG: FaultClass.HANG,
    FailureClass.APPLICATION: FaultClass.APPLICATION,
    FailureClass.KILLED: FaultClass.INFRASTRUCTURE,
    FailureClass.PEER_LOST: FaultClass.INFRASTRUCTURE,
}
"""Budget that a failure of this class is charged to. Missing classes are not charged."""

_REASONS: Final = {
    FailureClass.CONFIGURATION: Reason.CONFIG_REFUSED,
    FailureClass.CORRUPT_CHECKPOINT: Reason.CORRUPT_CHECKPOINT,
    FailureClass.DEVICE: Reason.DEVICE_FAILED,
    FailureClass.REFUSED: Reason.KUBELET_REFUSED,
    FailureClass.INFRASTRUCTURE: Reason.POD_LOST,
    FailureClass.EVICTED: Reason.NODE_DISRUPTED,
    FailureClass.LEFT_ON_REQUEST: Reason.POD_LOST,
    FailureClass.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    FailureClass.HANG: Reason.HANG,
    FailureClass.APPLICATION: Reason.POD_FAILED,
    FailureClass.KILLED: Reason.POD_FAILED,
    FailureClass.PEER_LOST: Reason.POD_FAILED,
}
_SIGNALS_FROM_OUTSIDE: Final = (128 + signal.SIGKILL, 128 + signal.SIGTERM)

REFUSALS = (
    "AdmissionError",
    "AppArmor",
    "InitContainerRestartPolicyForbidden",
    "InvalidNodeInfo",
    "NodeAffinity",
    "NodeName",
    "NodePorts",
    "NodeShutdown",
    "OutOf",
    "PodFeatureUnsupported",
    "PodLevelResources",
    "PodOS",
    "SMTAlignmentError",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TaintToleration",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
)
"""Beginnings of the reasons with which a kubelet refuses a pod (`pkg/kubelet/lifecycle`)."""
REJECTED: Final = "Pod was rejected: "
"""Beginning of the message about a refused pod. A node under pressure gives the reason Evicted."""
_ENDED_BY_KUBELET: Final = frozenset({"Evicted", "NodeShutdown", "Preempting", "Terminated"})
"""Reasons of a pod that its kubelet ended for the node, or for a critical pod (`Preempting`)."""
_OF_NODE: Final = ("OutOf", "NodeShutdown", "Evicted")
"""Beginnings of the reasons whose cause is in the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One member's failure."""

    failure_class: FailureClass
    reason: Reason
    """Reason in the status."""
    index: int
    pod: str
    node: str
    message: str
    """One sentence for users: pod, node and what happened."""
    at: float | None = None
    """Time of the failure in seconds since the epoch. None if not known."""
    step: int | None = None
    """Finished optimizer steps at that time. None if not known."""
    error: str = ""
    """Error that the program raised. Empty if it reported none."""
    rank: int | None = None
    reported_class: FaultClass | None = None
    """Class of the fault for which the agents gave up. Only for PeerLost, if reported."""

    @property
    def charged_to(self) -> FaultClass:
        """Return the budget to which it is charged. `PREEMPTION` means none.

        A PeerLost failure is charged to the class that the agents reported, otherwise to
        infrastructure: a lost connection is not the program's fault.
        """
        return self.reported_class or CHARGED_TO.get(self.failure_class, FaultClass.PREEMPTION)


def classify(pod: PodFacts) -> Failure | None:
    """Return the failure of a pod, or None while it runs and after it succeeded."""
    if pod.end is None:
        if not pod.terminating:
            return None
        if pod.evicted:
            return _failure(
                pod, FailureClass.EVICTED, "was evicted, for example by a drain of the node"
            )
        return _failure(pod, FailureClass.INFRASTRUCTURE, "was deleted or evicted")
    if pod.end.succeeded:
        return None
    return _classify_end(pod, pod.end)


def silent(pod: PodFacts) -> Failure:
    """Return the failure of a pod whose agent answers neither its peers nor the operator."""
    text = "sends no heartbeat: neither its peers nor the operator receive one"
    failure = _failure(pod, FailureClass.INFRASTRUCTURE, text)
    return replace(failure, reason=Reason.MEMBER_SILENT)


def on_gone_node(pod: PodFacts) -> Failure:
    """Return the failure of a pod whose node was deleted or is out of service."""
    failure = _failure(pod, FailureClass.INFRASTRUCTURE, "was lost with its node")
    return replace(failure, reason=Reason.NODE_LOST)


def vanished(member: GangMember, *, pod: str) -> Failure:
    """Return the failure of a member whose pod object no longer exists."""
    return Failure(
        failure_class=FailureClass.INFRASTRUCTURE,
        reason=Reason.POD_LOST,
        index=member.index,
        pod=pod,
        node=member.node,
        message=f"pod {pod} on {member.node} disappeared",
    )


def refused_by_kubelet(end: PodEnd) -> bool:
    """Return whether the kubelet refused to admit the pod.

    A restarted kubelet admits its pods again. A pod that is refused then has exit codes of
    containers that ran before. Only NodeShutdown is also the reason of a pod that was running, so
    with an exit code it is not a refusal.
    """
    # With an exit code the container ran, so the kubelet had admitted the pod.
    shut_down = end.reason == "NodeShutdown" and end.exit_code is not None
    # With an exit code the message is the program's own.
    rejected = end.exit_code is None and end.message.startswith(REJECTED)
    return not end.succeeded and (rejected or end.reason.startswith(REFUSALS)) and not shut_down


def counts_as_failed_start(end: PodEnd) -> bool:
    """Return whether this refusal may repeat on the next node.

    `OutOf...` is a race that another pod won. A node that shuts down, or is short of disk, refuses
    every pod. All other refusals have their cause in the pod.
    """
    return refused_by_kubelet(end) and not end.reason.startswith(_OF_NODE)


def _classify_end(pod: PodFacts, end: PodEnd) -> Failure:
    # The order matters: the first cause that explains the end decides. A kubelet's refusal and an
    # eviction are certain, exit codes are the pod's own report.
    if refused_by_kubelet(end):
        text = f"was rejected by the kubelet: {end.reason}: {end.message}"
        return _failure(pod, FailureClass.REFUSED, text)
    if pod.evicted:
        text = f"was evicted, for example by a drain of the node, and {_describe(end)}"
        return _failure(pod, FailureClass.EVICTED, text)
    if end.exit_code == ExitCode.PREEMPTED:
        return _failure(pod, FailureClass.LEFT_ON_REQUEST, "left on request")
    if end.own_limit:
        text = f"was evicted because it exceeded its own limit: {end.own_limit.strip()}"
        return _failure(pod, FailureClass.APPLICATION, text)
    if end.exit_code is None:
        text = f"ended without an exit code: {end.reason or 'unknown'}: {end.message}"
        return _failure(pod, FailureClass.INFRASTRUCTURE, text)
    # Terminating: the pod ended because it was deleted, so its exit code says nothing.
    if pod.terminating or end.reason in _ENDED_BY_KUBELET:
        return _failure(pod, FailureClass.INFRASTRUCTURE, f"was terminated ({end.reason})")
    return _failure(pod, _class_of_code(end), _describe(end))


def _class_of_code(end: PodEnd) -> FailureClass:
    # Codes of the contract are certain. All others need the agent's report.
    match end.exit_code:
        case ExitCode.CONFIG:
            return FailureClass.CONFIGURATION
        case ExitCode.CORRUPT_CHECKPOINT:
            return FailureClass.CORRUPT_CHECKPOINT
        case ExitCode.PEER_LOST:
            return FailureClass.PEER_LOST
        case ExitCode.DEVICE:
            return FailureClass.DEVICE
        case _:
            pass
    # The agent's report decides about out-of-memory and hangs. Without one, the kubelet's reason
    # and the signal do.
    report = final_report(end)
    reported = report.fault_class if report is not None else None
    if end.reason == "OOMKilled" or reported is FaultClass.OUT_OF_MEMORY:
        return FailureClass.OUT_OF_MEMORY
    if reported is FaultClass.HANG:
        return FailureClass.HANG
    unreported = reported is None and end.exit_code in _SIGNALS_FROM_OUTSIDE
    killed = unreported or reported is FaultClass.INFRASTRUCTURE
    return FailureClass.KILLED if killed else FailureClass.APPLICATION


def root_cause(failures: Sequence[Failure]) -> Failure:
    """Return the failure that explains the others.

    The first class in the order of `FailureClass`, then the lowest index.
    """
    # The lowest index makes the choice stable between two plans.
    order = tuple(FailureClass)
    return min(failures, key=lambda failure: (order.index(failure.failure_class), failure.index))


def final_report(end: PodEnd) -> FinalReport | None:
    """Return the agent's final report, if the pod's termination message is one."""
    try:
        return FinalReport.parse(end.message.encode())
    except ContractError:
        return None


def _describe(end: PodEnd) -> str:
    report = final_report(end)
    if report is not None and report.error:
        # The agent's report is more precise than the kubelet's message, which has its tail only.
        held = f", held for {report.held_seconds:.0f} s" if report.held_seconds else ""
        return f"exited with {end.exit_code}{held}: {report.error}"
    detail = "" if report is not None else f": {end.message[-500:].strip()}" if end.message else ""
    reason = f" ({end.reason})" if end.reason not in ("", "Error") else ""
    return f"exited with {end.exit_code}{reason}{detail}"


def _failure(pod: PodFacts, failure_class: FailureClass, text: str) -> Failure:
    report = final_report(pod.end) if pod.end is not None else None
    return Failure(
        failure_class=failure_class,
        reason=_REASONS[failure_class],
        index=pod.index,
        pod=pod.name,
        node=pod.node,
        message=f"pod {pod.name} on {pod.node} {text}"[:1500],
        at=pod.end.ended_at if pod.end is not None else None,
        step=report.progress.step if report is not None else None,
        error=report.error if report is not None else "",
        rank=report.failed_rank if report is not None else None,
        reported_class=_budgeted_class(report) if failure_class is FailureClass.PEER_LOST else None,
    )


def _budgeted_class(report: FinalReport | None) -> FaultClass | None:
    """Return the fault class of an agent's final report, if failures are charged to it."""
    reported = report.fault_class if report is not None else None
    return reported if reported in CHARGED_TO.values() else None
