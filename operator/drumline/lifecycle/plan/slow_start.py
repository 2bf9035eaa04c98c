"""A slow start: its reason, how long it may hold its GPUs, and the cost of a failed start.

After `SLOW_START_SECONDS` the status shows why the start waits, with the kubelet's message. The
message comes from the pods' status, or from their events. Events are read only for a few late pods,
and less and less often. Time in which images are pulled does not count against
startDeadlineSeconds. A definite trouble (`start_troubles`) ends the start after
`BLOCKED_START_SECONDS`. Failed starts in a row are counted, and the last allowed one fails the job.
Compare Kueue's requeuingStrategy.backoffLimitCount (KEP-349).

Example: 2 pods, the claim `dta` does not exist, 5 starts are allowed.

    0 s    pods are created
    10 s   events are read: StartBlocked, `persistentvolumeclaim "dta" not found`
    30 s   requeued, failedStarts 1; again after 10, 20, 40, 80 s; the fifth fails the job

So failing starts hold GPUs for at most maxFailedStarts x (startDeadlineSeconds + pulls).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from drumline.lifecycle import transitions
from drumline.lifecycle.incidents.start_troubles import (
    StartTrouble,
    is_pulling,
    is_silent,
    pulled_until,
    start_trouble,
)
from drumline.lifecycle.manifests.children import child_name
from drumline.lifecycle.model.conditions import changed, with_summary
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import PodEvents, PodFacts
from drumline.lifecycle.plan.actions import Action, JobPlan, ReadPodEvents, RestoreChildren
from drumline.lifecycle.plan.deadlines import backoff_seconds, generation_at, start_deadline
from drumline.lifecycle.plan.situation import Situation
from drumline_api.conditions import Phase, Reason
from drumline_api.jobstatus import TrainingJobStatus

SLOW_START_SECONDS: Final = 10.0
"""Time after which the status shows why the start waits, if a kubelet gives a reason."""
SILENT_START_SECONDS: Final = 30.0
"""Time after which it does so without a kubelet's reason.

Before that the write would contain nothing and only load a busy API server.
"""
BLOCKED_START_SECONDS: Final = 30.0
"""Time for which a start with a definite trouble continues. A missing object may come late."""
MAX_PULL_SECONDS: Final = 3600.0
"""Longest pull time that does not count against the deadline."""
MAX_NAMED: Final = 3
"""Pods that a message names, and whose events are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatePods:
    """The pods of a complete gang that are not ready, and the known reasons."""

    pods: tuple[PodFacts, ...]
    gang_size: int
    leader: str
    """Pod whose agent must receive the generation record."""
    troubles: tuple[StartTrouble, ...]
    """Troubles of pods whose kubelets have given a reason."""
    pulling: bool
    """True if one of them pulls an image now."""
    deadline: float
    """End of the start (seconds since the epoch)."""
    blocked_at: float
    """Time at which it is given up because of `definite`. Infinite without such a trouble."""

    @classmethod
    def of(cls, situation: Situation) -> LatePods:
        """Return the late pods of this gang. O(members)."""
        job, present = situation.job, situation.gang.present
        late = tuple(pod for pod in present if not pod.reachable and pod.end is None)
        seen = situation.observed.pod_events
        of_pods = (start_trouble(pod, seen.get(pod.uid)) for pod in late)
        troubles = tuple(trouble for trouble in of_pods if trouble is not None)
        blocked = any(trouble.definite for trouble in troubles)
        return cls(
            pods=late,
            gang_size=len(present),
            leader=min(present, key=lambda pod: pod.index).name if present else "",
            troubles=troubles,
            pulling=any(is_pulling(seen.get(pod.uid)) for pod in late),
            deadline=_deadline(job, [seen[pod.uid] for pod in present if pod.uid in seen]),
            blocked_at=_begin(job) + BLOCKED_START_SECONDS if blocked else inf,
        )

    @property
    def definite(self) -> StartTrouble | None:
        """Return a trouble that waiting does not repair, of the lowest index, or None."""
        return next((trouble for trouble in self.troubles if trouble.definite), None)

    def description(self) -> str:
        """Return the number of late pods and their reasons as part of a message, or ''."""
        if not self.pods:
            return ""
        sentences = {trouble.pod.uid: trouble.sentence for trouble in self.troubles}
        telling = sorted(self.pods, key=lambda pod: pod.uid not in sentences)
        named = "; ".join(
            f"{pod.name} on {pod.node}: {sentences.get(pod.uid) or pod.waiting or 'not ready'}"
            for pod in telling[:MAX_NAMED]
        )
        more = len(self.pods) - MAX_NAMED
        tail = f"; and {more} more" if more > 0 else ""
        return f"{len(self.pods)} of {self.gang_size} pods are not running: {named}{tail}"

    def of_complete_gang(self) -> str:
        """Return the message about a gang whose pods all exist.

        If no pod is late, the agent did not accept the record.
        """
        untaken = (
            f"the pods are running, but the agent in {self.leader} does not accept a"
            " generation record"
        )
        return self.description() or f"{untaken}: check its logs and the trainer's image"


