"""An elastic gang grows: the others train on until the new members stand.

Then they save, as another number of ranks can only go on from a checkpoint, and all are told of the
new membership. New members that do not come up, or a save that fails, cost nothing but the attempt;
so does the announced end of a node, which leaves no time for growing.
"""

from __future__ import annotations

from drumline.lifecycle import transitions
from drumline.lifecycle.model.gang import ObservedGang
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.plan import start as starting
from drumline.lifecycle.plan.actions import JobPlan, Notify, ProtectMembers, PushRecord
from drumline.lifecycle.plan.deadlines import start_deadline
from drumline.lifecycle.plan.generation_record import generation_record
from drumline_trainer.contract import Notice


def growth_notice_id(job: Job) -> str:
    """Id of the notice by which the members that train are asked to save."""
    return f"Grow-{job.status.generation}"


def grow_gang(job: Job, gang: ObservedGang, observed: Observed, *, now: float) -> JobPlan:
    """The next step towards the larger gang; the job trains."""
    deadline = start_deadline(job)
    if observed.acknowledged_generation == job.status.generation:
        return _joined(job, observed, now=now) if gang.complete else JobPlan(requeue_at=deadline)
    if observed.node_disruptions:
        text = f"node {observed.node_disruptions[0].node} is about to go"
        return JobPlan(status=transitions.growth_abandoned(job, message=text, now=now))
    if now >= deadline:
        text = f"the others were not ready within {job.spec.start_deadline_seconds} s"
        return JobPlan(status=transitions.growth_abandoned(job, message=text, now=now))
    if gang.missing:
        return starting.create_members(job, gang, now=now)
    if not gang.complete or not all(pod.reachable for pod in gang.present):
        return JobPlan(requeue_at=deadline)
    return _save_and_tell(job, gang, observed, now=now)


def _joined(job: Job, observed: Observed, *, now: float) -> JobPlan:
    if not observed.protected:
        return JobPlan(actions=(ProtectMembers(),))
    return JobPlan(status=transitions.running(job, now=now))


def _save_and_tell(job: Job, gang: ObservedGang, observed: Observed, *, now: float) -> JobPlan:
    wanted, answer = growth_notice_id(job), observed.notice
    deadline = start_deadline(job)
    if answer is None or answer.id != wanted:
        if observed.notified == wanted:
            return JobPlan(requeue_at=deadline)
        notice = Notice(job_uid=job.uid, id=wanted, deadline=deadline, leave=False)
        return JobPlan(actions=(Notify(notice=notice),), requeue_at=deadline)
    if answer.error:
        text = f"its state could not be saved: {answer.error}"
        return JobPlan(status=transitions.growth_abandoned(job, message=text[:1024], now=now))
    if answer.step is None:
        return JobPlan(requeue_at=deadline)
    status = transitions.with_checkpoint(job, job.status, answer.step, answer.digest, now=now)
    if status != job.status:
        return JobPlan(status=status)
    return JobPlan(actions=(PushRecord(record=generation_record(job, gang)),))
