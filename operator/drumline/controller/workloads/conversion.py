"""Convert workloads other than TrainingJobs to gangs, and their places to annotations.

A gang's main pods are equal, so pods of different shapes are gangs of one group: they start
together or not at all. A cycle's places show that the pods fit, and count until the pods are bound.
kube-scheduler chooses the nodes within the pool.

    pod a (1 GPU), b (1 GPU), c (8 GPUs) of group g -> gang g[0] of 2 pods, gang g[1] of 1 pod
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, islice, repeat
from typing import Annotated, Final

import msgspec

from drumline.controller.nodes.conversion import (
    ANY_GPUS,
    MAX_AMOUNT,
    GpuUnits,
    resources_of,
    seconds_of,
    tolerations_of,
)
from drumline.controller.workloads.held import FOREIGN_USER
from drumline.kube.events import Regarding
from drumline.kube.kinds import Resource
from drumline.kube.views import ExpressionView, PlacementView
from drumline.kube.workload_views import JobsView, WorkloadView
from drumline.kube.workloads import MAX_PODS
from drumline.lifecycle.model.members import pool_nodes
from drumline_api.base import LABEL_QUEUE
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_scheduler.model import (
    Admitted,
    Gang,
    NodeRequirement,
    Obstacle,
    ObstacleKind,
    VolumeReach,
)

PREFIX_FROM: Final = 256
"""Number of nodes above which the annotation stores their common prefix once."""


def namespace_obstacle(namespace: str) -> Obstacle:
    """Return why no pod of a namespace that is being deleted starts."""
    message = f"namespace {namespace} is being deleted: create the workload in another namespace"
    return Obstacle(kind=ObstacleKind.NAMESPACE_ENDS, message=message)


class UnknownPriorityClassError(ValueError):
    """Pods of a template name a PriorityClass that does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Equal pods of a workload."""

    name: str
    """Name of the shape within its workload. Stable."""
    pods: int
    requests: Mapping[str, int]
    """Requests of each pod by Kubernetes resource name. CPU in thousandths of a core."""
    placement: PlacementView
    jobs: JobsView | None = None
    """Jobs that create the pods, or None."""
    deadline_seconds: int | None = None
    """Seconds after which the pods are ended, or None without a limit."""
    claims: tuple[str, ...] = ()
    """PersistentVolumeClaims that each of the pods mounts."""

    @property
    def has_devices(self) -> bool:
        """Return whether its pods may need GPUs."""
        return bool(devices_of(self.requests))


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignWorkload:
    """Pods that wait for the quota of a queue, all or none of them."""

    key: str
    """`namespace/pods/name`, or the plural of another kind."""
    uid: str
    queue: str
    queued_at: float
    shapes: tuple[Shape, ...]
    regarding: Regarding
    """The object that gets the events."""
    has_started: bool = False
    """True if other pods of it run. Then these pods start one by one."""

    def gpus(self, pools: Mapping[str, GpuPoolSpec]) -> int:
        """Return the GPUs of all its pods in the units of the pools, at most `MAX_AMOUNT`."""
        worth = {
            name: value
            for spec in pools.values()
            for name, value in GpuUnits.of(spec).worth.items()
        }
        asked = sum(
            shape.pods * amount * worth.get(name, 0)
            for shape in self.shapes
            for name, amount in shape.requests.items()
        )
        return min(asked, MAX_AMOUNT)


PoolUnits = tuple[str, GpuUnits]
"""Name and units of a pool."""


@dataclass(frozen=True, slots=True)
class GangTerms:
    """The facts beside a workload that its gangs depend on.

    Thousands may wait, so a changed fact makes only the gangs again that depend on it.
    """

    class_values: tuple[int | None, ...]
    """Value of the PriorityClass of each shape. None if it does not exist."""
    pools: tuple[PoolUnits, ...]
    """Pools of its queue, in the queue's order. Without a queue, all pools."""
    namespace_ends: bool
    """True if its namespace is being deleted. No controller can create its pods there."""
    volumes: tuple[tuple[VolumeReach, ...], ...]
    """Nodes from which each shape can use its claims."""

    @classmethod
    def of(
        cls,
        workload: ForeignWorkload,
        *,
        pools: tuple[PoolUnits, ...],
        namespace_ends: bool,
        class_value: Callable[[str | None], int | None],
        reach: Callable[[str, tuple[str, ...]], tuple[VolumeReach, ...]],
    ) -> GangTerms:
        """Return the terms of a workload.

        Args:
            workload: a waiting workload.
            pools: pools of its queue.
            namespace_ends: whether its namespace is being deleted.
            class_value: returns the value of a PriorityClass, of the default class for no name.
                None if it does not exist.
            reach: returns the restrictions of nodes by claims of a namespace.
        """
        names = (shape.placement.priority_class for shape in workload.shapes)
        return cls(
            tuple(None if name is None else class_value(name or None) for name in names),
            pools,
            namespace_ends,
            tuple(reach(workload.regarding.namespace, each.claims) for each in workload.shapes),
        )


