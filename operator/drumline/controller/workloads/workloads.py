"""Workloads that are no TrainingJobs: those that wait for quota, and what was let go and not bound.

The scheduler sees what waits as gangs, and what was let go as foreign pods until these are bound.
Between a decision and the event that shows it written it is assumed, as for jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from drumline.controller.informers.namespaces import NamespaceCache
from drumline.controller.informers.specs import PriorityCache, SpecCache
from drumline.controller.workloads.conversion import (
    ForeignWorkload,
    PlacesFound,
    Shape,
    UnknownPriorityClassError,
    gangs_of,
    held_places,
)
from drumline.controller.workloads.gated_pods import GatedPods, PodGroup
from drumline.controller.workloads.held import unchanged
from drumline.controller.workloads.suspended import SuspendedWorkloads
from drumline.kube.kinds import PODS, Resource
from drumline.kube.views import PlacementView, PodView
from drumline.kube.workload_views import WorkloadView
from drumline.lifecycle.plan.acceptance import refusal_for
from drumline.scope import InstallationScope
from drumline_api.base import LABEL_QUEUE
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_scheduler.decisions import MAX_MESSAGE_CHARS, Blocked, BlockReason, Placed
from drumline_scheduler.model import Admitted, Gang

INCOMPLETE: Final = str(BlockReason.WAITING_FOR_GROUP)
NOT_WRITTEN: Final = "ConfigRefused"
"""The API server does not take what the operator has to write."""
NO_PRIORITY_CLASS: Final = "PriorityClassNotFound"


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """A workload that a cycle found places for.

    Attributes:
        workload: it.
        places: by the name of the shape; none of one that needs no device.
        pods: that wait for it, by the name of the shape; of a Job or JobSet none.
    """

    workload: ForeignWorkload
    places: Mapping[str, PlacesFound]
    pods: Mapping[str, tuple[PodView, ...]]

    @property
    def is_object(self) -> bool:
        """Whether it is a Job or JobSet, which is resumed."""
        return self.workload.regarding.resource is not PODS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadInLine:
    """What waits, and why.

    Attributes:
        workload: it.
        reason: from a closed list.
        message: for people.
        position: its place in the line of its queue, jobs included, from 1; 0: in none.
        gangs: uids of what the scheduler makes of it.
    """

    workload: ForeignWorkload
    reason: str
    message: str
    position: int = 0
    gangs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A gang, and whose it is."""

    workload: ForeignWorkload
    shape: Shape
    gang: Gang
    pods: Mapping[str, tuple[PodView, ...]]