def wait_for_ready(
    situation: Situation, late: LatePods, *, deletions: tuple[Action, ...]
) -> JobPlan:
    """Wait, explain, or give up, while all pods exist and some are not ready.

    Args:
        situation: the job and what is observed of it.
        late: pods that are not ready, with their events.
        deletions: deletions to carry out in any case.
    """
    job, now = situation.job, situation.now
    # Phase 1: read events that are due. They decide everything below.
    looking = look_for_reasons(situation, late)
    if looking is not None:
        return JobPlan(actions=(*deletions, looking))
    # Phase 2: a definite trouble, or the deadline. A missing Secret of ours is repaired.
    definite = late.definite
    if definite is not None and definite.missing == child_name(job) and now < late.deadline:
        return _restore_children(situation, late, deletions=deletions)
    if definite is not None and now >= late.blocked_at:
        text, remedy = late.description(), definite.remedy
        return JobPlan(status=start_refused(job, message=text, remedy=remedy, now=now))
    if now >= late.deadline:
        return JobPlan(status=_start_deadline_exceeded(job, late, now=now))
    # Phase 3: show the reason once the start is slow, at the pace of the write budget.
    explained = bool(late.troubles) or late.pulling
    slow_at = _begin(job) + (SLOW_START_SECONDS if explained else SILENT_START_SECONDS)
    if now >= slow_at:
        status = _slow_start_status(job, late) if situation.observed.refresh_due else job.status
        if status != job.status:
            return JobPlan(status=status)
        slow_at = now + SLOW_START_SECONDS
    due = min(late.deadline, slow_at, late.blocked_at, next_look(situation, late))
    return JobPlan(actions=deletions, requeue_at=due)


def with_failed_start(job: Job, *, message: str, remedy: str, now: float) -> Job:
    """Return the job with one more failed start. Failed if no more are allowed.

    Args:
        job: the job with its present status.
        message: text for `kubectl get` and the event.
        remedy: what the user can do.
        now: Unix time in seconds.
    """
    # The count is in the status, so a new leader continues it.
    count, limit = (job.status.failed_starts or 0) + 1, job.spec.recovery.max_failed_starts
    job = replace(job, status=changed(job.status, failed_starts=count))
    if count < limit:
        return job
    text = f"{message}; start {count} of {limit} in a row that failed (recovery.maxFailedStarts)"
    advice = f"; {remedy}" if remedy else ""
    status = transitions.failed(job, reason=Reason.START_FAILED, message=text + advice, now=now)
    return replace(job, status=status)