class PlacesFound(msgspec.Struct, frozen=True, omit_defaults=True):
    """Places of pods of one shape, as written to the object's annotation.

    Attributes:
        pool: name of the pool.
        nodes: number of places by node.
        selected: written labels in the template's node selector, each with the value before. They
            are restored when the places are taken back.
    """

    pool: str
    nodes: dict[str, Annotated[int, msgspec.Meta(ge=1, le=MAX_PODS)]]
    selected: Annotated[dict[str, tuple[str, str | None]], msgspec.Meta(max_length=16)] = {}

    def node_names(self, *, most: int) -> tuple[str, ...]:
        """Return a node for each place, at most `most`."""
        each = (repeat(name, pods) for name, pods in sorted(self.nodes.items()))
        return tuple(islice(chain.from_iterable(each), most))


class _WrittenPlaces(PlacesFound, frozen=True, omit_defaults=True):
    """Places as the annotation stores them.

    An object has at most 256 KiB of annotations. A large workload stores the prefix of names once.
    """

    # No node has a longer name, and each name gets the prefix when it is read.
    prefix: Annotated[str, msgspec.Meta(max_length=253)] = ""

    @classmethod
    def of(cls, places: PlacesFound) -> PlacesFound:
        """Return the places, with the common prefix of their nodes apart if they are many."""
        if len(places.nodes) <= PREFIX_FROM:
            return places
        prefix = pool_nodes(places.pool, [*places.nodes]).prefix
        nodes = {name.removeprefix(prefix): count for name, count in places.nodes.items()}
        return cls(pool=places.pool, nodes=nodes, selected=places.selected, prefix=prefix)

    def read(self) -> PlacesFound:
        """Return the places with the full names of their nodes."""
        nodes = {self.prefix + rest: count for rest, count in self.nodes.items()}
        return PlacesFound(pool=self.pool, nodes=nodes, selected=self.selected)


_places_decoder = msgspec.json.Decoder(dict[str, _WrittenPlaces])


def gangs_of(workload: ForeignWorkload, *, terms: GangTerms) -> dict[str, Gang]:
    """Return the gangs of a workload by shape. Shapes without devices have none.

    Raises:
        ValueError: the workload cannot be scheduled as it is written.
    """
    of_shapes = zip(workload.shapes, terms.class_values, terms.volumes, strict=True)
    shapes = [each for each in of_shapes if each[0].has_devices]
    alone = len(shapes) == 1
    return {
        shape.name: _gang(
            workload,
            shape,
            priority=_priority(shape.placement, class_value=value),
            suffix="" if alone else f"[{number}]",
            group="" if alone or workload.has_started else workload.key,
            shapes=len(shapes),
            pools=_pools_with(shape, pools=terms.pools),
            namespace_ends=terms.namespace_ends,
            volumes=reach,
        )
        for number, (shape, value, reach) in enumerate(shapes)
    }


def foreign_workload(resource: Resource, view: WorkloadView) -> ForeignWorkload:
    """Convert a Job, or another kind, that names a queue."""
    return ForeignWorkload(
        key=f"{view.namespace}/{resource.plural}/{view.name}",
        uid=view.uid,
        queue=view.labels[LABEL_QUEUE],
        queued_at=seconds_of(view.creation_time) or 0.0,
        shapes=tuple(
            Shape(
                name=each.name,
                pods=each.pods,
                requests=each.requests,
                placement=each.placement,
                jobs=each.jobs,
                deadline_seconds=each.deadline_seconds,
                claims=each.claims,
            )
            for each in view.shapes
            if each.pods > 0
        ),
        regarding=Regarding(
            resource=resource, namespace=view.namespace, name=view.name, uid=view.uid
        ),
    )


