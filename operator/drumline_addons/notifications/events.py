"""Detect the changes of a job's outlook that its owner wants to know. Pure.

The outlook is a coarser state than the phase. A recovery, a failed start that is tried again or a
move to other nodes change the phase and not the outlook: the job still gets where it was going.

    Waiting ──> Running ──> Finished | Failed
       │         │   ^
       v         v   │
      Stuck    Preempted      Stuck and Preempted go on to any other; Suspended is a message only
                              where idle GPUs are why
A job that runs and stays idle is one message more, until it shows work again, and at most one an
hour: whoever runs in its pods decides how often it is idle.

`advanced` is a function of the outlook known before and the object now. What it returns is to be
kept: given it, the same object brings no second change. The id of a change follows from the job's
uid and a time in its status, so who receives a change twice can see it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec

from drumline.overview.jobs import NOT_IN_LINE
from drumline.overview.objects import seconds
from drumline_addons.notifications.jobs import Culprit, NotifiableJob

_PREEMPTED: Final = frozenset(("Preempted", "QueueStopped"))
_IDLE_GPUS: Final = "IdleGpus"
_CLOCKS_DIFFER_SECONDS: Final = 30.0
"""Maximum difference between the notifier's and the operator's clock. A pause counts as idle only
after a minute."""
_WAITS_FOR_OTHERS: Final = frozenset(("WaitingForJobs", "SweepLimit"))
_NEEDS_A_CHANGE: Final = NOT_IN_LINE | {
    "PredecessorFailed",
    "PredecessorNotFound",
    "CircularDependency",
}
"""Reasons that do not disappear by waiting."""
_NOBODY_FAILED: Final = frozenset(("ActiveDeadlineExceeded", "ConfigRefused"))
"""Failure reasons that earlier incidents did not cause."""


class Outlook(StrEnum):
    """Where a job is going."""

    WAITING = "Waiting"
    RUNNING = "Running"
    PREEMPTED = "Preempted"
    STUCK = "Stuck"
    SUSPENDED = "Suspended"
    FAILED = "Failed"
    FINISHED = "Finished"


class NewsKind(StrEnum):
    """Topic of a message."""

    STARTED = "Started"
    PREEMPTED = "Preempted"
    STUCK = "Stuck"
    FAILED = "Failed"
    FINISHED = "Finished"
    IDLE = "Idle"
    BUDGET = "Budget"
    """Topic of messages about queues."""


class KnownOutlook(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Last known outlook of a job.

    Attributes:
        outlook: the outlook.
        at: start of the outlook, in seconds since the epoch.
        promised_by: latest time of the first forecast of its start, while it waits. None: no
            forecast.
        is_idle: whether a running job was reported as idle.
        idle_said_at: time of the last report that it is idle. None: never reported.
    """

    outlook: Outlook
    at: float
    promised_by: float | None = None
    is_idle: bool = False
    idle_said_at: int | None = None


class OutlookChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of a job's outlook, with the content of its message.

    Attributes:
        id: equal for the same change, whoever derives it.
        before: outlook before the change. None: the change is about a queue.
        at: time of the change, in seconds since the epoch.
        since: Stuck: time since which nothing happened.
        returns_at: Preempted: median of the forecast starts (RFC 3339). Empty: unknown.
        returns_by: 90th percentile of the forecast starts.
        culprit: Failed: culprit of the newest incident.
    """

    id: str
    kind: NewsKind
    before: Outlook | None = None
    at: float
    namespace: str
    name: str
    uid: str
    queue: str = ""
    user: str = ""
    reason: str = ""
    message: str = ""
    since: float | None = None
    returns_at: str = ""
    returns_by: str = ""
    step: int | None = None
    total_steps: int | None = None
    restarts: int = 0
    culprit: Culprit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Waiting times after which a message is sent.

    Attributes:
        after_forecast_seconds: queue time beyond the late end of the first forecast. Half of the
            forecast time counts instead if it is longer.
        without_forecast_seconds: limit for the queue time of a job without a forecast.
        starting_seconds: time of starting or recovering, retries included.
        refused_seconds: time for which a job waits that somebody has to change.
        forecast_seconds: time for which a preempted job's message waits for its forecast. The
            operator makes forecasts about every minute.
        move_seconds: time that a job may take to move to nodes that are held for it.
        idle_seconds: time after a message about an idle job within which it is not repeated.
    """

    after_forecast_seconds: float = 1800.0
    without_forecast_seconds: float = 86_400.0
    starting_seconds: float = 1800.0
    refused_seconds: float = 300.0
    forecast_seconds: float = 180.0
    move_seconds: float = 600.0
    idle_seconds: float = 3600.0


PATIENCE: Final = Patience()


