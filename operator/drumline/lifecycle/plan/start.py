"""A generation comes up: strays go, pods are created, everybody is told of everybody.

All of it ends at the start deadline: what is bound then of a gang that does not stand is given back
(I3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline.api.conditions import Phase, Reason
from drumline.api.jobstatus import TrainingJobStatus
from drumline.lifecycle import transitions
from drumline.lifecycle.model.conditions import with_summary
from drumline.lifecycle.model.gang import ObservedGang
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed, PodFacts
from drumline.lifecycle.plan.actions import (
    Action,
    CreateMembers,
    JobPlan,
    ProtectMembers,
    PushRecord,
)
from drumline.lifecycle.plan.deadlines import backoff_seconds, generation_at, start_deadline
from drumline.lifecycle.plan.deletion import delete_actions
from drumline.lifecycle.plan.generation_record import generation_record

SLOW_START_SECONDS: Final = 10.0
"""A start that takes longer says in status what it waits for, as soon as a kubelet says why."""
SILENT_START_SECONDS: Final = 30.0
"""After so long also where none does: a busy cluster is not made busier by writes that say nothing.
"""


def start_gang(
    job: Job, gang: ObservedGang, observed: Observed, *, now: float, epoch: int
) -> JobPlan:
    """The next step towards a gang that stands."""
    deadline = start_deadline(job)
    if not gang.complete and now >= deadline:
        return _too_late(job, gang, now=now)
    if gang.lost:
        return JobPlan(actions=tuple(_clean(gang)), requeue_at=deadline)
    told = observed.acknowledged_generation == job.status.generation
    contradicted = observed.contradicted_generation == job.status.generation
    spent = [pod for pod in gang.present if _is_spent(job, pod)]
    if spent or contradicted or (gang.missing and told):
        return _members_changed(job, gang, spent, now=now, epoch=epoch)
    if gang.missing:
        return create_members(job, gang, now=now)
    if not gang.complete:  # created, and not shown by the watch yet
        return JobPlan(requeue_at=deadline)
    return _join(job, gang, observed, now=now)


def create_members(job: Job, gang: ObservedGang, *, now: float) -> JobPlan:
    """Missing members, each once the strays on its node have given their devices back."""
    clean, deadline = _clean(gang), start_deadline(job)
    # A zombie elsewhere is fenced by its generation; one on a member's node holds its devices.
    taken = {pod.node for pod in gang.orphans if pod.end is None}
    free = tuple(member.index for member in gang.missing if member.node not in taken)
    if gang.expects_orphans or not free:
        return JobPlan(actions=tuple(clean), requeue_at=deadline)
    begin = generation_at(job) + backoff_seconds(job.status)
    if now < begin:
        return JobPlan(actions=tuple(clean), requeue_at=begin)
    return JobPlan(actions=(*clean, CreateMembers(indices=free)), requeue_at=deadline)


def _join(job: Job, gang: ObservedGang, observed: Observed, *, now: float) -> JobPlan:
    """All members exist: tell them of each other, wait until they run."""
    # Who has already ended well had the record, whoever pushed it.
    through = any(pod.end is not None and pod.end.succeeded for pod in gang.present)
    acknowledged = through or observed.acknowledged_generation == job.status.generation
    standing = all(pod.ready or pod.end is not None for pod in gang.present)
    if standing and (acknowledged or not job.runs_trainer):
        if not observed.protected:
            return JobPlan(actions=(ProtectMembers(),))
        return JobPlan(status=transitions.running(job, now=now))
    deadline, clean = start_deadline(job), _clean(gang)
    if now >= deadline:
        return _too_late(job, gang, now=now)
    if job.has_agents and not acknowledged and all(pod.reachable for pod in gang.present):
        return JobPlan(actions=(*clean, PushRecord(record=generation_record(job, gang))))
    explained = any(pod.waiting for pod in gang.present)
    slow = generation_at(job) + (SLOW_START_SECONDS if explained else SILENT_START_SECONDS)
    if now < slow:
        return JobPlan(actions=tuple(clean), requeue_at=min(deadline, slow))
    status = _slow_start(job, gang) if observed.refresh_due else job.status
    if status != job.status:
        return JobPlan(status=status)
    return JobPlan(actions=tuple(clean), requeue_at=min(deadline, now + SLOW_START_SECONDS))


def _is_spent(job: Job, pod: PodFacts) -> bool:
    """Whether it ended well in an earlier generation, though the gang needs it again."""
    return job.runs_trainer and pod.end is not None and pod.generation != job.status.generation


def _members_changed(
    job: Job, gang: ObservedGang, spent: Sequence[PodFacts], *, now: float, epoch: int
) -> JobPlan:
    """Agents know one membership a generation: with another pod among them a new one begins."""
    again = {pod.index for pod in spent}
    if not job.runs_trainer:
        again = {member.index for member in gang.members}
    text = "a pod was replaced after its gang had been told who its members are"
    reason = Reason.MEMBERS_CHANGED
    return JobPlan(
        status=transitions.restarted(
            job, indices=again, reason=reason, message=text, epoch=epoch, now=now
        )
    )


def _too_late(job: Job, gang: ObservedGang, *, now: float) -> JobPlan:
    absent = len(gang.remaining) - len(gang.present)
    leaving = [f"{pod.name} on {pod.node}" for pod in gang.orphans if pod.end is None][:3]
    causes = (
        f"{len(gang.lost)} lost members found no other place" if gang.lost else "",
        f"{absent} pods are not created" if absent else "",
        f"waiting for pods of an earlier generation to go: {', '.join(leaving)}" if leaving else "",
        _laggards(gang.present),
    )
    text = f"not all pods started within {job.spec.start_deadline_seconds} s: "
    text += "; ".join(cause for cause in causes if cause)
    reason = Reason.START_DEADLINE_EXCEEDED
    return JobPlan(status=transitions.requeued(job, reason=reason, message=text, now=now))


def _slow_start(job: Job, gang: ObservedGang) -> TrainingJobStatus:
    present = gang.present
    pulling = any("Image" in pod.waiting for pod in present)
    reason = Reason.PULLING_IMAGES if pulling else Reason.WAITING_FOR_AGENTS
    ready = sum(1 for pod in present if pod.reachable)
    status = job.status.model_copy(update={"ready": f"{ready}/{job.size}"})
    phase = Phase.RECOVERING if status.phase is Phase.RECOVERING else Phase.STARTING
    return with_summary(status, phase, reason, _laggards(present))


def _laggards(present: tuple[PodFacts, ...]) -> str:
    late = [pod for pod in present if not pod.reachable and pod.end is None]
    named = "; ".join(f"{pod.name} on {pod.node}: {pod.waiting or 'not ready'}" for pod in late[:3])
    more = f"; and {len(late) - 3} more" if len(late) > 3 else ""
    return f"{len(late)} of {len(present)} pods are not up: {named}{more}" if late else ""


def _clean(gang: ObservedGang) -> list[Action]:
    return delete_actions(gang.orphans, beside=gang.members)
