"""Handle failures: members whose pods failed, vanished or became silent, and their gang.

If agents supervise the ranks, the other members keep their pods. A member whose node or pod is lost
waits for another node (`status.assignment.lost`). A member whose program failed gets a new pod on
its node. A gang whose template's command the kubelet starts has no partial recovery: it restarts as
a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from drumline.lifecycle import transitions
from drumline.lifecycle.incidents import failures, ledger, timeline
from drumline.lifecycle.incidents import restart_budgets as budgets
from drumline.lifecycle.incidents.avoided_nodes import with_failed_devices
from drumline.lifecycle.incidents.claim_names import with_claim_names
from drumline.lifecycle.incidents.failures import (
    RESCHEDULED,
    Failure,
    FailureClass,
    classify,
    counts_as_failed_start,
    final_report,
    root_cause,
)
from drumline.lifecycle.model.gang import ObservedGang
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.model.roles import decides_success, role_pod
from drumline.lifecycle.model.wording import counted
from drumline.lifecycle.plan.actions import JobPlan
from drumline.lifecycle.plan.situation import Situation
from drumline.lifecycle.plan.slow_start import with_failed_start
from drumline_api.conditions import DisruptionKind, Reason
from drumline_api.jobstatus import TrainingJobStatus
from drumline_contract import FaultClass, Progress, pod_name

PEER_LOST_PATIENCE_SECONDS: Final = 10.0
"""Time after the first end within which the end of a blamed peer must become visible."""
MAX_REPEATS: Final = 3
"""Faults of the program in a row, without a step in between, after which the job fails."""
MAX_NAMED: Final = 3
"""Lost members that the ledger names for one loss."""
MAX_MESSAGE_CHARS: Final = 300
_OF_INFRASTRUCTURE: Final = (FailureClass.DEVICE, FailureClass.INFRASTRUCTURE)
_OF_AGENTS: Final = (
    FailureClass.CONFIGURATION,
    FailureClass.CORRUPT_CHECKPOINT,
    FailureClass.DEVICE,
    FailureClass.LEFT_ON_REQUEST,
    FailureClass.KILLED,
    FailureClass.PEER_LOST,
)
"""Classes that only an exit code of our own agent or trainer proves."""
_TERMINAL: Final = (FailureClass.CONFIGURATION, FailureClass.CORRUPT_CHECKPOINT)


def handle_failures(situation: Situation) -> JobPlan | None:
    """Return the reaction to the failures of members. None if no member failed.

    In this order: a failure that no restart can repair fails the job. After the last step a failure
    does not matter. Failed members that were joining an elastic gang only end its growth. Members
    that blame a peer wait for the peer's own end. Members that lost their node or pod are
    rescheduled. All other failures restart pods in place.

    Example, 4 members: pods 0, 2 and 3 exit with PeerLost at t=0 and pod 1 shows no end. Until t=10
    s the plan only waits: a kubelet may report pod 1 as OOMKilled, which restarts all four in
    place. Without such a report pod 1 counts as lost at t=10 s. Member 1 is given up and placed
    again by the scheduler, and the other three keep their nodes.
    """
    gang, now = situation.gang, situation.now
    failed = member_failures(situation)
    if not failed:
        return None
    # Phase 1: remember failed devices. Every later write contains them.
    status = with_failed_devices(situation.job.status, failed, now=now)
    situation = situation.with_status(status)
    job = situation.job
    # Phase 2: failures after which the job does not recover as a whole.
    cause = root_cause(failed)
    if cause.failure_class in _TERMINAL:
        status = transitions.failed(job, reason=cause.reason, message=cause.message, now=now)
        return JobPlan(status=status)
    if job.is_supervised and training_is_complete(job, gang):
        progress = final_progress(gang)
        return JobPlan(status=transitions.succeeded(job, progress=progress, now=now))
    if gang.joining and all(failure.index in gang.joining for failure in failed):
        status = transitions.growth_abandoned(job, message=cause.message, now=now)
        return JobPlan(status=status)
    # Phase 3: a peer that others blame may still show its own end.
    if cause.failure_class is FailureClass.PEER_LOST:
        unexplained = [pod for pod in gang.present if pod.end is None and _is_rank(job, pod)]
        patience = _peer_lost_deadline(gang, now=now)
        if unexplained and now < patience:
            return JobPlan(requeue_at=patience)
        if unexplained:
            lost = [_lost_peer(pod, cause) for pod in unexplained]
            return JobPlan(status=_reschedule(situation, lost))
    # Phase 4: give up members with their node, or restart pods in place.
    rescheduled = [failure for failure in failed if failure.failure_class in RESCHEDULED]
    if rescheduled:
        return JobPlan(status=_reschedule(situation, rescheduled))
    return JobPlan(status=_restart_or_fail(situation, cause))


def member_failures(situation: Situation) -> list[Failure]:
    """Return the failure of every failed member by position. Members without a pod come last."""
    job, gang = situation.job, situation.gang
    failed = [
        failure for pod in gang.present if (failure := _failure_of(situation, pod)) is not None
    ]
    for member in gang.missing:
        # Before the record was acknowledged, a missing pod is simply created again.
        had_pod = situation.is_running and member.index not in gang.joining
        if had_pod or (job.is_supervised and situation.is_acknowledged):
            name = pod_name(job.name, member.index, member.pod_generation)
            failed.append(_uncharged(situation, failures.vanished(member, pod=name)))
    return failed


def training_is_complete(job: Job, gang: ObservedGang) -> bool:
    """Return whether a member's end proves that all ranks have done all of their work.

    A rank of the bundled trainer exits with success only after the final checkpoint, which takes
    all ranks. The agent of a template's pod does so once the leader has seen every rank of the gang
    exit with 0.
    """
    if not job.runs_trainer:
        ends = [pod.end for pod in gang.present if _is_rank(job, pod) and pod.end is not None]
        return decides_success(job.spec, 0) and any(end.succeeded for end in ends)
    reports = (final_report(pod.end) for pod in gang.present if pod.end and pod.end.succeeded)
    return any(
        report is not None and 0 < report.progress.total_steps <= report.progress.step
        for report in reports
    )


def final_progress(gang: ObservedGang) -> Progress | None:
    """Return the last figures of the lowest member that succeeded, or None."""
    ends = (pod.end for pod in gang.present if pod.end is not None and pod.end.succeeded)
    report = next((report for end in ends if (report := final_report(end)) is not None), None)
    return report.progress if report is not None else None


def give_up_members(
    job: Job,
    gang: ObservedGang,
    indices: Collection[int],
    *,
    reason: Reason,
    message: str,
    now: float,
) -> TrainingJobStatus:
    """Mark these members as lost. Requeue the job if no other member would remain.

    Members that must leave by a deadline are given up too, so that the gang recovers once, not
    twice.

    Args:
        job: the job with its present status.
        gang: the pods and agents as they are.
        indices: indices of the lost members.
        reason: reason for `kubectl get` and the event.
        message: text for `kubectl get` and the event.
        now: Unix time in seconds.
    """
    given_up = set(indices)
    disruption = job.status.disruption
    if disruption is not None and disruption.deadline is not None:
        given_up.update(disruption.indices or ())
    lost = given_up | gang.lost
    if job.is_supervised and any(member.index not in lost for member in gang.members):
        return transitions.members_lost(
            job, indices=given_up, reason=reason, message=message, now=now
        )
    return transitions.requeued(job, reason=reason, message=message, now=now)


def _failure_of(situation: Situation, pod: PodFacts) -> Failure | None:
    job, observed = situation.job, situation.observed
    # Node and silence first: such a pod shows no end by itself.
    if pod.end is None and pod.node in observed.gone_nodes:
        return _uncharged(situation, failures.on_gone_node(pod))
    if pod.end is None and not pod.terminating and pod.uid in observed.silent:
        return _uncharged(situation, failures.silent(pod))
    failure = classify(pod)
    if failure is None:
        return None
    failure = _uncharged(situation, failure)
    message = with_claim_names(failure.message, job.spec)
    if failure.failure_class is FailureClass.OUT_OF_MEMORY and failure.error == "":
        message += f": {_memory_advice(job)}"
    failure = replace(failure, message=message[:1500])
    if job.is_supervised and _is_rank(job, pod):
        return failure
    if failure.failure_class in _OF_AGENTS:
        # A program of a template has exit codes of its own: its 75 is not our PEER_LOST. No notice
        # was sent to it, and it may end with 137 because a process that it started was killed.
        kind = FailureClass.APPLICATION
        return replace(failure, failure_class=kind, reason=Reason.POD_FAILED)
    return failure


def _memory_advice(job: Job) -> str:
    """Return what to do about a pod that the kernel killed for memory; no agent reported it."""
    limit = (job.spec.resources or {}).get("memory")
    known = f": the limit is {limit}" if limit else ""
    return f"out of memory{known}, raise resources.memory"


def _uncharged(situation: Situation, failure: Failure) -> Failure:
    """Return the failure, not charged if the pod's node had an announced end.

    A component may delete pods itself at the end of its notice, and a machine may be gone before.
    """
    if failure.failure_class is not FailureClass.INFRASTRUCTURE:
        return failure
    disruption = situation.job.status.disruption
    nodes = {entry.node for entry in situation.observed.node_disruptions}
    of_nodes = disruption is not None and disruption.kind is not DisruptionKind.PREEMPTION
    indices = (disruption.indices or ()) if disruption is not None and of_nodes else ()
    if failure.node not in nodes and failure.index not in indices:
        return failure
    return replace(failure, failure_class=FailureClass.EVICTED)


def _lost_peer(pod: PodFacts, blamed: Failure) -> Failure:
    """Return the failure of a pod that its peers lost and that shows no end.

    Its node counts as lost. If the peers had given up because of the program before, their report
    says so.
    """
    failure = failures.silent(pod)
    text = f"its peers lost {pod.name} on {pod.node}, which did not report how it ended"
    message = f"{text}: {blamed.error}" if blamed.error else text
    return replace(failure, message=message[:1500], reported_class=blamed.reported_class)


def _peer_lost_deadline(gang: ObservedGang, *, now: float) -> float:
    # The patience counts from the first end. Later ends of the same loss must not prolong it.
    ends = [pod.end.ended_at for pod in gang.present if pod.end and pod.end.ended_at]
    deadline = min(ends, default=0.0) + PEER_LOST_PATIENCE_SECONDS
    # A kubelet's clock may be hours ahead. The gang does not hold its GPUs until that time.
    return deadline if deadline <= now + 2 * PEER_LOST_PATIENCE_SECONDS else now


def _reschedule(situation: Situation, rescheduled: Sequence[Failure]) -> TrainingJobStatus:
    """Give these members up, and members that an announced disruption would evict.

    An infrastructure failure opens an incident and is charged to its budget. A refused admission
    and a pod that left on request are not charged.
    """
    job, now = situation.job, situation.now
    # Phase 1: the cause. Infrastructure explains the other failures.
    infrastructure = [
        failure for failure in rescheduled if failure.failure_class in _OF_INFRASTRUCTURE
    ]
    cause = root_cause(infrastructure or rescheduled)
    further = len(rescheduled) - 1
    text = f"{cause.message}; and {counted(further, 'more member')}" if further else cause.message
    # Phase 2: a refused start counts as a failed start instead of an incident.
    if cause.failure_class is FailureClass.REFUSED:
        job = _with_refused_start(situation, text)
        if job.finished:
            return job.status
    status = job.status
    # Phase 3: the incident begins when the member was last heard.
    if cause.failure_class is not FailureClass.REFUSED:
        silence = job.spec.recovery.lost_after_seconds
        fault_at = now - silence if cause.reason is Reason.MEMBER_SILENT else now
        named = replace(cause, message=_summary_of(infrastructure or rescheduled))
        incident = timeline.operator_incident(
            named, job=job, fault_class=cause.charged_to, now=now, fault_at=fault_at
        )
        status = ledger.with_incident(status, incident)
    # Phase 4: charge the budget. It may be used up, and then the job fails.
    if infrastructure:
        charged = _charge(replace(job, status=status), cause, message=text, now=now)
        if charged.finished:
            return charged.status
        status = charged.status
    # Phase 5: members, incident and charge are one write.
    return give_up_members(
        replace(job, status=status),
        situation.gang,
        {failure.index for failure in rescheduled},
        reason=cause.reason,
        message=text,
        now=now,
    )


def _with_refused_start(situation: Situation, message: str) -> Job:
    """Return the job with one more failed start, if kubelets refused a new gang.

    A gang that has trained before is not new.
    """
    job, ends = situation.job, [pod.end for pod in situation.gang.present if pod.end is not None]
    if job.status.started_at is not None or not any(map(counts_as_failed_start, ends)):
        return job
    remedy = (
        "read the kubelet's message: it reports resources that no node can align, or a broken"
        " device plugin"
    )
    return with_failed_start(job, message=message, remedy=remedy, now=situation.now)


def _summary_of(lost: Sequence[Failure]) -> str:
    """Return one sentence about the lost members, the root cause first, with a few of them."""
    cause = root_cause(lost)
    further = [failure for failure in lost if failure is not cause]
    named = [failure.message[:MAX_MESSAGE_CHARS] for failure in (cause, *further[: MAX_NAMED - 1])]
    more = len(lost) - len(named)
    return "; ".join([*named, f"and {counted(more, 'more member')}"] if more else named)


def _restart_or_fail(situation: Situation, cause: Failure) -> TrainingJobStatus:
    """Return new pods on the same nodes for all members whose pods ended or will end."""
    gang, now = situation.gang, situation.now
    # Recoveries in progress end with their gang, so charge them first.
    status = ledger.with_agent_incidents(
        situation.job, situation.observed, now=now, include_running=True
    )
    job = replace(situation.job, status=status)
    if not _is_charged(job.status, cause):
        job = _open_and_charge(job, cause, now=now)
        if job.finished:
            return job.status
    everyone = [member.index for member in gang.members]
    return transitions.restarted(
        job,
        indices=_ending_members(job, gang) if job.is_supervised else everyone,
        reason=cause.reason,
        message=f"{cause.message}; {_restart_count(job, cause.charged_to, now=now)}",
        epoch=situation.epoch,
        now=now,
    )


def _is_charged(status: TrainingJobStatus, cause: Failure) -> bool:
    """Return whether this is a consequence of the loss that the open incident is about."""
    last = status.last_incident
    return (
        cause.failure_class is FailureClass.PEER_LOST
        and last is not None
        and (last.generation, last.attempt) == ((status.generation or 0) + 1, 0)
        and last.fault_class is cause.charged_to
    )


def _open_and_charge(job: Job, cause: Failure, *, now: float) -> Job:
    """Return the job with the failure in ledger and budget. Failed if a restart cannot help."""
    incident = timeline.operator_incident(cause, job=job, fault_class=cause.charged_to, now=now)
    before = job.status.last_incident
    job = replace(job, status=ledger.with_incident(job.status, incident))
    last = job.status.last_incident
    # The same fault without a step in between: another restart would only cost GPU time.
    if last is not None and last.repeats >= MAX_REPEATS:
        same = before is not None and cause.error != "" and cause.error in before.cause
        what = "the same error" if same else "a fault"
        text = (
            f"{cause.message}; {what} {last.repeats} times in a row at step {last.failed_step}:"
            " restarting does not help"
        )
        status = transitions.failed(job, reason=Reason.NO_PROGRESS, message=text, now=now)
        return replace(job, status=status)
    return _charge(job, cause, message=cause.message, now=now)


def _charge(job: Job, cause: Failure, *, message: str, now: float) -> Job:
    """Return the job with one more fault of this class. Failed if the budget is used up."""
    recovery, fault_class = job.spec.recovery, cause.charged_to
    limit = budgets.limit_of(recovery, fault_class)
    used = budgets.used(job.status, recovery, fault_class, at=now)
    if limit is not None and used >= limit:
        field = f"recovery.{budgets.FIELDS[fault_class]}"
        text = f"{message}; used {used} of {limit} restarts ({field})"
        status = transitions.failed(job, reason=Reason.RESTARTS_EXHAUSTED, message=text, now=now)
    else:
        status = budgets.with_charge(job.status, recovery, fault_class, at=now)
    return replace(job, status=status)


def _restart_count(job: Job, fault_class: FaultClass, *, now: float) -> str:
    limit = budgets.limit_of(job.spec.recovery, fault_class)
    used = budgets.used(job.status, job.spec.recovery, fault_class, at=now)
    return f"restart {used}" if limit is None else f"restart {used} of {limit}"


def _ending_members(job: Job, gang: ObservedGang) -> list[int]:
    """Return indices of members whose pods ended or will end.

    If an agent reports that the gang gave up, all agents end, although their kubelets report them
    one by one. A pod of a role that has finished its work is not needed again.
    """
    ends = {
        pod.index: pod.end
        for pod in gang.present
        if pod.end is not None and (_is_rank(job, pod) or not pod.end.succeeded)
    }
    # One report that the gang gave up is enough: all agents end then.
    reports = (final_report(end) for end in ends.values())
    if not any(report is not None and report.fault_class is not None for report in reports):
        return list(ends)
    stay = gang.joining - ends.keys()
    ranks = {member.index for member in gang.remaining if role_pod(job.spec, member.index) is None}
    return sorted((ranks - stay) | ends.keys())


def _is_rank(job: Job, pod: PodFacts) -> bool:
    return role_pod(job.spec, pod.index) is None
