"""Start of a generation: delete orphan pods, create pods, push the record to all members.

The start deadline bounds all of it: a gang that is not complete and ready by then gives all its
nodes back (invariant I3). `slow_start` handles pods that do not start in time.
"""

from __future__ import annotations

from collections.abc import Collection

from drumline.lifecycle import transitions
from drumline.lifecycle.model.gang import ObservedGang
from drumline.lifecycle.model.images import pinned_image
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodFacts
from drumline.lifecycle.model.roles import role_pod
from drumline.lifecycle.model.wording import counted
from drumline.lifecycle.plan.actions import (
    Action,
    CreateMembers,
    JobPlan,
    PushRecord,
    delete_actions,
)
from drumline.lifecycle.plan.deadlines import backoff_seconds, generation_at, start_deadline
from drumline.lifecycle.plan.generation_record import generation_record
from drumline.lifecycle.plan.protection import protection
from drumline.lifecycle.plan.situation import Situation
from drumline.lifecycle.plan.slow_start import (
    MAX_NAMED,
    LatePods,
    wait_for_ready,
    with_failed_start,
)
from drumline_api.conditions import Reason


def start_gang(situation: Situation) -> JobPlan:
    """Return the next step towards a gang whose members all run."""
    # Phase 1: the deadline, and lost members that wait for the scheduler.
    job, gang = situation.job, situation.gang
    deadline = start_deadline(job)
    if not gang.complete and situation.now >= deadline:
        return _give_incomplete_gang_up(situation)
    if gang.lost:
        return JobPlan(actions=tuple(_delete_orphans(gang)), requeue_at=deadline)
    # Phase 2: agents or pods that belong to an older set of members.
    contradicted = situation.observed.contradicted_generation == job.status.generation
    spent = [pod for pod in gang.present if _is_spent(job, pod)]
    if spent or contradicted or (gang.missing and situation.is_acknowledged):
        return _restart_with_new_pods(situation, spent)
    # Phase 3: create pods, then wait until the watch shows them, then push the record.
    if gang.missing:
        return create_members(situation)
    if not gang.complete:  # created, and not in the watch cache yet
        return JobPlan(requeue_at=deadline)
    return _join(situation)


def create_members(situation: Situation) -> JobPlan:
    """Create missing members, each once the orphan pods on its node have released their GPUs.

    Pods of a template also wait for orphan pods on other nodes in their grace period. These may be
    saving data that the new pods read, and no generation separates them.

    A generation that begins in the future was written by a leader whose clock is ahead. The gang
    holds its GPUs, so it does not wait for that time.
    """
    job, gang = situation.job, situation.gang
    # Phase 1: orphans that may still write the job's files.
    deletions, deadline = _delete_orphans(gang), start_deadline(job)
    saving = () if job.runs_trainer else _grace_ends(situation)
    if saving:
        return JobPlan(actions=tuple(deletions), requeue_at=min(deadline, *saving))
    # The generation fences an orphan on another node; on a member's node it still holds the GPUs.
    occupied = {pod.node for pod in gang.orphans if pod.holds_node}
    creatable = tuple(member.index for member in gang.missing if member.node not in occupied)
    # Phase 2: free places. Pods that were created may still come into view.
    if gang.expects_orphans or not creatable:
        return JobPlan(actions=tuple(deletions), requeue_at=deadline)
    # Phase 3: the restart backoff.
    begun = generation_at(job)
    begin = begun + backoff_seconds(job.status)
    if begun <= situation.now < begin:
        return JobPlan(actions=tuple(deletions), requeue_at=begin)
    return JobPlan(actions=(*deletions, CreateMembers(indices=creatable)), requeue_at=deadline)


def _grace_ends(situation: Situation) -> tuple[float, ...]:
    """Return ends of grace periods of orphan pods that run on nodes without a member.

    A pod on a dead node never ends. A pod whose deletion was not seen yet has its full grace
    period.
    """
    job, now = situation.job, situation.now
    nodes = {member.node for member in situation.gang.members}
    grace = job.spec.template.termination_grace_period_seconds if job.spec.template else 0
    ends = (
        (now + grace if pod.terminates_by is None else pod.terminates_by)
        for pod in situation.gang.orphans
        if pod.end is None and pod.node not in nodes
    )
    return tuple(end for end in ends if end > now)


