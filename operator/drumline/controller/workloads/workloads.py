"""Workloads other than TrainingJobs: those that wait for quota, and admitted unbound pods.

The scheduler gets waiting workloads as gangs, and admitted ones as foreign pods until they are
bound. A decision is assumed until the event of its write, as for jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from drumline.controller.informers.namespaces import NamespaceCache
from drumline.controller.informers.specs import PriorityCache, SpecCache
from drumline.controller.informers.volumes import VolumeCache
from drumline.controller.workloads.conversion import (
    ForeignWorkload,
    GangTerms,
    PlacesFound,
    PoolUnits,
    Shape,
    UnknownPriorityClassError,
    gangs_of,
    held_places,
    units_of_pools,
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
"""Reason of a workload whose changes the API server rejects."""
NO_PRIORITY_CLASS: Final = "PriorityClassNotFound"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWorkload:
    """A workload with places from a cycle.

    Attributes:
        workload: the workload.
        places: places by name of the shape. Shapes without devices have none.
        pods: waiting pods by name of the shape. Empty for a Job or JobSet.
    """

    workload: ForeignWorkload
    places: Mapping[str, PlacesFound]
    pods: Mapping[str, tuple[PodView, ...]]

    @property
    def is_object(self) -> bool:
        """Return whether it is a Job or JobSet, which must be resumed."""
        return self.workload.regarding.resource is not PODS


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadInLine:
    """A waiting workload, and why it waits.

    Attributes:
        workload: the workload.
        reason: reason from a closed list.
        message: the reason for users.
        position: position in the line of its queue, including jobs, from 1. 0 if it has none.
        gangs: uids of its gangs in the scheduler.
    """

    workload: ForeignWorkload
    reason: str
    message: str
    position: int = 0
    gangs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A gang, and the workload and shape that it belongs to."""

    workload: ForeignWorkload
    shape: Shape
    gang: Gang
    pods: Mapping[str, tuple[PodView, ...]]


class _Kept(NamedTuple):
    """Number of pods that are not bound, and since when none of them was."""

    pods: int
    since: float


class _Converted(NamedTuple):
    """The gangs of a waiting workload, and what they were made of."""

    workload: ForeignWorkload
    terms: GangTerms
    parts: list[_Part]