def held_places(
    workload: ForeignWorkload, shape: Shape, *, places: PlacesFound, pool: GpuPoolSpec, pods: int
) -> Admitted | None:
    """Return what an admitted workload holds for its unbound pods, or None.

    Args:
        workload: the workload.
        shape: shape of these pods.
        places: places of the shape.
        pool: pool of these places.
        pods: number of unbound pods.
    """
    nodes = places.node_names(most=pods)
    if not nodes:
        return None
    # Not preemptible: a victim must have a pod that can be evicted.
    return Admitted(
        gang=Gang(
            key=workload.key,
            uid=f"{workload.uid}/{shape.name}/unbound",
            queue=workload.queue,
            nodes=len(nodes),
            per_pod=resources_of(shape.requests, units=GpuUnits.of(pool), pods=1),
            queued_at=0.0,
            user=FOREIGN_USER,
        ),
        pool=places.pool,
        assignment=nodes,
        reserved=frozenset(range(len(nodes))),
        preemptible=False,
        is_residual=True,
        is_foreign=True,
    )


def places_text(places: Mapping[str, PlacesFound]) -> str:
    """Return the annotation of an admitted workload."""
    written = {name: _WrittenPlaces.of(each) for name, each in places.items()}
    return msgspec.json.encode(written, order="deterministic").decode()


def places_in(text: str) -> dict[str, PlacesFound]:
    """Return the places of a workload's annotation by shape. Empty if it cannot be read."""
    try:
        return {name: each.read() for name, each in _places_decoder.decode(text).items()}
    except (msgspec.MsgspecError, RecursionError):
        return {}


def devices_of(requests: Mapping[str, int]) -> dict[str, int]:
    """Return the requests for devices of any kind. Device names have a domain."""
    return {name: amount for name, amount in requests.items() if "/" in name and amount}


def units_of_pools(
    queue: TrainingQueueSpec | None, *, pools: Mapping[str, GpuPoolSpec]
) -> tuple[PoolUnits, ...]:
    """Return the pools of a queue that exist, with their units. Without a queue, all pools."""
    names = list(pools) if queue is None else [quota.gpu_pool for quota in queue.quotas]
    return tuple((name, GpuUnits.of(pools[name])) for name in names if name in pools)


def _pools_with(shape: Shape, *, pools: Iterable[PoolUnits]) -> dict[str, GpuUnits]:
    """Return the pools whose GPUs the shape requests."""
    return {name: units for name, units in pools if units.worth.keys() & shape.requests.keys()}


def _gang(
    workload: ForeignWorkload,
    shape: Shape,
    *,
    priority: int,
    suffix: str,
    group: str,
    shapes: int,
    pools: Mapping[str, GpuUnits],
    namespace_ends: bool,
    volumes: tuple[VolumeReach, ...],
) -> Gang:
    units = next(iter(pools.values()), ANY_GPUS)
    placement = shape.placement
    return Gang(
        key=workload.key + suffix,
        uid=workload.uid + suffix,
        queue=workload.queue,
        nodes=shape.pods,
        per_pod=resources_of(shape.requests, units=units, pods=1),
        queued_at=workload.queued_at,
        priority=priority,
        # of pools whose GPUs have other names the first ones count: a pod asks for one kind
        pools=tuple(name for name, each in pools.items() if each == units),
        selector=dict(placement.node_selector),
        affinity=tuple(tuple(map(_requirement, term)) for term in placement.affinity),
        tolerations=tolerations_of(placement.tolerations),
        volumes=volumes,
        user=f"{FOREIGN_USER} {workload.uid}",  # the limit of a user bounds each by itself
        group=group,
        group_gangs=shapes if group else 1,
        max_runtime_seconds=shape.deadline_seconds,
        is_foreign=True,
        obstacle=namespace_obstacle(workload.regarding.namespace) if namespace_ends else None,
    )


def _priority(placement: PlacementView, *, class_value: int | None) -> int:
    if placement.priority_class is None:
        return placement.priority
    if class_value is None:
        raise UnknownPriorityClassError(f"PriorityClass {placement.priority_class} does not exist")
    return class_value


def _requirement(expression: ExpressionView) -> NodeRequirement:
    return NodeRequirement.of(
        key=expression.key, operator=expression.operator, values=expression.values
    )
