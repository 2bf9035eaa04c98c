"""Decode the API server's JSON to Jobs and JobSets, with what their pods need for quota."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from typing import Final

import msgspec

from drumline.kube.codec import Undecodable, decoded
from drumline.kube.placement import claims_of, placement_of_template
from drumline.kube.pod_requests import MOST_RESOURCES, pod_requests, with_default_requests
from drumline.kube.workload_memory import own_texts
from drumline.kube.workload_views import JobsView, ShapeView, WorkloadView
from drumline_api.objects import builtin
from drumline_api.objects.base import Metadata

_job_decoder: Final = msgspec.json.Decoder(builtin.BatchJob)
_job_set_decoder: Final = msgspec.json.Decoder(builtin.JobSet)
MAX_PODS: Final = 10_000
"""Most concurrent pods of a workload, as for a TrainingJob. More would slow the scheduler down."""
MAX_SHAPES: Final = 32
"""Most shapes of a JobSet. Each is a gang."""
_JOB_SET: Final = frozenset({"JobSet"})


def batch_job(raw: bytes | msgspec.Raw) -> WorkloadView:
    """Decode a Job.

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
    """Decode a JobSet.

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
    """Return the shapes of a JobSet.

    Args:
        replicated: its replicated Jobs.
        ended: number of succeeded Jobs by name. Their pods no longer exist.
    """
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
    """Return the pods that these Jobs run at a time, without those that have ended.

    A Job without `completions` is a work queue: once one of its pods has succeeded no new one is
    created, and it ends with its last pod.

    Raises:
        ValueError: there are too many pods, or a pod requests something invalid. The API server
            does not check the templates of a JobSet.
    """
    parallel = _or_one(spec.parallelism)
    # An indexed Job with `backoffLimitPerIndex` never runs its failed indexes again.
    most = parallel if spec.completions is None else max(0, spec.completions - failed)
    jobs = JobsView(
        number=number,
        ended=max(0, ended),
        parallelism=parallel,
        completions=most,
        succeeded=succeeded,
    )
    # Pods run for the jobs that have not ended, and at most as many as completions are missing.
    pods = min(parallel, max(0, most - succeeded)) * max(0, number - jobs.ended)
    # A product of two negative numbers is positive, so the sign is checked before the product.
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
        name: name of the part.
        template: the spec of its pods.
        pods: number of pods.
        limit: seconds that their workload may run.
        jobs: the Jobs that create them.

    Raises:
        ValueError: The pods request a negative amount, or there are too many of them.
    """
    check_pods(pods)
    # Templates carry no defaults, so limits become requests here as they do in a pod.
    requests = pod_requests(with_default_requests(template))
    if len(requests) > MOST_RESOURCES:
        raise ValueError(f"{len(requests)} resources of a pod: want at most {MOST_RESOURCES}")
    if min(requests.values(), default=0) < 0:
        raise ValueError("it requests a negative amount")
    limits = (limit, template.active_deadline_seconds)
    return ShapeView(
        name=name,
        pods=pods,
        requests=requests,
        placement=placement_of_template(template),
        jobs=jobs,
        # The Job controller and the kubelet each enforce one limit. The shorter one ends the pods.
        deadline_seconds=min((limit for limit in limits if limit and limit > 0), default=None),
        claims=claims_of(template),
    )


def count_of_indexes(text: str) -> int:
    """Return the number of indexes in a Job's text: `1,3-5` are four. 0 if it is invalid."""
    count = 0
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        # An invalid text counts as no failure. The workload then reserves too much, never too
        # little.
        if not (first.isdecimal() and (last or first).isdecimal()):
            return 0
        # Nine digits bound the integers: a status of 10,000 digits must not cost quadratic time.
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
    """Return the view of a workload of any kind.

    Args:
        metadata: its metadata.
        shapes: its pods.
        suspended: whether it must have no pods.
        ended: whether it has ended.
        start_time: time of its last resumption, or None.
        makers: kinds that create it, and start it.
    """
    # A Job of a JobSet waits with its JobSet. Counting it again would charge its pods twice.
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
    """Return a valid time, or ''. The API server does not check a foreign status."""
    try:
        datetime.fromisoformat(text or "").timestamp()
    except (ValueError, OverflowError):
        return ""
    return text or ""


def _or_one(number: int | None) -> int:
    return 1 if number is None else number
