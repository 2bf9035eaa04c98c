"""TrainingJobs as an API server sends them, and the changes an informer makes of them."""

from __future__ import annotations

import json
from typing import Any

from drumline.kube.store import Change, Event
from drumline_addons.archive.documents import ArchivableJob, archivable_job

Json = dict[str, Any]


def raw_job(name: str = "llama", *, uid: str = "u-1", version: int = 1, **status: Any) -> Json:
    return {
        "apiVersion": "drumline.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "name": name,
            "namespace": "research",
            "uid": uid,
            "resourceVersion": str(version),
            "creationTimestamp": "2026-11-20T08:00:00Z",
            "labels": {"team": "nlp"},
            "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": '{"value": "hunter2"}',
                "drumline.dev/note": "kept",
            },
            "managedFields": [{"manager": "kubectl"}],
        },
        "spec": {
            "queue": "nlp",
            "user": "ada",
            "nodes": 2,
            "gpusPerNode": 8,
            "gpuPool": "h100",
            "template": {
                "image": "any:1",
                "command": ["true"],
                "env": [{"name": "TOKEN", "value": "hunter2"}, {"name": "OF", "valueFrom": {}}],
            },
        },
        "status": {"phase": "Running", **status},
    }


def job(**fields: Any) -> ArchivableJob:
    return archivable_job(json.dumps(raw_job(**fields)).encode())


def added(new: ArchivableJob) -> Event[ArchivableJob]:
    return Event(change=Change.ADDED, view=new, previous=None)


def modified(old: ArchivableJob, new: ArchivableJob) -> Event[ArchivableJob]:
    return Event(change=Change.MODIFIED, view=new, previous=old)


def deleted(last: ArchivableJob) -> Event[ArchivableJob]:
    return Event(change=Change.DELETED, view=last, previous=last)
