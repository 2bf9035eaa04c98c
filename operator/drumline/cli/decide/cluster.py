"""A cluster from plain manifests, by the operator's own translation: what its caches would hold.

Nodes, pods, queues, pools, priority classes and jobs count; all other kinds are passed over. Of an
object that is there twice the later one counts, as with `kubectl apply`. What a manifest that was
never applied lacks is made up as the API server would: a uid, and that it was created just now.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from drumline.api.base import GROUP, ApiModel
from drumline.api.gpupool import GpuPool, GpuPoolSpec
from drumline.api.load import ApiError, parse
from drumline.api.trainingjob import TrainingJob
from drumline.api.trainingqueue import TrainingQueue, TrainingQueueSpec
from drumline.cli.errors import BadInput
from drumline.cli.manifests import Document
from drumline.cli.report.job_input import Json
from drumline.controller.cache.cluster import ClusterState
from drumline.controller.cache.nodes import NodeBook
from drumline.controller.conversion.jobs import job_of
from drumline.kube import codec
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.timestamps import timestamp
from drumline.lifecycle.plan.eligibility import config_error
from drumline.scheduling.model import Gang, Snapshot
from drumline_trainer.contract import Progress

T = TypeVar("T")

_GROUPS: Final = {
    "Node": "",
    "Pod": "",
    "PriorityClass": "scheduling.k8s.io",
    GpuPool.KIND: GROUP,
    TrainingQueue.KIND: GROUP,
    TrainingJob.KIND: GROUP,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What one cycle would be told."""

    snapshot: Snapshot
    pending: tuple[Gang, ...]
    as_of: float
    """When the newest of the files was written."""
    remarks: tuple[str, ...] = ()
    """Jobs that wait and that no cycle looks at, with the reason."""


def read(documents: Sequence[Document]) -> Cluster:
    """The cluster that these objects make.

    Raises:
        BadInput: one of them is not what its kind says; names file, line and field.
    """
    known = {(one.kind, *one.place): one for one in documents if _GROUPS.get(one.kind) == one.group}
    as_of = max((one.as_of for one in documents), default=0.0)
    jobs: dict[str, Job] = {}
    state = ClusterState(
        nodes=NodeBook(clock=lambda: as_of), progress=lambda uid: _progress(jobs[uid])
    )
    for document in known.values():
        _TAKE[document.kind](state, document)
    jobs.update((job.uid, job) for job in state.jobs())
    try:
        snapshot, pending = state.snapshot(now=as_of), tuple(state.pending())
    except ValueError as error:
        raise BadInput(f"the objects do not fit together: {error}") from None
    return Cluster(snapshot=snapshot, pending=pending, as_of=as_of, remarks=tuple(_remarks(state)))


def _remarks(state: ClusterState) -> list[str]:
    left_out = [f"{key}: left out: {problem}" for key, problem in state.left_out.items()]
    classless = [
        f"{job.key}: PriorityClassNotFound: {job.spec.priority_class_name} does not exist"
        for job in state.queued_without_class()
    ]
    refused = [
        f"{job.key}: InvalidConfig: {error}"
        for job in state.jobs()
        if job.status.assignment is None and not job.finished and (error := config_error(job))
    ]
    return sorted([*left_out, *classless, *refused])


def _progress(job: Job) -> Progress | None:
    """What the job's status says last of its training, where no agent can be asked."""
    if job.status.step is None:
        return None
    return Progress(
        step=job.status.step,
        total_steps=job.status.total_steps or 0,
        tokens_per_second=job.status.tokens_per_second,
    )


def _job(state: ClusterState, document: Document) -> None:
    view = _decoded(document, codec.custom_object)
    try:
        job_of(view)
    except ApiError as error:
        raise document.blame(error.path, str(error)) from None
    except ValueError as error:
        path = "metadata.creationTimestamp"
        raise document.blame(path, f"{path}: {error}") from None
    state.on_job(None, view)


def _queue(state: ClusterState, document: Document) -> None:
    view = _decoded(document, codec.custom_object)
    _check(document, TrainingQueueSpec, view.spec)
    state.on_queue(None, view)


def _pool(state: ClusterState, document: Document) -> None:
    view = _decoded(document, codec.custom_object)
    _check(document, GpuPoolSpec, view.spec)
    state.on_pool(None, view)


def _node(state: ClusterState, document: Document) -> None:
    state.nodes.on_node(None, _decoded(document, codec.node))


def _pod(state: ClusterState, document: Document) -> None:
    state.on_pod(None, _decoded(document, codec.pod))


def _priority_class(state: ClusterState, document: Document) -> None:
    state.on_priority_class(None, _decoded(document, codec.priority_class))


_TAKE: Final[Mapping[str, Callable[[ClusterState, Document], None]]] = {
    "Node": _node,
    "Pod": _pod,
    "PriorityClass": _priority_class,
    GpuPool.KIND: _pool,
    TrainingQueue.KIND: _queue,
    TrainingJob.KIND: _job,
}


def _check(document: Document, model: type[ApiModel], spec: Mapping[str, Any]) -> None:
    try:
        parse(model, spec, at="spec")
    except ApiError as error:
        raise document.blame(error.path, str(error)) from None


def _decoded(document: Document, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(json.dumps(_completed(document)).encode())
    except codec.Undecodable as error:
        what, found, where = str(error).rpartition(" - at `$.")
        path = where.rstrip("`") if found else ""
        raise document.blame(path, f"{path}: {what}" if found else str(error)) from None


def _completed(document: Document) -> Json:
    """The object with what the API server would have added."""
    metadata: object = document.raw.get("metadata")
    if not isinstance(metadata, dict):
        return document.raw  # the decoder says so
    namespace, name = document.place
    made = {"uid": f"{namespace}/{name}", "creationTimestamp": timestamp(document.as_of)}
    if document.kind in {"Pod", TrainingJob.KIND}:
        made["namespace"] = namespace
    return {**document.raw, "metadata": {**made, **cast("Json", metadata)}}
