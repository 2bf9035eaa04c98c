"""What the end of a pod means: one class per failure, each with its consequence.

Exit codes are the contract's; a signal alone (128+n) never proves an infrastructure fault, so it is
charged to the application unless the pod itself was taken away.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from drumline_trainer.contract import ContractError, ExitCode, FinalReport

if TYPE_CHECKING:
    from drumline.lifecycle.job import PodEnd, PodFacts


class FailureClass(StrEnum):
    """Who answers for a failure."""

    APPLICATION = "Application"
    """The training code or its memory use: restarted on the same nodes, charged to maxRestarts."""
    CONFIGURATION = "Configuration"
    """Can never work: the job fails."""
    CORRUPT_CHECKPOINT = "CorruptCheckpoint"
    """No stored checkpoint verifies: the job fails rather than start over in silence."""
    PEER_LOST = "PeerLost"
    """A consequence of another member's failure."""
    INFRASTRUCTURE = "Infrastructure"
    """The pod was evicted, deleted or lost with its node: placed anew, not charged."""
    REFUSED = "Refused"
    """The kubelet did not admit the pod, a race with another scheduler: placed anew, uncharged."""


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
    """One pod's failure: its class and a sentence for people."""

    failure_class: FailureClass
    pod: str
    node: str
    sentence: str


def classify(pod: PodFacts) -> Failure | None:
    """The failure this pod stands for, or None while it works or after it succeeded."""
    if pod.end is None:
        if not pod.terminating:
            return None
        return _failure(pod, FailureClass.INFRASTRUCTURE, "was deleted or evicted")
    if pod.end.succeeded:
        return None
    return _classify_end(pod, pod.end)


def refused(end: PodEnd) -> bool:
    """Whether the kubelet did not admit the pod.

    A kubelet that restarts admits its pods anew: then there are exit codes too, of containers that
    ran before. Only a node that shuts down takes away what ran by the same name.
    """
    ran_down = end.reason == "NodeShutdown" and end.exit_code is not None
    return not end.succeeded and end.reason.startswith(REFUSALS) and not ran_down


def _classify_end(pod: PodFacts, end: PodEnd) -> Failure:
    if refused(end):
        text = f"was refused by the kubelet: {end.reason}: {end.message}"
        return _failure(pod, FailureClass.REFUSED, text)
    if end.exit_code is None:
        text = f"ended without an exit code: {end.reason or 'unknown'}: {end.message}"
        return _failure(pod, FailureClass.INFRASTRUCTURE, text)
    if pod.terminating or end.reason in ("Evicted", "NodeShutdown", "Terminated"):
        return _failure(pod, FailureClass.INFRASTRUCTURE, f"was taken away ({end.reason})")
    match end.exit_code:
        case ExitCode.CONFIG:
            failure_class = FailureClass.CONFIGURATION
        case ExitCode.CORRUPT_CHECKPOINT:
            failure_class = FailureClass.CORRUPT_CHECKPOINT
        case ExitCode.PEER_LOST:
            failure_class = FailureClass.PEER_LOST
        case _:
            failure_class = FailureClass.APPLICATION
    return _failure(pod, failure_class, _describe(end))


def root_cause(failures: list[Failure]) -> Failure:
    """The failure that explains the others: the most telling class, then the lowest pod name.

    PEER_LOST explains nothing and comes last.
    """
    order = (
        FailureClass.CONFIGURATION,
        FailureClass.CORRUPT_CHECKPOINT,
        FailureClass.REFUSED,
        FailureClass.INFRASTRUCTURE,
        FailureClass.APPLICATION,
        FailureClass.PEER_LOST,
    )
    return min(failures, key=lambda failure: (order.index(failure.failure_class), failure.pod))


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
    return Failure(
        failure_class=failure_class,
        pod=pod.name,
        node=pod.node,
        sentence=f"pod {pod.name} on {pod.node} {text}"[:1500],
    )