def _join(situation: Situation) -> JobPlan:
    """Push the record once all pods exist, and wait until the members run."""
    job, gang = situation.job, situation.gang
    # A pod that has succeeded had the record, whichever operator pushed it.
    succeeded = any(pod.end is not None and pod.end.succeeded for pod in gang.present)
    # Phase 1: all run. Protect them before the status shows it.
    acknowledged = succeeded or situation.is_acknowledged
    ready = all(pod.ready or pod.end is not None for pod in gang.present)
    if ready and (acknowledged or not job.is_supervised):
        unprotected = protection(situation)
        if unprotected is not None:
            return unprotected
        image = _running_image(job, gang)
        return JobPlan(status=transitions.running(job, image=image, now=situation.now))
    # Phase 2: push the record as soon as every agent can receive it.
    late, deletions = LatePods.of(situation), tuple(_delete_orphans(gang))
    if (
        job.has_agents
        and not acknowledged
        and situation.now < late.deadline
        and all(_takes_part(job, pod) for pod in gang.present)
    ):
        record = generation_record(job, gang)
        return JobPlan(actions=(*deletions, PushRecord(record=record)))
    return wait_for_ready(situation, late, deletions=deletions)


def _takes_part(job: Job, pod: PodFacts) -> bool:
    """Return whether its peers can learn its address: by its agent, or as a known role."""
    has_ended = pod.end is not None and job.is_supervised
    return pod.reachable or (has_ended and role_pod(job.spec, pod.index) is not None)


def _running_image(job: Job, gang: ObservedGang) -> str | None:
    """Return the job's image, pinned to the image of its pod with the lowest index."""
    image = job.status.image
    image_id = next((pod.image_id for pod in gang.present if pod.image_id), "")
    return pinned_image(image, image_id) if image else None


def _is_spent(job: Job, pod: PodFacts) -> bool:
    """Return whether the pod succeeded in an earlier generation but is needed again."""
    if role_pod(job.spec, pod.index) is not None:
        return False
    return job.is_supervised and pod.end is not None and pod.generation != job.status.generation


def _restart_with_new_pods(situation: Situation, spent: Collection[PodFacts]) -> JobPlan:
    """Start a new generation, because agents accept one set of members per generation."""
    job = situation.job
    # Without agents no pod can join a running gang, so all pods are new.
    indices = {pod.index for pod in spent}
    if not job.is_supervised:
        indices = {member.index for member in situation.gang.members}
    status = transitions.restarted(
        job,
        indices=indices,
        reason=Reason.MEMBERS_CHANGED,
        message="a pod was replaced after its gang had received its generation record",
        epoch=situation.epoch,
        now=situation.now,
    )
    return JobPlan(status=status)


def _give_incomplete_gang_up(situation: Situation) -> JobPlan:
    """Requeue a gang whose members could not be placed or created.

    If nothing but the API server was in the way, the next start may meet the same, so it counts as
    a failed start. Lost members and pods that do not end are not a fault of the start.
    """
    job, gang = situation.job, situation.gang
    lost, absent = len(gang.lost), len(gang.remaining) - len(gang.present)
    orphans = [f"{pod.name} on {pod.node}" for pod in gang.orphans if pod.holds_node]
    ending = f"waiting for pods of an earlier generation to end: {', '.join(orphans[:MAX_NAMED])}"
    causes = (
        f"{counted(lost, 'lost member')} could not be replaced" if lost else None,
        f"{counted(absent, 'pod')} not created" if absent else None,
        ending if orphans else None,
        LatePods.of(situation).description(),
    )
    text = f"not all pods started within {job.spec.start_deadline_seconds} s: "
    text += "; ".join(cause for cause in causes if cause)
    if absent and not lost and not orphans:
        remedy = "read the operator's log, or raise startDeadlineSeconds"
        job = with_failed_start(job, message=text, remedy=remedy, now=situation.now)
        if job.finished:
            return JobPlan(status=job.status)
    reason = Reason.START_DEADLINE_EXCEEDED
    status = transitions.requeued(job, reason=reason, message=text, now=situation.now)
    return JobPlan(status=status)


def _delete_orphans(gang: ObservedGang) -> list[Action]:
    return delete_actions(gang.orphans, members=gang.members)
