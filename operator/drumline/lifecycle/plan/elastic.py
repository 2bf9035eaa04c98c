"""Growth of an elastic gang: its members continue training until the new members are ready.

Then they save, because another number of ranks can continue only from a checkpoint, and all members
get the record of the new generation. If the new members do not start in time, or the save fails,
the gang continues with its old size. A certain node disruption also ends the attempt, because it
leaves no time for growing.

A template's program that does not use the client cannot save on request. Its ranks start again at
the new size from their own checkpoints, as under torchrun.
"""

from __future__ import annotations

from drumline.lifecycle import transitions
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.plan import start
from drumline.lifecycle.plan.actions import JobPlan, Notify, PushRecord
from drumline.lifecycle.plan.deadlines import start_deadline
from drumline.lifecycle.plan.generation_record import generation_record
from drumline.lifecycle.plan.protection import protection
from drumline.lifecycle.plan.situation import Situation
from drumline.lifecycle.plan.slow_start import LatePods, look_for_reasons, next_look
from drumline_contract import Notice


def growth_notice_id(job: Job) -> str:
    """Return the id of the notice that asks the training members to save before growth."""
    return f"Grow-{job.status.generation}"


def grow_gang(situation: Situation) -> JobPlan:
    """Return the next step towards the larger gang. The job trains."""
    job, gang, observed = situation.job, situation.gang, situation.observed
    deadline = start_deadline(job)
    # Phase 1: the agents have the record, so the growth cannot be abandoned any more.
    if situation.is_acknowledged:
        return _finish_growth(situation) if gang.complete else JobPlan(requeue_at=deadline)
    # Phase 2: reasons to give the growth up. The members that train are not affected.
    leaving = next((entry for entry in observed.node_disruptions if entry.certain), None)
    if leaving is not None:
        return _abandon(situation, f"node {leaving.node} is about to go")
    late = LatePods.of(situation)
    looking = look_for_reasons(situation, late) if gang.complete else None
    if looking is not None:
        return JobPlan(actions=(looking,))
    if situation.now >= min(late.deadline, late.blocked_at):
        seconds, why = job.spec.start_deadline_seconds, late.description()
        if why and situation.now < late.deadline:
            return _abandon(situation, why)
        text = f"the new members were not ready within {seconds} s"
        return _abandon(situation, f"{text}: {why}" if why else text)
    # Phase 3: create the new members and wait for them.
    if gang.missing:
        return start.create_members(situation)
    if late.pods:
        due = min(late.deadline, late.blocked_at, next_look(situation, late))
        return JobPlan(requeue_at=due)
    if not gang.complete:
        return JobPlan(requeue_at=deadline)
    # Phase 4: all are ready. Save if possible, then push the record.
    if job.launch is not None and not situation.saves_on_request:
        return JobPlan(actions=(PushRecord(record=generation_record(job, gang)),))
    return _save_and_push_record(situation)


def _abandon(situation: Situation, message: str) -> JobPlan:
    status = transitions.growth_abandoned(situation.job, message=message, now=situation.now)
    return JobPlan(status=status)


def _finish_growth(situation: Situation) -> JobPlan:
    status = transitions.running(situation.job, now=situation.now)
    return protection(situation) or JobPlan(status=status)


def _save_and_push_record(situation: Situation) -> JobPlan:
    job, observed = situation.job, situation.observed
    # The answer counts only for this generation's notice. An older one may still be shown.
    wanted, answer = growth_notice_id(job), observed.notice
    deadline = start_deadline(job)
    if answer is None or answer.id != wanted:
        if observed.notified == wanted:
            return JobPlan(requeue_at=deadline)
        notice = Notice(job_uid=job.uid, id=wanted, deadline=deadline, leave=False)
        return JobPlan(actions=(Notify(notice=notice),), requeue_at=deadline)
    if answer.error:
        return _abandon(situation, f"its state could not be saved: {answer.error}"[:1024])
    if answer.step is None:
        return JobPlan(requeue_at=deadline)
    status = transitions.with_checkpoint(
        job, job.status, answer.step, answer.digest, now=situation.now
    )
    if status != job.status:
        return JobPlan(status=status)
    return JobPlan(actions=(PushRecord(record=generation_record(job, situation.gang)),))
