"""TrainingJobs as an API server sends them, at any moment of their life."""

from __future__ import annotations

import json
from typing import Any

from drumline.kube.store import Change, Event
from drumline.overview.objects import seconds
from drumline_addons.notifications.events import NewsKind, Outlook, OutlookChange
from drumline_addons.notifications.jobs import NotifiableJob, notifiable_job

Json = dict[str, Any]


def at(clock: str) -> float:
    """Seconds since the epoch of HH:MM:SS on the day of these tests."""
    moment = seconds(f"2026-11-23T{clock}Z")
    assert moment is not None
    return moment


def time(clock: str) -> str:
    return f"2026-11-23T{clock}Z"


def condition(kind: str, holds: bool, *, since: str, reason: str = "", message: str = "") -> Json:
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
        "lastTransitionTime": time(since),
    }


def job(
    phase: str | None = None,
    *,
    name: str = "llama",
    namespace: str = "research",
    uid: str = "u-1",
    notify: str | None = None,
    **status: Any,
) -> NotifiableJob:
    metadata: Json = {
        "name": name,
        "namespace": namespace,
        "uid": uid,
        "resourceVersion": "7",
        "creationTimestamp": time("08:00:00"),
    }
    if notify is not None:
        metadata["annotations"] = {"drumline.dev/notify": notify}
    whole = {
        "metadata": metadata,
        "spec": {"queue": "nlp", "user": "ada", "nodes": 2},
        "status": {"phase": phase, "queuedAt": time("08:00:00"), **status},
    }
    return notifiable_job(json.dumps(whole).encode())


def running(*, since: str = "09:00:00", **fields: Any) -> NotifiableJob:
    return job(
        "Running",
        startedAt=time("09:00:00"),
        admittedAt=time("08:59:00"),
        conditions=[condition("Running", True, since=since, reason="Training")],
        **fields,
    )


def idle(reason: str = "StaysIdle", *, since: str) -> NotifiableJob:
    conditions = [
        condition("Running", True, since="09:00:00", reason="Training"),
        condition("Idle", True, since=since, reason=reason, message="no work since 09:50"),
    ]
    started = {"startedAt": time("09:00:00"), "admittedAt": time("08:59:00")}
    return job("Running", reason=reason, conditions=conditions, **started)


def recovering(*, since: str, **fields: Any) -> NotifiableJob:
    return job(
        "Recovering",
        startedAt=time("09:00:00"),
        admittedAt=time("08:59:00"),
        conditions=[condition("Running", False, since=since, reason="PodFailed")],
        **fields,
    )


def preempted(*, at: str = "10:00:00", reason: str = "Preempted", **fields: Any) -> NotifiableJob:
    lost = f"{'preempted by team/high' if reason == 'Preempted' else 'failed'}; step 40 is saved"
    conditions = [
        condition("Admitted", False, since=at, reason=reason, message=lost),
        condition("Running", False, since=at, reason=reason),
    ]
    fields.setdefault("reason", "InsufficientQuota")
    return job("Pending", conditions=conditions, **fields)


def succeeded(**fields: Any) -> NotifiableJob:
    return job("Succeeded", finishedAt=time("11:00:00"), reason="Completed", **fields)


def failed(**fields: Any) -> NotifiableJob:
    fields.setdefault("reason", "RestartsExhausted")
    return job("Failed", finishedAt=time("11:00:00"), **fields)


def a_change(kind: NewsKind = NewsKind.FAILED, **fields: Any) -> OutlookChange:
    return OutlookChange(
        **{
            "id": "c-1",
            "kind": kind,
            "before": Outlook.RUNNING,
            "at": at("11:00:00"),
            "namespace": "research",
            "name": "llama",
            "uid": "u-1",
            "queue": "nlp",
            **fields,
        }
    )


def added(new: NotifiableJob) -> Event[NotifiableJob]:
    return Event(change=Change.ADDED, view=new, previous=None)


def modified(new: NotifiableJob) -> Event[NotifiableJob]:
    return Event(change=Change.MODIFIED, view=new, previous=new)


def deleted(last: NotifiableJob) -> Event[NotifiableJob]:
    return Event(change=Change.DELETED, view=last, previous=last)
