"""What the end of a pod means: one class per failure, each with its consequence.

Exit codes are the contract's; a signal alone (128+n) never proves an infrastructure fault, so it is
charged to the application unless the pod itself was taken away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from drumline.api.conditions import Reason
from drumline.lifecycle.model.members import GangMember
from drumline.lifecycle.model.observed import PodEnd, PodFacts
from drumline_trainer.contract import ContractError, ExitCode, FaultClass, FinalReport


class FailureClass(StrEnum):
    """Who answers for a failure; in this order they explain others that come with them."""

    CONFIGURATION = "Configuration"
    """Can never work: the job fails."""
    CORRUPT_CHECKPOINT = "CorruptCheckpoint"
    """No stored checkpoint verifies: the job fails rather than start over in silence."""
    REFUSED = "Refused"
    """The kubelet did not admit the pod, a race with another scheduler: placed anew, uncharged."""
    INFRASTRUCTURE = "Infrastructure"
    """The pod was evicted, deleted or lost with its node: placed anew."""
    LEFT_ON_REQUEST = "Left"
    """It was asked to go, saved and went: placed anew, uncharged."""
    OUT_OF_MEMORY = "OutOfMemory"
    """A rank ran out of memory: restarted where it was."""
    HANG = "Hang"
    """A rank stood still and could not be restarted in place: restarted where it was."""
    APPLICATION = "Application"
    """The training code: restarted where it was."""
    PEER_LOST = "PeerLost"
    """A consequence of another member's failure: restarted where it was."""


RESCHEDULED: Final = (
    FailureClass.REFUSED,
    FailureClass.INFRASTRUCTURE,
    FailureClass.LEFT_ON_REQUEST,
)
"""Their members' places are given up; all others keep theirs."""

CHARGED_TO: Final = {
    FailureClass.INFRASTRUCTURE: FaultClass.INFRASTRUCTURE,
    FailureClass.OUT_OF_MEMORY: FaultClass.OUT_OF_MEMORY,
    FailureClass.HANG: FaultClass.HANG,
    FailureClass.APPLICATION: FaultClass.APPLICATION,
    FailureClass.PEER_LOST: FaultClass.INFRASTRUCTURE,
}
"""The budget a failure counts against by itself; the others count against none."""

_REASONS: Final = {
    FailureClass.CONFIGURATION: Reason.CONFIG_REFUSED,
    FailureClass.CORRUPT_CHECKPOINT: Reason.CORRUPT_CHECKPOINT,
    FailureClass.REFUSED: Reason.KUBELET_REFUSED,
    FailureClass.INFRASTRUCTURE: Reason.POD_LOST,
    FailureClass.LEFT_ON_REQUEST: Reason.POD_LOST,
    FailureClass.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    FailureClass.HANG: Reason.HANG,
    FailureClass.APPLICATION: Reason.POD_FAILED,
    FailureClass.PEER_LOST: Reason.POD_FAILED,
}