class Workloads:
    """Waiting and admitted workloads. For one event loop.

    Args:
        queues: specs of the queues.
        pools: specs of the pools.
        namespaces: labels of namespaces, by which queues select them.
        priorities: values of the PriorityClasses that templates name.
        scope: namespaces whose workloads belong to this installation.
        volumes: nodes from which claims can be used.
    """

    def __init__(
        self,
        *,
        queues: SpecCache[TrainingQueueSpec],
        pools: SpecCache[GpuPoolSpec],
        namespaces: NamespaceCache,
        priorities: PriorityCache,
        scope: InstallationScope,
        volumes: VolumeCache,
    ) -> None:
        self._volumes = volumes
        self._queues = queues
        self._pools = pools
        self._namespaces = namespaces
        self._priorities = priorities
        self._scope = scope
        self._gated = GatedPods()
        self._suspended = SuspendedWorkloads()
        self._converted: dict[str, _Converted] = {}
        """Gangs of each waiting workload by its uid."""
        self._made_with: tuple[object, ...] = ()
        """Specs and priorities with which the gangs were checked last."""
        self._parts: dict[str, _Part] = {}
        """Gangs as of the last call of `pending`, by uid."""
        self._refused: dict[str, WorkloadInLine] = {}
        """Workloads that cannot be converted to gangs, as of the last call of `pending`, by uid."""
        self._assumed: dict[str, tuple[_Part, PlacesFound]] = {}
        """Decisions that the watch does not show yet, by uid of the gang."""
        self._deferred: dict[str, str] = {}
        """Reason, by uid of a workload that is not decided for a while. '' for a moment."""
        self._held: dict[str, Admitted] = {}
        self._kept: dict[str, _Kept] = {}
        """Unbound pods, by uid of the pod, or by uid of the workload and name of the shape."""
        self._waiting: tuple[WorkloadInLine, ...] = ()
        """Waiting workloads as of the last cycle in scheduling order, then those without a gang."""

    def on_pod(self, old: PodView | None, new: PodView | None) -> bool:
        """Process an event and return whether the waiting workloads may have changed."""
        covered = [pod if pod and self._scope.covers(pod.namespace) else None for pod in (old, new)]
        of_workload = self._suspended.on_pod(*covered)
        is_gated = self._gated.on_pod(*covered)
        group = self._gated.single(covered[1]) if is_gated and covered[1] is not None else None
        if group is not None and group.workload is not None:
            self._convert(group.workload, group.pods)
        return is_gated or of_workload

    def on_workload(
        self, resource: Resource, old: WorkloadView | None, new: WorkloadView | None
    ) -> None:
        """Process an event of a Job or JobSet that names a queue.

        Args:
            resource: the kind.
            old: the object before the event. None: it is new.
            new: the object after the event. None: it was deleted.
        """
        covered = [
            each if each and self._scope.covers(each.namespace) else None for each in (old, new)
        ]
        self._suspended.on_workload(resource, *covered)
        waiting = self._suspended.waiting_with(new.uid) if new is not None else None
        if waiting is not None:
            self._convert(waiting, {})

    def _convert(self, workload: ForeignWorkload, pods: Mapping[str, tuple[PodView, ...]]) -> None:
        """Convert a workload now, so that a cycle after many events has little to convert."""
        if self._made_with == self._facts():
            pools = {workload.queue: self._pools_of(workload.queue)}
            terms = self._terms_of(workload, pools=pools)
            parts = list(self._parts_of(workload, pods, terms=terms, before=self._parts))
            self._converted[workload.uid] = _Converted(workload, terms, parts)

    def pending(self) -> list[Gang]:
        """Return the gangs of waiting workloads. The same objects while nothing changes."""
        before, parts = self._parts, dict[str, _Part]()
        refused, converted = self._refused, dict[str, _Converted]()
        self._refused = {}
        # Phase 1: the gangs that were made before, if what they depend on has not changed.
        facts = self._facts()
        is_checked, self._made_with = self._made_with == facts, facts
        pools = {name: self._pools_of(name) for name in self._queues.by_name}
        for workload, pods in self._waiting_workloads():
            uid, known = workload.uid, self._converted.get(workload.uid)
            if known is not None and known.workload is not workload:
                known = None
            terms = known.terms if known and is_checked else self._terms_of(workload, pools=pools)
            if known and known.terms == terms:
                converted[uid] = known
                if uid in refused:
                    self._refused[uid] = refused[uid]
            # Phase 2: thousands may wait, so only what differs is made again.
            else:
                made = self._parts_of(workload, pods, terms=terms, before=before)
                converted[uid] = _Converted(workload, terms, list(made))
            parts.update((part.gang.uid, part) for part in converted[uid].parts)
        self._converted, self._parts = converted, parts
        return [
            part.gang
            for uid, part in parts.items()
            if uid not in self._assumed and part.workload.uid not in self._deferred
        ]

    def _terms_of(
        self, workload: ForeignWorkload, *, pools: Mapping[str, tuple[PoolUnits, ...]]
    ) -> GangTerms:
        of_queue = pools.get(workload.queue)
        return GangTerms.of(
            workload,
            pools=self._pools_of(workload.queue) if of_queue is None else of_queue,
            namespace_ends=workload.regarding.namespace in self._namespaces.terminating,
            class_value=self._priorities.value_of,
            reach=self._volumes.reach_of_claims,
        )

    def _pools_of(self, queue: str) -> tuple[PoolUnits, ...]:
        return units_of_pools(self._queues.get(queue), pools=self._pools.by_name)

    def _facts(self) -> tuple[object, ...]:
        """Return the specs, priorities, volumes and namespaces that gangs are made with."""
        specs = dict(self._queues.by_name), dict(self._pools.by_name)
        versions = self._priorities.version, self._volumes.version
        return (*specs, *versions, frozenset(self._namespaces.terminating))

    def held(self, *, now: float) -> Iterable[Admitted]:
        """Return the admitted unbound pods, which are charged and counted at their places.

        They should be created and bound soon. They count at their places for a while only: the API
        server may refuse them, their controller or scheduler may be gone.
        """
        # A decision and its write must not count twice, so assumed ones are taken out of the
        # caches' part.
        assumed = {
            pod.uid
            for part, _ in self._assumed.values()
            for pod in part.pods.get(part.shape.name, ())
        }
        resumed = {part.workload.uid for part, _ in self._assumed.values()}
        admitted = [
            (group, pod, places)
            for group in self._gated.groups()
            for pod, places in group.admitted
            if pod.uid not in assumed
        ]
        unbound = {
            f"{each.workload.uid}/{each.shape.name}": each
            for each in self._suspended.unbound(is_open=self._is_open)
            if each.workload.uid not in resumed
        }
        counts = {pod.uid: 1 for _, pod, _ in admitted}
        counts.update((key, each.pods) for key, each in unbound.items())
        self._kept = {
            key: _kept(pods, before=self._kept.get(key), now=now) for key, pods in counts.items()
        }
        holds = [
            self._held_by_pod(group, pod, places=places, bound_by=self._kept[pod.uid].since)
            for group, pod, places in admitted
        ]
        holds += [
            self._unbound(part.workload, part.shape, places, pods=part.shape.pods)
            for part, places in self._assumed.values()
        ]
        holds += [
            self._unbound(
                each.workload,
                each.shape,
                each.places,
                pods=each.pods,
                bound_by=self._kept[key].since,
            )
            for key, each in unbound.items()
        ]
        self._held = unchanged([each for each in holds if each is not None], before=self._held)
        return self._held.values()

    def is_waiting(self, uid: str) -> bool:
        """Return whether this is the uid of a workload's gang, as of the last call of `pending`."""
        return uid in self._parts

    def assume_placed(self, placed: Iterable[Placed]) -> list[PlacedWorkload]:
        """Accept a cycle's placements. They are assumed from now on, until `settle`."""
        by_workload: dict[str, list[tuple[_Part, PlacesFound]]] = {}
        for each in placed:
            part = self._parts[each.uid]
            counts = dict.fromkeys(each.assignment, 0)
            for name in each.assignment:
                counts[name] += 1
            places = PlacesFound(pool=each.pool, nodes=counts)
            self._assumed[each.uid] = (part, places)
            by_workload.setdefault(part.workload.uid, []).append((part, places))
        return [_placed_workload(parts) for parts in by_workload.values()]

    def waiting_for(self, queue: str) -> tuple[WorkloadInLine, ...]:
        """Return the workloads that wait for a queue, as of the last cycle."""
        return tuple(each for each in self._waiting if each.workload.queue == queue)

    def resumed(self) -> list[ForeignWorkload]:
        """Return the admitted Jobs, JobSets and others that run."""
        return self._suspended.resumed()

    def resumed_with(self, pod_uid: str) -> ForeignWorkload | None:
        """Return the admitted workload that has this pod, or None."""
        return self._suspended.resumed_with(pod_uid)

    def ends_at(self, pod: PodView) -> float | None:
        """Return the latest end of a pod's workload, or None without a limit."""
        return self._suspended.ends_at(pod)

    def settle(self, workload: ForeignWorkload, *, deferred: str | None = None) -> None:
        """Release a decision: the caches show its write, or it could not be written.

        Args:
            workload: the workload.
            deferred: why it is not decided until the next call. '' for a moment, None: it is
                decided.
        """
        for uid, (part, _) in list(self._assumed.items()):
            if part.workload.uid == workload.uid:
                del self._assumed[uid]
        if deferred is None:
            self._deferred.pop(workload.uid, None)
        else:
            self._deferred[workload.uid] = deferred

    def without_devices(self) -> list[PlacedWorkload]:
        """Return the waiting workloads without devices. They need no quota."""
        return [
            PlacedWorkload(workload=workload, places={}, pods=pods)
            for workload, pods in self._waiting_workloads()
            if not any(each.has_devices for each in workload.shapes)
        ]

    def unreleased(self) -> list[PodView]:
        """Return pods of admitted groups and workloads that still have the gate."""
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
        """Record why workloads wait. Return all waiting workloads.

        Args:
            blocked: all blocked gangs, in scheduling order.
            queues: queue of each waiting gang by its uid. Others have no position.
        """
        # Phase 1: the reason of the first gang of each workload, and its position in line.
        reasons: dict[str, WorkloadInLine] = {}
        before = {each.workload.uid: each for each in self._waiting}
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
                known = before.get(part.workload.uid)
                why = known if known and each.reason is BlockReason.NOT_TRIED else each
                reasons[part.workload.uid] = WorkloadInLine(
                    workload=part.workload,
                    reason=str(why.reason),
                    message=why.message,
                    position=first.position if first else places[queue],
                )
        # Phase 2: the uids of its gangs, for its expected start.
        gangs: dict[str, list[str]] = {}
        for uid, part in self._parts.items():
            gangs.setdefault(part.workload.uid, []).append(uid)
        in_line = [replace(each, gangs=tuple(gangs[uid])) for uid, each in reasons.items()]
        # Phase 3: workloads without a gang: incomplete, not convertible, or not written.
        held_back = tuple(
            WorkloadInLine(
                workload=_empty_workload(group), reason=INCOMPLETE, message=group.waits_for
            )
            for group in self._gated.groups()
            if group.waits_for
        )
        refused = (*self._refused.values(), *self._deferred_workloads())
        self._waiting = (*in_line, *refused, *held_back)
        return self._waiting

    def _waiting_workloads(
        self,
    ) -> Iterable[tuple[ForeignWorkload, Mapping[str, tuple[PodView, ...]]]]:
        """Yield the waiting workloads, with their pods by name of the shape."""
        for group in self._gated.groups():
            if group.workload is not None:
                yield group.workload, group.pods
        for workload in self._suspended.waiting():
            yield workload, {}

    def _deferred_workloads(self) -> Iterable[WorkloadInLine]:
        if not self._deferred:
            return
        for workload, _ in self._waiting_workloads():
            if why := self._deferred.get(workload.uid):
                yield WorkloadInLine(workload=workload, reason=NOT_WRITTEN, message=why)

    def _parts_of(
        self,
        workload: ForeignWorkload,
        pods: Mapping[str, tuple[PodView, ...]],
        *,
        terms: GangTerms,
        before: Mapping[str, _Part],
    ) -> Iterable[_Part]:
        try:
            gangs = gangs_of(workload, terms=terms)
        except Exception as error:  # noqa: BLE001 - one bad workload must not stop the cycle
            self._refused[workload.uid] = _refused(workload, error)
            return
        for shape in workload.shapes:
            if shape.name in gangs:
                gang = gangs[shape.name]
                known = before.get(gang.uid)
                if known is not None and known.gang == gang:
                    gang = known.gang
                yield _Part(workload=workload, shape=shape, gang=gang, pods=pods)

    def _held_by_pod(
        self, group: PodGroup, pod: PodView, *, places: PlacesFound, bound_by: float
    ) -> Admitted | None:
        placement = pod.gate.placement if pod.gate else PlacementView()
        shape = Shape(name=pod.name, pods=1, requests=pod.requests, placement=placement)
        workload = replace(_empty_workload(group), queue=pod.labels[LABEL_QUEUE])
        return self._unbound(workload, shape, places, pods=1, bound_by=bound_by)

    def _unbound(
        self,
        workload: ForeignWorkload,
        shape: Shape,
        places: PlacesFound,
        *,
        pods: int,
        bound_by: float | None = None,
    ) -> Admitted | None:
        pool = self._pools.get(places.pool)
        if pool is None or not self._is_open(workload):
            return None
        held = held_places(workload, shape, places=places, pool=pool, pods=pods)
        return held and replace(held, leaves_by=bound_by)

    def _is_open(self, workload: ForeignWorkload) -> bool:
        queue = self._queues.get(workload.queue)
        return queue is not None and self._namespaces.is_open(queue, workload.regarding.namespace)


def _kept(pods: int, *, before: _Kept | None, now: float) -> _Kept:
    """Return since when these pods are awaited. A pod that was bound starts the time again."""
    if before is None or pods < before.pods:
        return _Kept(pods, now)
    return _Kept(pods, before.since)


def _placed_workload(parts: list[tuple[_Part, PlacesFound]]) -> PlacedWorkload:
    """Return a placed workload. Its pods without devices are admitted with the others."""
    first = parts[0][0]
    placed = {part.shape.name: places for part, places in parts}
    free = {each.name for each in first.workload.shapes if not each.has_devices}
    return PlacedWorkload(
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


def _empty_workload(group: PodGroup) -> ForeignWorkload:
    """Return the workload of a group, without a waiting shape."""
    return ForeignWorkload(
        key=group.key,
        uid=group.uid,
        queue=group.queue,
        queued_at=0.0,
        shapes=(),
        regarding=group.regarding,
    )
