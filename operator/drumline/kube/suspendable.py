"""Decode the API server's JSON to workloads of the kinds in `workload_kinds`.

Number of pods of a part: a Ray group has its replicas within their bounds, times its hosts, as
KubeRay creates them. A Kubeflow part has its replicas. A part without a number is one pod. Ray's
autoscaler writes the number of replicas, so that number is charged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec

from drumline.kube.codec import Undecodable, decoded
from drumline.kube.kinds import JOB_SETS, JOBS
from drumline.kube.kinds import Resource as ResourceKind
from drumline.kube.workload_kinds import KINDS, Json, WorkloadKind, at, parts_of
from drumline.kube.workload_memory import WorkloadDecoder
from drumline.kube.workload_views import ShapeView, WorkloadView
from drumline.kube.workloads import (
    batch_job,
    check_shapes,
    job_set,
    shape_of,
    view_of,
)
from drumline_api.objects import builtin
from drumline_api.objects.base import Metadata, ObjectPart


class _SuspendableObject(ObjectPart, frozen=True):
    """A workload of another kind: `workload_kinds` says what is where in its spec."""

    metadata: Metadata
    spec: dict[str, Any]
    status: builtin.WorkloadStatus = builtin.WorkloadStatus()


_decoder: Final = msgspec.json.Decoder(_SuspendableObject)
_spec_decoder: Final = msgspec.json.Decoder(builtin.PlacedPodSpec)
_ENDS: Final = frozenset({"Complete", "Failed"})
"""status.jobDeploymentStatus of a RayJob that has ended."""
_RAY_BOUNDS: Final = ("minReplicas", "maxReplicas")


def decoder_of(kind: WorkloadKind) -> Callable[[bytes], WorkloadView]:
    """Return the decoder of objects of a kind, which raises Undecodable."""
    return partial(suspendable, kind=kind)


def decoder_for(resource: ResourceKind) -> Callable[[bytes], WorkloadView]:
    """Return the decoder of a kind with its own suspend switch, which raises Undecodable."""
    own: dict[ResourceKind, Callable[[bytes], WorkloadView]] = {JOBS: batch_job, JOB_SETS: job_set}
    return WorkloadDecoder(own.get(resource) or decoder_of(KINDS[resource]))


def suspendable(raw: bytes | msgspec.Raw, *, kind: WorkloadKind) -> WorkloadView:
    """Decode a workload that can be suspended.

    Raises:
        Undecodable: It is not one.
    """
    # The spec stays a plain mapping: each kind has its own schema and its own versions.
    stored = decoded(_decoder, raw)
    body: Json = {"spec": stored.spec}
    try:
        limit = _whole(at(body, kind.deadline)) if kind.deadline else None
        shapes = tuple(
            _shape(part.name, part.template, part.body, limit=limit)
            for part in parts_of(kind, body)
        )
        # The bound comes before the view is built: a tenant may list thousands of groups.
        check_shapes(shapes)
        suspended = bool(at(body, kind.suspend))
    except (ValueError, TypeError, KeyError, AttributeError, msgspec.MsgspecError) as error:
        # No server validates these objects for us, so any type error means an unreadable object.
        raise Undecodable(f"no {kind.resource.kind}: {error}") from error
    ended = stored.status.job_deployment_status in _ENDS or builtin.has_ended(
        stored.status.conditions
    )
    return view_of(
        stored.metadata,
        shapes=shapes,
        suspended=suspended,
        ended=ended,
        start_time=stored.status.start_time,
        makers=kind.makers,
    )


def _shape(name: str, template: Json, part: Json, *, limit: int | None) -> ShapeView:
    spec = _spec_decoder.decode(msgspec.json.encode(template["spec"]))
    return shape_of(name, spec, pods=_pods(part), limit=limit)


def _pods(part: Json) -> int:
    # KubeRay deletes the pods of a suspended worker group, and the group keeps its number.
    if part.get("suspend"):
        return 0
    replicas = _whole(part.get("replicas"))
    # Only Ray groups have bounds, so their presence tells a Ray group from a Kubeflow part.
    if not any(bound in part for bound in _RAY_BOUNDS):
        return 1 if replicas is None else replicas
    least, most = (_whole(part.get(bound)) for bound in _RAY_BOUNDS)
    wanted = max(replicas or 0, least or 0)
    hosts = _whole(part.get("numOfHosts"))
    return min(wanted, wanted if most is None else most) * (1 if hosts is None else hosts)


def _whole(number: Any) -> int | None:
    # `True` is an int in Python, and JSON `true` is not a number of replicas.
    if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
        raise ValueError(f"{number!r} is not a whole number")
    return number
