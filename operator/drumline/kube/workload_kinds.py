"""Kinds of workloads that wait while suspended: the paths of their `suspend` and their pods.

`workloads` decodes Jobs and JobSets. Any other kind needs only a row here. A policy of the chart
has the same fields (helm/drumline/templates/_workloadkinds.tpl).

KubeRay: https://github.com/ray-project/kuberay/tree/master/ray-operator/apis/ray/v1

Kubeflow: https://github.com/kubeflow/trainer/tree/release-1.9/pkg/apis/kubeflow.org/v1,
https://github.com/kubeflow/mpi-operator/tree/master/pkg/apis/kubeflow/v2beta1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, cast

from drumline.kube.kinds import JOB_SETS, JOBS, MPI_JOBS, PYTORCH_JOBS, RAY_CLUSTERS, RAY_JOBS
from drumline.kube.kinds import Resource as ResourceKind

Json = dict[str, Any]
Path = tuple[str, ...]


class Form(Enum):
    """Form of the parts in an object."""

    SINGLE = auto()
    LIST = auto()
    BY_NAME = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsPath:
    """Path of the equal pods of one or more kinds in an object.

    Attributes:
        path: path of the part, or of all parts, in the object.
        form: form of the value at the path. A single part has the empty name.
        name: field with a part's name, in a list.
        template: path of the pod template in the part.
    """

    path: Path
    form: Form = Form.SINGLE
    name: str = "name"
    template: Path = ("template",)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadKind:
    """A kind of workload.

    Attributes:
        resource: how the API server names it.
        suspend: the switch.
        parts: its pods.
        deadline: seconds that it may run, from status.startTime; empty: it has no such field.
        makers: kinds that make objects of this one, and start them.
        owns_pods: whether it controls its pods itself; False: something that it makes does.
    """

    resource: ResourceKind
    suspend: Path = ("spec", "suspend")
    parts: tuple[PartsPath, ...]
    deadline: Path = ()
    makers: frozenset[str] = frozenset()
    owns_pods: bool = True


# KubeRay has one head and a list of worker groups. Each of them is a gang of equal pods.
def _ray(*above: str) -> tuple[PartsPath, ...]:
    return (
        PartsPath(path=(*above, "headGroupSpec")),
        PartsPath(path=(*above, "workerGroupSpecs"), form=Form.LIST, name="groupName"),
    )


def _kubeflow(resource: ResourceKind, replicas: str, *, owns_pods: bool) -> WorkloadKind:
    return WorkloadKind(
        resource=resource,
        # Kubeflow v1 keeps the switch in runPolicy. Its controllers delete all pods when it is set.
        suspend=("spec", "runPolicy", "suspend"),
        parts=(PartsPath(path=("spec", replicas), form=Form.BY_NAME),),
        deadline=("spec", "runPolicy", "activeDeadlineSeconds"),
        owns_pods=owns_pods,
    )


_JOB: Final = WorkloadKind(
    resource=JOBS, parts=(PartsPath(path=("spec",)),), makers=frozenset({"JobSet"})
)
_JOB_SET: Final = WorkloadKind(
    resource=JOB_SETS,
    parts=(
        PartsPath(
            path=("spec", "replicatedJobs"),
            form=Form.LIST,
            template=("template", "spec", "template"),
        ),
    ),
    owns_pods=False,
)
OTHER_KINDS: Final[Mapping[str, WorkloadKind]] = {
    kind.resource.kind: kind
    for kind in (
        WorkloadKind(
            resource=RAY_CLUSTERS,
            parts=_ray("spec"),
            makers=frozenset({"RayJob", "RayService"}),
        ),
        WorkloadKind(
            resource=RAY_JOBS,
            parts=_ray("spec", "rayClusterSpec"),
            deadline=("spec", "activeDeadlineSeconds"),
            makers=frozenset({"RayCronJob"}),
            owns_pods=False,
        ),
        _kubeflow(PYTORCH_JOBS, "pytorchReplicaSpecs", owns_pods=True),
        # The MPI operator runs its launcher through a Job, which controls the pod.
        _kubeflow(MPI_JOBS, "mpiReplicaSpecs", owns_pods=False),
    )
}
"""Kinds by name. They wait only if the chart enables them."""
KINDS: Final = {kind.resource: kind for kind in (_JOB, _JOB_SET, *OTHER_KINDS.values())}
"""All of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPart:
    """Equal pods in an object: their name, their pod template, and what says how many they are."""

    name: str
    template: Json
    body: Json


def parts_of(kind: WorkloadKind, body: Json) -> Iterator[WorkloadPart]:
    """Yield the parts of an object in their order.

    Raises:
        TypeError: the object is not of this kind.
        KeyError: the object is not of this kind.
    """
    for path in kind.parts:
        stored = at(body, path.path)
        # A kind may leave out a part, for example a Ray cluster without workers.
        if stored is None:
            continue
        for name, part in _named(path, stored):
            template = at(part, path.template)
            if template is not None:
                yield WorkloadPart(name=name, template=cast("Json", template), body=part)


def at(body: Json, path: Path) -> Any:
    """Return the value at a path, or None."""
    value: Any = body
    for field in path:
        # A null in the middle of a path means that the field is unset.
        if value is None:
            return None
        value = value.get(field)
    return value


def _named(path: PartsPath, stored: Any) -> list[tuple[str, Json]]:
    match path.form:
        case Form.SINGLE:
            return [("", stored)]
        case Form.LIST:
            return [(part[path.name], part) for part in stored]
        case Form.BY_NAME:
            # Sorted, because a map of replicas has no order, and the order decides which gang comes
            # first.
            return sorted(stored.items())