REFUSALS = (
    "OutOf",
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "NodeShutdown",
    "AdmissionError",
    "TopologyAffinityError",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One member's failure: its class and a sentence for people."""

    failure_class: FailureClass
    reason: Reason
    """What status says of it."""
    index: int
    pod: str
    node: str
    message: str
    at: float | None = None
    """When it struck, where that is known (seconds since the epoch)."""
    step: int | None = None
    """Steps finished then, where that is known."""
    error: str = ""
    """What was raised, in the program's own words."""
    rank: int | None = None
    reported_class: FaultClass | None = None
    """Of a consequence: the class of what the agents gave up over, where they say so."""

    @property
    def charged_to(self) -> FaultClass:
        """The budget it counts against; `PREEMPTION`: against none.

        A consequence counts against the class of its cause. Where nobody knows that, what came
        between the members is no fault of the program's.
        """
        return self.reported_class or CHARGED_TO.get(self.failure_class, FaultClass.PREEMPTION)


def classify(pod: PodFacts) -> Failure | None:
    """The failure this pod stands for, or None while it works or after it succeeded."""
    if pod.end is None:
        if not pod.terminating:
            return None
        return _failure(pod, FailureClass.INFRASTRUCTURE, "was deleted or evicted")
    if pod.end.succeeded:
        return None
    return _classify_end(pod, pod.end)


def silent(pod: PodFacts) -> Failure:
    """Nobody hears the pod's agent."""
    text = "is silent: neither its peers nor the operator hear it"
    failure = _failure(pod, FailureClass.INFRASTRUCTURE, text)
    return replace(failure, reason=Reason.MEMBER_SILENT)


def on_gone_node(pod: PodFacts) -> Failure:
    """The pod's node is no more, or is out of service for good."""
    failure = _failure(pod, FailureClass.INFRASTRUCTURE, "was lost with its node")
    return replace(failure, reason=Reason.NODE_LOST)


def vanished(member: GangMember, *, pod: str) -> Failure:
    """The member's pod is not there any more."""
    return Failure(
        failure_class=FailureClass.INFRASTRUCTURE,
        reason=Reason.POD_LOST,
        index=member.index,
        pod=pod,
        node=member.node,
        message=f"pod {pod} on {member.node} vanished",
    )


def refused_by_kubelet(end: PodEnd) -> bool:
    """Whether the kubelet did not admit the pod.

    A kubelet that restarts admits its pods anew: then there are exit codes too, of containers that
    ran before. Only a node that shuts down takes away what ran by the same name.
    """
    ran_down = end.reason == "NodeShutdown" and end.exit_code is not None
    return not end.succeeded and end.reason.startswith(REFUSALS) and not ran_down


def _classify_end(pod: PodFacts, end: PodEnd) -> Failure:
    if refused_by_kubelet(end):
        text = f"was refused by the kubelet: {end.reason}: {end.message}"
        return _failure(pod, FailureClass.REFUSED, text)
    if end.exit_code == ExitCode.PREEMPTED:
        return _failure(pod, FailureClass.LEFT_ON_REQUEST, "left on request")
    if end.exit_code is None:
        text = f"ended without an exit code: {end.reason or 'unknown'}: {end.message}"
        return _failure(pod, FailureClass.INFRASTRUCTURE, text)
    if pod.terminating or end.reason in ("Evicted", "NodeShutdown", "Terminated"):
        return _failure(pod, FailureClass.INFRASTRUCTURE, f"was taken away ({end.reason})")
    return _failure(pod, _class_of_code(end), _describe(end))


def _class_of_code(end: PodEnd) -> FailureClass:
    match end.exit_code:
        case ExitCode.CONFIG:
            return FailureClass.CONFIGURATION
        case ExitCode.CORRUPT_CHECKPOINT:
            return FailureClass.CORRUPT_CHECKPOINT
        case ExitCode.PEER_LOST:
            return FailureClass.PEER_LOST
        case _:
            pass
    report = final_report(end)
    told = report.fault_class if report is not None else None
    if end.reason == "OOMKilled" or told is FaultClass.OUT_OF_MEMORY:
        return FailureClass.OUT_OF_MEMORY
    return FailureClass.HANG if told is FaultClass.HANG else FailureClass.APPLICATION


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The failure that explains the others: the most telling class, then the lowest index."""
    order = tuple(FailureClass)
    return min(failures, key=lambda failure: (order.index(failure.failure_class), failure.index))


def final_report(end: PodEnd) -> FinalReport | None:
    """The agent's last words, if the pod's termination message is one."""
    try:
        return FinalReport.parse(end.message.encode())
    except ContractError:
        return None


def _describe(end: PodEnd) -> str:
    report = final_report(end)
    if report is not None and report.error:
        return f"exited with {end.exit_code}: {report.error}"
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
        reported_class=_told(report) if failure_class is FailureClass.PEER_LOST else None,
    )


def _told(report: FinalReport | None) -> FaultClass | None:
    """The class in an agent's last words, if it is one with a budget."""
    told = report.fault_class if report is not None else None
    return told if told in CHARGED_TO.values() else None