def start_refused(
    job: Job,
    *,
    message: str,
    remedy: str,
    now: float,
    reason: Reason = Reason.START_BLOCKED,
) -> TrainingJobStatus:
    """Return the status after a start that cannot succeed: queued again, or failed.

    Args:
        job: the job with its present status.
        message: text for `kubectl get` and the event.
        remedy: what the user can do.
        now: Unix time in seconds.
        reason: reason for `kubectl get` and the event.
    """
    job = with_failed_start(job, message=message, remedy=remedy, now=now)
    if job.finished:
        return job.status
    text = f"{message}: {remedy}"
    return transitions.requeued(job, reason=reason, message=text, now=now)


def _begin(job: Job) -> float:
    return generation_at(job) + backoff_seconds(job.status)


def _deadline(job: Job, seen: Iterable[PodEvents]) -> float:
    """Return the start deadline, counted from the end of the last known pull."""
    # The whole gang waits for the slowest pull. The bound keeps an endless pull from holding GPUs.
    ends = (pulled_until(events) for events in seen)
    pulling = max((end - _begin(job) for end in ends if end is not None), default=0.0)
    return start_deadline(job) + min(max(0.0, pulling), MAX_PULL_SECONDS)


def look_for_reasons(situation: Situation, late: LatePods) -> ReadPodEvents | None:
    """Return the events that must be read now, or None."""
    if situation.now < next_look(situation, late):
        return None
    silent = [pod for pod in late.pods if is_silent(pod)]
    return ReadPodEvents(pods=tuple(silent[:MAX_NAMED]))


def next_look(situation: Situation, late: LatePods) -> float:
    """Return the time of the next read of events: at 10, 20, 40 ... s, and before giving up.

    Infinite if every late pod's own status gives a reason.
    """
    silent = [pod for pod in late.pods if is_silent(pod)][:MAX_NAMED]
    if not silent:
        return inf
    begin, now, seen = _begin(situation.job), situation.now, situation.observed.pod_events
    read_at = min((seen[pod.uid].read_at if pod.uid in seen else -inf) for pod in silent)
    if read_at < begin:
        return min(begin + SLOW_START_SECONDS, late.deadline)
    if any(read_at < limit <= now for limit in (late.blocked_at, late.deadline)):
        return now
    return read_at + max(SLOW_START_SECONDS, read_at - begin)


def _restore_children(
    situation: Situation, late: LatePods, *, deletions: tuple[Action, ...]
) -> JobPlan:
    """Create the job's deleted Secret again. The kubelets retry the mount by themselves."""
    due = min(late.deadline, next_look(situation, late), situation.now + SLOW_START_SECONDS)
    return JobPlan(actions=(*deletions, RestoreChildren()), requeue_at=due)


def _start_deadline_exceeded(job: Job, late: LatePods, *, now: float) -> TrainingJobStatus:
    seconds = job.spec.start_deadline_seconds
    text = f"not all pods started within {seconds} s: {late.of_complete_gang()}"
    remedy = "fix the problem in the message, or raise startDeadlineSeconds"
    job = with_failed_start(job, message=text, remedy=remedy, now=now)
    if job.finished:
        return job.status
    reason = Reason.START_DEADLINE_EXCEEDED
    return transitions.requeued(job, reason=reason, message=text, now=now)


def _slow_start_status(job: Job, late: LatePods) -> TrainingJobStatus:
    definite = late.definite
    pulling = late.pulling or any("Image" in pod.waiting for pod in late.pods)
    reason = Reason.PULLING_IMAGES if pulling else Reason.WAITING_FOR_AGENTS
    text = late.of_complete_gang()
    if definite is not None:
        reason, text = Reason.START_BLOCKED, f"{text}: {definite.remedy}"
    status = changed(job.status, ready=f"{late.gang_size - len(late.pods)}/{job.members}")
    phase = Phase.RECOVERING if status.phase is Phase.RECOVERING else Phase.STARTING
    return with_summary(status, phase, reason, text)