def advanced(
    known: KnownOutlook | None, job: NotifiableJob, *, now: float, patience: Patience = PATIENCE
) -> tuple[KnownOutlook, OutlookChange | None]:
    """Return the new known outlook, and the change if there is one.

    Args:
        known: last returned outlook. None: the job is new.
        job: current state of the job.
        now: seconds since the epoch. Besides the object, only waiting too long depends on it.
        patience: waiting times after which a message is sent.
    """
    # A new job counts as waiting from its creation, even if the notifier starts later.
    before = known or KnownOutlook(outlook=Outlook.WAITING, at=seconds(job.created_at) or now)
    # The phase alone selects the branch, because it summarizes the conditions.
    match job.phase:
        # `finished_at` as the key: a status that is written again gives the same id.
        case "Succeeded":
            return _to(before, job, Outlook.FINISHED, key=job.finished_at, now=now)
        case "Failed":
            return _to(before, job, Outlook.FAILED, key=job.finished_at, now=now)
        case "Running":
            return _running(before, job, now=now, patience=patience)
        case "Suspended":
            return _suspended(before, job, now=now)
        case "Starting" | "Recovering":
            return _starting(before, job, now=now, patience=patience)
        case _:
            return _waiting(before, job, now=now, patience=patience)


def _running(
    before: KnownOutlook, job: NotifiableJob, *, now: float, patience: Patience
) -> tuple[KnownOutlook, OutlookChange | None]:
    # The transition time is the key, so a start after a preemption has its own id.
    if before.outlook is not Outlook.RUNNING:
        key = job.running_changed_at or job.started_at
        return _to(before, job, Outlook.RUNNING, key=key, now=now)
    # Work ends the pause, so the next pause is news again.
    if not job.idle_at:
        return msgspec.structs.replace(before, is_idle=False), None
    said_at = before.idle_said_at
    # The operator may have missed work between two pauses, for example during an upgrade.
    is_said = before.is_idle and not _is_of_a_later_pause(job, said_at)
    # A negative difference means that the clock was set back. The message is then sent.
    if is_said or (said_at is not None and 0.0 <= now - said_at < patience.idle_seconds):
        return before, None
    change = _change(before, job, NewsKind.IDLE, key=job.idle_at, now=now)
    known = msgspec.structs.replace(before, is_idle=True, idle_said_at=int(now))
    return known, msgspec.structs.replace(change, message=job.idle_message)


def _is_of_a_later_pause(job: NotifiableJob, said_at: int | None) -> bool:
    """Return whether the job worked since the message while the operator was away."""
    idle_at = seconds(job.idle_at)
    if idle_at is None or said_at is None:
        return False
    return idle_at > said_at + _CLOCKS_DIFFER_SECONDS


def _suspended(
    before: KnownOutlook, job: NotifiableJob, *, now: float
) -> tuple[KnownOutlook, OutlookChange | None]:
    """Return the change for a suspension. Suspensions by the user are no news."""
    if before.outlook is Outlook.SUSPENDED:
        return before, None
    suspended = _known(before, Outlook.SUSPENDED, at=now)
    # Users who suspend their own jobs know it.
    if job.reason != _IDLE_GPUS:
        return suspended, None
    return suspended, _change(before, job, NewsKind.IDLE, key=job.lost_at, now=now)


def _starting(
    before: KnownOutlook, job: NotifiableJob, *, now: float, patience: Patience
) -> tuple[KnownOutlook, OutlookChange | None]:
    # The later time counts, because a recovery begins after the admission.
    since = max(seconds(job.running_changed_at) or 0.0, seconds(job.admitted_at) or 0.0)
    if since and now >= since + patience.starting_seconds:
        key = job.running_changed_at or job.admitted_at
        return _stuck(before, job, key=key, since=since, now=now)
    return before, None


def _waiting(
    before: KnownOutlook, job: NotifiableJob, *, now: float, patience: Patience
) -> tuple[KnownOutlook, OutlookChange | None]:
    # The wait starts again after a suspension. Suspended time does not count as a delay.
    if before.outlook is Outlook.SUSPENDED:
        before = _known(before, Outlook.WAITING, at=seconds(job.queued_at) or now)
    if _is_preempted(before, job):
        # The message waits for the forecast, so that it can name the time of the return.
        if now < _report_time(job, now=now, patience=patience):
            return before, None
        known, change = _to(before, job, Outlook.PREEMPTED, key=job.lost_at, now=now)
        return _with_promise(known, job), change
    before = _with_promise(before, job)
    # The newest known start of the wait. It is also the key, so each wait is reported once.
    key = job.lost_at or job.queued_at or job.created_at
    since = seconds(key) or before.at
    limit = _limit(before, job, since=since, patience=patience)
    # None: the job waits for other jobs, and any limit would report healthy chains.
    if limit is None or now < limit:
        return before, None
    return _stuck(before, job, key=key, since=since, now=now)


