"""From the API server's JSON to Jobs and JobSets, as far as quota is asked for their pods."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final

import msgspec
from msgspec import structs

from drumline.kube.codec import Undecodable, decoded
from drumline.kube.placement import placement_of_template
from drumline.kube.pod_requests import pod_requests
from drumline.kube.workload_memory import own_texts
from drumline.kube.workload_views import JobsView, ShapeView, WorkloadView
from drumline_api.objects import builtin
from drumline_api.objects.base import Metadata

_job_decoder: Final = msgspec.json.Decoder(builtin.BatchJob)
_job_set_decoder: Final = msgspec.json.Decoder(builtin.JobSet)
MAX_PODS: Final = 10_000
"""Of a workload at a time, as of a TrainingJob: more would exhaust who looks for places."""
MAX_SHAPES: Final = 32
"""Of a JobSet: each is a gang."""
_JOB_SET: Final = frozenset({"JobSet"})


def batch_job(raw: bytes | msgspec.Raw) -> WorkloadView:
    """One Job.

    Raises:
        Undecodable: It is not one.
    """
    job = decoded(_job_decoder, raw)
    try:
        failed = count_of_indexes(job.status.failed_indexes or "")
        shape = _shape("", job.spec, succeeded=job.status.succeeded or 0, failed=failed)
    except ValueError as error:
        raise Undecodable(str(error)) from error
    return _view(job, shapes=(shape,), makers=_JOB_SET)


def job_set(raw: bytes | msgspec.Raw) -> WorkloadView:
    """One JobSet.

    Raises:
        Undecodable: It is not one.
    """
    stored = decoded(_job_set_decoder, raw)
    try:
        ended = {
            each.name: each.succeeded or 0 for each in stored.status.replicated_jobs_status or ()
        }
        shapes = _shapes(stored.spec.replicated_jobs, ended=ended)
    except ValueError as error:
        raise Undecodable(str(error)) from error
    return _view(stored, shapes=shapes, makers=frozenset())


def _shapes(
    replicated: list[builtin.ReplicatedJob], *, ended: Mapping[str, int]
) -> tuple[ShapeView, ...]:
    """`ended`: how many Jobs of each name have succeeded, whose pods are gone."""
    shapes = tuple(
        _shape(
            each.name,
            each.template.spec,
            number=_or_one(each.replicas),
            ended=ended.get(each.name, 0),
        )
        for each in replicated
    )
    check_shapes(shapes)
    return shapes


def _shape(
    name: str,
    spec: builtin.BatchJobSpec,
    *,
    number: int = 1,
    ended: int = 0,
    succeeded: int = 0,
    failed: int = 0,
) -> ShapeView:
    """The pods that so many Jobs of this spec run at a time, without those that have ended.

    A Job without `completions` is a queue of work: once a pod of it has succeeded none is made
    anew, and it ends with the last one.

    Raises:
        ValueError: Too many of them, or what no pod can ask for: nobody has checked the templates
            of a JobSet.
    """
    parallel = _or_one(spec.parallelism)
    most = parallel if spec.completions is None else max(0, spec.completions - failed)
    jobs = JobsView(
        number=number,
        ended=max(0, ended),
        parallelism=parallel,
        completions=most,
        succeeded=succeeded,
    )
    pods = min(parallel, max(0, most - succeeded)) * max(0, number - jobs.ended)
    check_pods(pods if min(parallel, number) >= 0 else -1)
    limit = spec.active_deadline_seconds
    return shape_of(name, spec.template.spec, pods=pods, limit=limit, jobs=jobs)


def shape_of(
    name: str,
    template: builtin.PlacedPodSpec,
    *,
    pods: int,
    limit: int | None,
    jobs: JobsView | None = None,
) -> ShapeView:
    """Equal pods of a workload.

    Args:
        name: of the part.
        template: the spec of its pods.
        pods: how many.
        limit: seconds that their workload may run.
        jobs: that make them.

    Raises:
        ValueError: What no pod can ask for, or too many of them.
    """
    check_pods(pods)
    requests = pod_requests(_defaulted(template))
    if min(requests.values(), default=0) < 0:
        raise ValueError("it requests a negative amount")
    limits = (limit, template.active_deadline_seconds)
    return ShapeView(
        name=name,
        pods=pods,
        requests=requests,
        placement=placement_of_template(template),
        jobs=jobs,
        deadline_seconds=min((limit for limit in limits if limit and limit > 0), default=None),
    )


def count_of_indexes(text: str) -> int:
    """How many indexes a Job names: `1,3-5` are four; what is no such list names none."""
    count = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return 0
        count += int((last or first)[:9]) - int(first[:9]) + 1
    return max(0, count)


def check_shapes(shapes: Sequence[ShapeView]) -> None:
    """Raise ValueError for more shapes than can wait, or more pods."""
    if len(shapes) > MAX_SHAPES:
        raise ValueError(f"{len(shapes)} kinds of pods, but at most {MAX_SHAPES} are supported")
    check_pods(sum(shape.pods for shape in shapes))


def check_pods(pods: int) -> None:
    """Raise ValueError for more pods than can wait, or fewer than none."""
    if not 0 <= pods <= MAX_PODS:
        raise ValueError(f"{pods} pods, but at most {MAX_PODS} are supported")


def _defaulted(spec: builtin.PlacedPodSpec) -> builtin.PlacedPodSpec:
    """The spec as its pods will have it: who asks for nothing else asks for its limits.

    The API server writes that into pods, not into templates (SetDefaults_Pod in
    pkg/apis/core/v1/defaults.go).
    """
    return structs.replace(
        spec,
        containers=list(map(_container, spec.containers)),
        init_containers=list(map(_container, spec.init_containers or ())),
    )


def _container(container: builtin.Container) -> builtin.Container:
    asked = container.resources
    requests = {**(asked.limits or {}), **(asked.requests or {})}
    return structs.replace(container, resources=builtin.ResourceRequirements(requests=requests))


def _view(
    stored: builtin.BatchJob | builtin.JobSet,
    *,
    shapes: tuple[ShapeView, ...],
    makers: AbstractSet[str],
) -> WorkloadView:
    return view_of(
        stored.metadata,
        shapes=shapes,
        suspended=bool(stored.spec.suspend),
        ended=builtin.has_ended(stored.status.conditions),
        start_time=stored.status.start_time,
        makers=makers,
    )


def view_of(
    metadata: Metadata,
    *,
    shapes: tuple[ShapeView, ...],
    suspended: bool,
    ended: bool,
    start_time: str | None,
    makers: AbstractSet[str],
) -> WorkloadView:
    """A workload of any kind; `makers`: kinds that make it, and start it."""
    owners = metadata.owner_references or ()
    return WorkloadView(
        namespace=sys.intern(metadata.namespace),
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        creation_time=metadata.creation_timestamp or "",
        labels=own_texts(metadata.labels),
        annotations=own_texts(metadata.annotations),
        is_child=any(each.controller and each.kind in makers for each in owners),
        suspended=suspended,
        over=ended or bool(metadata.deletion_timestamp),
        start_time=_time(start_time),
        shapes=shapes,
    )


def _time(text: str | None) -> str:
    """A time; '' for what is none: of a foreign status nobody has checked it."""
    try:
        datetime.fromisoformat(text or "").timestamp()
    except (ValueError, OverflowError):
        return ""
    return text or ""


def _or_one(number: int | None) -> int:
    return 1 if number is None else number