class Workloads:
    """What waits and what was let go. For one event loop.

    Args:
        queues: the queues.
        pools: the pools.
        namespaces: their labels, by which queues select them.
        priorities: the values of the PriorityClasses that templates name.
        scope: the namespaces whose workloads are this installation's.
    """

    def __init__(
        self,
        *,
        queues: SpecCache[TrainingQueueSpec],
        pools: SpecCache[GpuPoolSpec],
        namespaces: NamespaceCache,
        priorities: PriorityCache,
        scope: InstallationScope,
    ) -> None:
        self._queues = queues
        self._pools = pools
        self._namespaces = namespaces
        self._priorities = priorities
        self._scope = scope
        self._gated = GatedPods()
        self._suspended = SuspendedWorkloads()
        self._parts: dict[str, _Part] = {}
        """By uid of the gang, as of the last look."""
        self._refused: dict[str, WorkloadInLine] = {}
        """By uid: workloads that are no gangs as they are written, as of the last look."""
        self._assumed: dict[str, tuple[_Part, PlacesFound]] = {}
        """By uid of the gang: decided, and not shown by the watch yet."""
        self._put_off: dict[str, str] = {}
        """By uid of a workload that nothing is decided about for a while: why; '' for a moment."""
        self._held: dict[str, Admitted] = {}
        self._waiting: tuple[WorkloadInLine, ...] = ()
        """As of the last cycle, in scheduling order; then what is not looked at."""

    def on_pod(self, old: PodView | None, new: PodView | None) -> bool:
        """Take in an event; returns whether what waits may be another."""
        covered = [pod if pod and self._scope.covers(pod.namespace) else None for pod in (old, new)]
        of_workload = self._suspended.on_pod(*covered)
        return self._gated.on_pod(*covered) or of_workload

    def on_workload(
        self, resource: Resource, old: WorkloadView | None, new: WorkloadView | None
    ) -> None:
        """Take in an event of a Job or JobSet that names a queue."""
        covered = [
            each if each and self._scope.covers(each.namespace) else None for each in (old, new)
        ]
        self._suspended.on_workload(resource, *covered)

    def pending(self) -> list[Gang]:
        """The gangs of what waits; the same objects while nothing changes."""
        before, parts = self._parts, dict[str, _Part]()
        self._refused = {}
        for workload, pods in self._waiting_workloads():
            for part in self._parts_of(workload, pods):
                known = before.get(part.gang.uid)
                same = known is not None and known.gang == part.gang
                gang = known.gang if known is not None and same else part.gang
                parts[gang.uid] = replace(part, gang=gang)
        self._parts = parts
        return [
            part.gang
            for uid, part in parts.items()
            if uid not in self._assumed and part.workload.uid not in self._put_off
        ]

    def held(self) -> Iterable[Admitted]:
        """What was let go and is not bound: charged, and counted where it was found places."""
        assumed = {
            pod.uid
            for part, _ in self._assumed.values()
            for pod in part.pods.get(part.shape.name, ())
        }
        resumed = {part.workload.uid for part, _ in self._assumed.values()}
        holds = [
            self._held_by_pod(group, pod, places=places)
            for group in self._gated.groups()
            for pod, places in group.admitted
            if pod.uid not in assumed
        ]
        holds += [
            self._unbound(part.workload, part.shape, places, pods=part.shape.pods)
            for part, places in self._assumed.values()
        ]
        holds += [
            self._unbound(each.workload, each.shape, each.places, pods=each.pods)
            for each in self._suspended.unbound(is_open=self._is_open)
            if each.workload.uid not in resumed
        ]
        self._held = unchanged([each for each in holds if each is not None], before=self._held)
        return self._held.values()

    def is_waiting(self, uid: str) -> bool:
        """Whether this is the uid of a gang of ours, as of the last look."""
        return uid in self._parts

    def let_go(self, placed: Iterable[Placed]) -> list[LetGo]:
        """Take over what a cycle decided: assumed from now on, until `settle`."""
        by_workload: dict[str, list[tuple[_Part, PlacesFound]]] = {}
        for each in placed:
            part = self._parts[each.uid]
            counts = dict.fromkeys(each.assignment, 0)
            for name in each.assignment:
                counts[name] += 1
            places = PlacesFound(pool=each.pool, nodes=counts)
            self._assumed[each.uid] = (part, places)
            by_workload.setdefault(part.workload.uid, []).append((part, places))
        return [_let_go(parts) for parts in by_workload.values()]

    def waiting_for(self, queue: str) -> tuple[WorkloadInLine, ...]:
        """What waits for a queue, as of the last cycle."""
        return tuple(each for each in self._waiting if each.workload.queue == queue)

    def resumed(self) -> list[ForeignWorkload]:
        """Jobs and the like that were let go and run."""
        return self._suspended.resumed()

    def resumed_with(self, pod_uid: str) -> ForeignWorkload | None:
        """The Job or the like that was let go and has this pod."""
        return self._suspended.resumed_with(pod_uid)

    def ends_at(self, pod: PodView) -> float | None:
        """When the workload of a pod is ended at the latest; None: nobody knows."""
        return self._suspended.ends_at(pod)

    def settle(self, workload: ForeignWorkload, *, put_off: str | None = None) -> None:
        """The caches show what became of it, or it could not be written: its places are free.

        Args:
            workload: it.
            put_off: why nothing is decided about it until the next call; '': it is for a moment.
        """
        for uid, (part, _) in list(self._assumed.items()):
            if part.workload.uid == workload.uid:
                del self._assumed[uid]
        if put_off is None:
            self._put_off.pop(workload.uid, None)
        else:
            self._put_off[workload.uid] = put_off

    def without_devices(self) -> list[LetGo]:
        """What waits and asks for no device: no queue has to have room for it."""
        return [
            LetGo(workload=workload, places={}, pods=pods)
            for workload, pods in self._waiting_workloads()
            if not any(each.has_devices for each in workload.shapes)
        ]

    def unreleased(self) -> list[PodView]:
        """Pods of groups and workloads that were let go which still have the gate."""
        assumed = {part.workload.uid for part, _ in self._assumed.values()}
        return self._suspended.entitled(is_open=self._is_open) + [
            pod
            for group in self._gated.groups()
            if group.uid not in assumed
            for pod in group.unreleased
        ]

    def explain(
        self, blocked: Iterable[Blocked], *, queues: Mapping[str, str]
    ) -> tuple[WorkloadInLine, ...]:
        """Take over why workloads wait; returns all that wait.

        Args:
            blocked: all gangs that wait, in scheduling order.
            queues: of the gangs that wait, by uid; of others the place is not counted.
        """
        reasons: dict[str, WorkloadInLine] = {}
        places: Counter[str] = Counter()
        for each in blocked:
            queue = queues.get(each.uid)
            if queue is not None:
                places[queue] += 1
            part = self._parts.get(each.uid)
            if queue is None or part is None:
                continue
            first = reasons.get(part.workload.uid)
            if first is None or first.reason == INCOMPLETE:  # what the others wait for says more
                reasons[part.workload.uid] = WorkloadInLine(
                    workload=part.workload,
                    reason=str(each.reason),
                    message=each.message,
                    position=first.position if first else places[queue],
                )
        gangs: dict[str, list[str]] = {}
        for uid, part in self._parts.items():
            gangs.setdefault(part.workload.uid, []).append(uid)
        in_line = [replace(each, gangs=tuple(gangs[uid])) for uid, each in reasons.items()]
        held_back = tuple(
            WorkloadInLine(workload=_nothing_of(group), reason=INCOMPLETE, message=group.waits_for)
            for group in self._gated.groups()
            if group.waits_for
        )
        refused = (*self._refused.values(), *self._that_are_put_off())
        self._waiting = (*in_line, *refused, *held_back)
        return self._waiting

    def _waiting_workloads(
        self,
    ) -> Iterable[tuple[ForeignWorkload, Mapping[str, tuple[PodView, ...]]]]:
        """What waits, with its pods by the name of the shape."""
        for group in self._gated.groups():
            if group.workload is not None:
                yield group.workload, group.pods
        for workload in self._suspended.waiting():
            yield workload, {}

    def _that_are_put_off(self) -> Iterable[WorkloadInLine]:
        if not self._put_off:
            return
        for workload, _ in self._waiting_workloads():
            if why := self._put_off.get(workload.uid):
                yield WorkloadInLine(workload=workload, reason=NOT_WRITTEN, message=why)

    def _parts_of(
        self, workload: ForeignWorkload, pods: Mapping[str, tuple[PodView, ...]]
    ) -> Iterable[_Part]:
        try:
            gangs = gangs_of(
                workload,
                queue=self._queues.get(workload.queue),
                pools=self._pools.by_name,
                class_value=self._priorities.value_of,
            )
        except Exception as error:  # noqa: BLE001 - one bad workload must not stop the cycle
            self._refused[workload.uid] = _refused(workload, error)
            return
        for shape in workload.shapes:
            if shape.name in gangs:
                gang = gangs[shape.name]
                yield _Part(workload=workload, shape=shape, gang=gang, pods=pods)

    def _held_by_pod(
        self, group: PodGroup, pod: PodView, *, places: PlacesFound
    ) -> Admitted | None:
        placement = pod.gate.placement if pod.gate else PlacementView()
        shape = Shape(name=pod.name, pods=1, requests=pod.requests, placement=placement)
        workload = replace(_nothing_of(group), queue=pod.labels[LABEL_QUEUE])
        return self._unbound(workload, shape, places, pods=1)

    def _unbound(
        self, workload: ForeignWorkload, shape: Shape, places: PlacesFound, *, pods: int
    ) -> Admitted | None:
        pool = self._pools.get(places.pool)
        if pool is None or not self._is_open(workload):
            return None
        return held_places(workload, shape, places=places, pool=pool, pods=pods)

    def _is_open(self, workload: ForeignWorkload) -> bool:
        queue = self._queues.get(workload.queue)
        return queue is not None and self._namespaces.is_open(queue, workload.regarding.namespace)


def _let_go(parts: list[tuple[_Part, PlacesFound]]) -> LetGo:
    """With the pods that need no device: they go along with the others."""
    first = parts[0][0]
    placed = {part.shape.name: places for part, places in parts}
    free = {each.name for each in first.workload.shapes if not each.has_devices}
    return LetGo(
        workload=first.workload,
        places=placed,
        pods={name: pods for name, pods in first.pods.items() if name in placed or name in free},
    )


def _refused(workload: ForeignWorkload, error: Exception) -> WorkloadInLine:
    is_unknown = isinstance(error, UnknownPriorityClassError)
    return WorkloadInLine(
        workload=workload,
        reason=NO_PRIORITY_CLASS if is_unknown else str(refusal_for(error).reason),
        message=refusal_for(error).message[:MAX_MESSAGE_CHARS],
    )


def _nothing_of(group: PodGroup) -> ForeignWorkload:
    """Whose pods a group's are, without a shape that waits."""
    return ForeignWorkload(
        key=group.key,
        uid=group.uid,
        queue=group.queue,
        queued_at=0.0,
        shapes=(),
        regarding=group.regarding,
    )