def _is_preempted(before: KnownOutlook, job: NotifiableJob) -> bool:
    """Return whether it released its GPUs for another job or queue, not yet reported."""
    if before.outlook is Outlook.PREEMPTED or job.lost_reason not in _PREEMPTED:
        return False
    # `at` is compared in whole seconds, because times of a status have no fractions.
    return (seconds(job.lost_at) or 0.0) >= int(before.at)


def _report_time(job: NotifiableJob, *, now: float, patience: Patience) -> float:
    """Return the time to report its preemption: with its forecast, and not if it only moves."""
    lost_at = seconds(job.lost_at) or now
    if job.is_moving:
        return lost_at + patience.move_seconds
    return now if job.expected_start else lost_at + patience.forecast_seconds


def _with_promise(before: KnownOutlook, job: NotifiableJob) -> KnownOutlook:
    promise = seconds(job.expected_start_by)
    # Only the first forecast is a promise. Later ones move with the queue.
    if before.promised_by is not None or promise is None or before.outlook is Outlook.STUCK:
        return before
    return msgspec.structs.replace(before, promised_by=promise)


def _limit(
    before: KnownOutlook, job: NotifiableJob, *, since: float, patience: Patience
) -> float | None:
    """Return the time at which its waiting is reported, or None if it waits for other jobs."""
    # Nobody else can help such a job, so its owner hears of it within minutes.
    if job.reason in _NEEDS_A_CHANGE:
        return since + patience.refused_seconds
    if before.promised_by is not None:
        # Half of the forecast wait: a forecast of two days may be late by one.
        half = 0.5 * (before.promised_by - since)
        return before.promised_by + max(patience.after_forecast_seconds, half)
    if job.reason in _WAITS_FOR_OTHERS:
        return None
    return since + patience.without_forecast_seconds


def _stuck(
    before: KnownOutlook, job: NotifiableJob, *, key: str, since: float, now: float
) -> tuple[KnownOutlook, OutlookChange | None]:
    known, change = _to(before, job, Outlook.STUCK, key=key, now=now)
    if change is None:
        return known, None
    # The message is about now, not about the start of the wait. An old time would be dropped.
    at_now = msgspec.structs.replace(known, at=now)
    return at_now, msgspec.structs.replace(change, at=now, since=since)


_NEWS: Final = {
    Outlook.RUNNING: NewsKind.STARTED,
    Outlook.PREEMPTED: NewsKind.PREEMPTED,
    Outlook.STUCK: NewsKind.STUCK,
    Outlook.FAILED: NewsKind.FAILED,
    Outlook.FINISHED: NewsKind.FINISHED,
}


def _to(
    before: KnownOutlook, job: NotifiableJob, outlook: Outlook, *, key: str, now: float
) -> tuple[KnownOutlook, OutlookChange | None]:
    """Set the outlook of the job. Return a change if it had another one."""
    # No change of the outlook means no message, however often the phase changes.
    if before.outlook is outlook:
        return before, None
    change = _change(before, job, _NEWS[outlook], key=key, now=now)
    return _known(before, outlook, at=change.at), change


def _known(before: KnownOutlook, outlook: Outlook, *, at: float) -> KnownOutlook:
    """Return the new known outlook.

    It keeps only the last time that the job was reported as idle.
    """
    return KnownOutlook(outlook=outlook, at=at, idle_said_at=before.idle_said_at)


def _change(
    before: KnownOutlook, job: NotifiableJob, kind: NewsKind, *, key: str, now: float
) -> OutlookChange:
    # A preemption carries the reason of the loss. The present reason is already that of the wait.
    is_preemption, has_culprit = kind is NewsKind.PREEMPTED, job.reason not in _NOBODY_FAILED
    return OutlookChange(
        id=change_id(job.uid, kind, key=key),
        kind=kind,
        before=before.outlook,
        at=seconds(key) or now,
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        queue=job.queue,
        user=job.user,
        reason=job.lost_reason if is_preemption else job.reason,
        message=job.lost_message if is_preemption else job.message,
        returns_at=job.expected_start if is_preemption else "",
        returns_by=job.expected_start_by if is_preemption else "",
        step=job.step,
        total_steps=job.total_steps,
        restarts=job.restarts,
        culprit=job.culprit if kind is NewsKind.FAILED and has_culprit else None,
    )


def change_id(uid: str, kind: NewsKind, *, key: str) -> str:
    """Return a UUID of the change. The same job, kind and time give the same UUID.

    Args:
        uid: uid of the object.
        kind: kind of the change.
        key: time or other value that tells two changes apart.
    """
    # A name-based UUID: another notifier, or a restart, derives the same id.
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"drumline.dev/{uid}/{kind}/{key}"))


def rfc3339(moment: float) -> str:
    """Return a time in the format of the API server."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
