"""Kubernetes events of a job, at most a handful in its life. `kubectl describe` shows them."""

from __future__ import annotations

from enum import StrEnum

from drumline.kube.events import EventRecorder, Occurrence, Regarding, Severity
from drumline.kube.kinds import TRAINING_JOBS
from drumline.lifecycle.model.conditions import condition
from drumline.lifecycle.model.idleness import IDLE_REASONS
from drumline.lifecycle.model.job import Job
from drumline_api.conditions import ConditionType, Phase, Reason
from drumline_api.jobstatus import TrainingJobStatus
from drumline_scheduler.decisions import BlockReason


class EventAction(StrEnum):
    """The `action` of events.k8s.io/v1: the operator's part in the event."""

    PLACE = "Place"
    DISRUPT = "Disrupt"
    RECOVER = "Recover"
    FINISH = "Finish"
    WATCH = "Watch"
    ADMIT = "Admit"
    """Admission of a workload other than a TrainingJob: it waits for its queue, or was admitted."""
    JUDGE = "Judge"
    """Verdict on a node's health."""


class JobEvents:
    """Convert a job's transitions to events.

    Args:
        recorder: writes the events asynchronously. It drops events that it cannot write.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder

    def placed(self, job: Job, *, pool: str, nodes: tuple[str, ...], domain: str) -> None:
        """Report that the gang was assigned. A job with one pod gets no event: its pod has one.

        Args:
            job: the job with its present status.
            pool: name of the pool.
            nodes: node of each member.
            domain: the topology domain that contains all nodes.
        """
        if len(nodes) == 1:
            return
        shown = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
        where = f" in {domain}" if domain else ""
        self._record(
            job, reason="Placed", action=EventAction.PLACE, note=f"pool {pool}{where}: {shown}"
        )

    def waits(self, job: Job, *, reason: str, message: str) -> None:
        """Report that the gang cannot be placed now.

        Args:
            job: the job with its present status.
            reason: CamelCase reason of the event.
            message: text for `kubectl get` and the event.
        """
        self._record(job, reason=reason, action=EventAction.PLACE, note=message)

    def scheduler_failed(self, job: Job, *, message: str) -> None:
        """Report that the scheduler raised an exception on the job."""
        self._record(
            job,
            reason=str(BlockReason.SCHEDULER_ERROR),
            action=EventAction.PLACE,
            note=message,
            severity=Severity.WARNING,
        )

    def status_refused(self, job: Job, *, message: str) -> None:
        """Report that the API server refuses the job's status, which therefore cannot say so."""
        self._record(
            job,
            reason=str(Reason.API_REFUSED),
            action=EventAction.PLACE,
            note=message,
            severity=Severity.WARNING,
        )

    def became(self, job: Job, status: TrainingJobStatus) -> None:
        """Report that the job was disrupted, became idle, was restarted or ended.

        At most one event for each status write. The order of the branches is the priority.
        """
        # Each branch compares with the status before, so a repeated write reports nothing new.
        before = job.status
        if status.finished_at and not before.finished_at:
            failed = status.phase == Phase.FAILED
            self._record(
                job,
                reason=str(status.reason),
                action=EventAction.FINISH,
                note=status.message or "",
                severity=Severity.WARNING if failed else Severity.NORMAL,
            )
        elif status.disruption and not before.disruption:
            note = status.disruption.reason or status.disruption.by
            self._record(
                job, reason=str(status.disruption.kind), action=EventAction.DISRUPT, note=note
            )
        elif (idle := _idleness(status)) and idle != _idleness(before):
            reason, note = idle
            self._record(
                job,
                reason=reason,
                action=EventAction.WATCH,
                note=note,
                severity=Severity.WARNING,
            )
        elif status.incident and status.incident != before.incident:
            self._record(
                job,
                reason=str(status.reason),
                action=EventAction.RECOVER,
                note=status.incident,
                severity=Severity.WARNING,
            )

    def forget(self, uid: str) -> None:
        """Forget the event series of a deleted job."""
        self._recorder.forget(uid)

    def _record(
        self,
        job: Job,
        *,
        reason: str,
        action: EventAction,
        note: str,
        severity: Severity = Severity.NORMAL,
    ) -> None:
        regarding = Regarding(
            resource=TRAINING_JOBS, namespace=job.namespace, name=job.name, uid=job.uid
        )
        self._recorder.record(
            Occurrence(
                regarding=regarding, reason=reason, action=action, note=note, severity=severity
            )
        )


def _idleness(status: TrainingJobStatus) -> tuple[str, str] | None:
    """Return reason and message of the condition about idle GPUs, or None.

    A job that was suspended because it was idle counts too.
    """
    for kind in (ConditionType.IDLE, ConditionType.SUSPENDED):
        shown = condition(status, kind)
        if shown is not None and shown.status == "True" and shown.reason in IDLE_REASONS:
            return shown.reason, shown.message
    return None
