"""Jobs and JobSets that are suspended until their queue has quota, and admitted ones.

A workload waits with `spec.suspend: true` and the label `drumline.dev/queue`, which its pods have
too. The operator resumes it and writes its places on it (`ANNOTATION_ADMITTED`). Its pods then have
the label `LABEL_WORKLOAD`. It is charged for its admitted pods until a kubelet accepts them. From
then on each pod is charged by its own label. A workload that is suspended with that mark was
suspended by its owner, and waits for nothing.

Pods of such a workload that have our gate are released with the workload's admission, as many as it
has places. A pod that only claims to belong to the workload would take the place of another. So it
must have the right controller (for a JobSet a Job, which is not watched here) and at least the
devices of its shape. A pod with other devices keeps its gate, because they would be used before
they are counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from drumline.controller.workloads.conversion import (
    ForeignWorkload,
    PlacesFound,
    Shape,
    devices_of,
    foreign_workload,
    places_in,
)
from drumline.kube.kinds import Resource
from drumline.kube.views import PodPhase, PodView
from drumline.kube.workload_kinds import KINDS
from drumline.kube.workload_views import JobsView, WorkloadView
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.base import ANNOTATION_ADMITTED, LABEL_QUEUE, LABEL_WORKLOAD, LABEL_WORKLOAD_PART

IsOpen = Callable[[ForeignWorkload], bool]
"""Returns whether the queue of a workload is open to its namespace."""


class Unbound(NamedTuple):
    """Pods of an admitted workload that no kubelet has accepted yet."""

    workload: ForeignWorkload
    shape: Shape
    places: PlacesFound
    pods: int


class _Awaited(NamedTuple):
    """Pods that an admitted workload waits for."""

    workload: ForeignWorkload
    unbound: tuple[Unbound, ...]
    entitled: tuple[PodView, ...]
    """Gated pods that may start."""


class SuspendedWorkloads:
    """Jobs and JobSets that name a queue, and their pods. For one event loop."""

    def __init__(self) -> None:
        self._views: dict[str, WorkloadView] = {}
        """Keyed by uid."""
        self._workloads: dict[str, ForeignWorkload] = {}
        self._pods: dict[str, dict[str, PodView]] = defaultdict(dict)
        """Pods by uid of their workload and of the pod. Failed and leaving pods are left out."""
        self._workload_of: dict[str, str] = {}
        """Uid of the workload of each of these pods, by uid of the pod."""
        self._changed: set[str] = set()
        """Uids of workloads that have changed since the last `_settle`, or their pods have."""
        self._awaited: dict[str, _Awaited] = {}
        """Pods that admitted workloads wait for, by uid. Most workloads wait for none."""

    def on_workload(
        self, resource: Resource, old: WorkloadView | None, new: WorkloadView | None
    ) -> None:
        """Process an event of a workload.

        Args:
            resource: the kind.
            old: the object before the event. None: it is new.
            new: the object after the event. None: it was deleted.
        """
        self._changed.update(view.uid for view in (old, new) if view is not None)
        if old is not None:
            self._views.pop(old.uid, None)
            self._workloads.pop(old.uid, None)
        if new is not None and LABEL_QUEUE in new.labels and not (new.is_child or new.over):
            self._views[new.uid] = new
            self._workloads[new.uid] = foreign_workload(resource, new)

    def on_pod(self, old: PodView | None, new: PodView | None) -> bool:
        """Process an event and return whether it concerns a pod of a workload."""
        if old is not None and (uid := _owner(old)):
            self._pods[uid].pop(old.uid, None)
            if not self._pods[uid]:
                del self._pods[uid]
            self._workload_of.pop(old.uid, None)
            self._changed.add(uid)
        if new is not None and (uid := _owner(new)):
            self._pods[uid][new.uid] = new
            self._workload_of[new.uid] = uid
            self._changed.add(uid)
        return any(pod is not None and _owner(pod) for pod in (old, new))

    def waiting(self) -> list[ForeignWorkload]:
        """Return the suspended workloads, without those that their owner suspended."""
        return self._select(suspended=True, marked=False)

    def waiting_with(self, uid: str) -> ForeignWorkload | None:
        """Return the workload with a uid if it is among `waiting`."""
        view = self._views.get(uid)
        if view is None or not view.suspended or ANNOTATION_ADMITTED in view.annotations:
            return None
        return self._workloads[uid]

    def resumed(self) -> list[ForeignWorkload]:
        """Return the admitted workloads that are not suspended."""
        return self._select(suspended=False, marked=True)

    def _select(self, *, suspended: bool, marked: bool) -> list[ForeignWorkload]:
        return [
            self._workloads[uid]
            for uid, view in self._views.items()
            if view.suspended == suspended and (ANNOTATION_ADMITTED in view.annotations) == marked
        ]

    def resumed_with(self, pod_uid: str) -> ForeignWorkload | None:
        """Return the workload for which a pod runs, or None.

        A pod that only claims to belong to one is evicted alone. Otherwise its author could have
        others suspended.
        """
        uid = self._workload_of.get(pod_uid, "")
        view = self._views.get(uid)
        if view is None or view.suspended or ANNOTATION_ADMITTED not in view.annotations:
            return None
        workload, pod = self._workloads[uid], self._pods[uid][pod_uid]
        return (
            workload if any(_has_shape(workload, each, pod) for each in workload.shapes) else None
        )

    def unbound(self, *, is_open: IsOpen) -> Iterable[Unbound]:
        """Yield the admitted pods that no kubelet has accepted yet. O(changed workloads)."""
        for each in self._settle():
            if is_open(each.workload):
                yield from each.unbound

    def entitled(self, *, is_open: IsOpen) -> list[PodView]:
        """Return the gated pods for which their workload has places. O(changed workloads)."""
        return [pod for each in self._settle() if is_open(each.workload) for pod in each.entitled]

    def _settle(self) -> Iterable[_Awaited]:
        """Return what the workloads wait for, after the changes since the last call."""
        for uid in self._changed:
            self._awaited.pop(uid, None)
            awaited = self._awaited_by(uid)
            if awaited is not None and (awaited.unbound or awaited.entitled):
                self._awaited[uid] = awaited
        self._changed.clear()
        return self._awaited.values()

    def _awaited_by(self, uid: str) -> _Awaited | None:
        """Return the pods that a workload waits for, or None if it is not admitted."""
        view = self._views.get(uid)
        text = view.annotations.get(ANNOTATION_ADMITTED) if view is not None else None
        if view is None or text is None or view.suspended:
            return None
        workload, places = self._workloads[uid], places_in(text)
        return _Awaited(
            workload,
            tuple(
                unbound
                for shape in workload.shapes
                if (unbound := self._unbound_of(workload, shape, places.get(shape.name)))
            ),
            tuple(
                pod
                for shape in workload.shapes
                for pod in self._entitled_to(workload, shape, places.get(shape.name))
            ),
        )

    def _unbound_of(
        self, workload: ForeignWorkload, shape: Shape, places: PlacesFound | None
    ) -> Unbound | None:
        if places is None:
            return None
        # Pods that succeeded need no place any more, so the number shrinks with them.
        pods = self._pods_of(workload, shape)
        running = sum(pod.is_accepted for pod in pods if not pod.finished)
        unbound = min(self._left(shape, pods), sum(places.nodes.values())) - running
        return Unbound(workload, shape, places, unbound) if unbound > 0 else None

    def ends_at(self, pod: PodView) -> float | None:
        """Return the latest end of a pod's Job, or None without a limit."""
        uid = pod.labels.get(LABEL_WORKLOAD, "")
        view = self._views.get(uid)
        if view is None or not view.start_time:
            return None
        workload = self._workloads[uid]
        limits = (
            each.deadline_seconds for each in workload.shapes if _has_shape(workload, each, pod)
        )
        limit = next(limits, None)
        return None if limit is None else parse_timestamp(view.start_time) + limit

    def _entitled_to(
        self, workload: ForeignWorkload, shape: Shape, places: PlacesFound | None
    ) -> list[PodView]:
        pods = self._pods_of(workload, shape)
        most = self._left(shape, pods)
        if shape.has_devices:
            most = min(most, sum(places.nodes.values()) if places else 0)
        # Exactly the requested devices: others would be used before they are counted.
        devices = devices_of(shape.requests)
        gated = [pod for pod in pods if pod.gate and devices_of(pod.requests) == devices]
        gated.sort(key=lambda pod: pod.name)
        begun = sum(pod.gate is None for pod in pods if not pod.finished)
        return gated[: max(0, most - begun)]

    def _left(self, shape: Shape, pods: Iterable[PodView]) -> int:
        """Return the number of the shape's pods that run concurrently, including running ones."""
        succeeded = Counter(pod.owner_uid for pod in pods if pod.finished)
        return _concurrent_pods(shape, succeeded=succeeded)

    def _pods_of(self, workload: ForeignWorkload, shape: Shape) -> list[PodView]:
        pods = self._pods.get(workload.uid, {}).values()
        return [pod for pod in pods if _has_shape(workload, shape, pod)]


def _has_shape(workload: ForeignWorkload, shape: Shape, pod: PodView) -> bool:
    """Return whether a pod is of this shape. Anybody can write the label alone."""
    return (
        pod.labels.get(LABEL_WORKLOAD_PART, "") == shape.name
        and pod.namespace == workload.regarding.namespace
        and pod.labels.get(LABEL_QUEUE) == workload.queue
        and _may_control(workload, pod)
        and all(
            pod.requests.get(name, 0) >= amount
            for name, amount in devices_of(shape.requests).items()
        )
    )


def _owner(pod: PodView) -> str:
    """Return the workload that a pod counts for, or ''."""
    is_gone = pod.terminating or pod.phase is PodPhase.FAILED
    return "" if is_gone else pod.labels.get(LABEL_WORKLOAD, "")


def _may_control(workload: ForeignWorkload, pod: PodView) -> bool:
    if KINDS[workload.regarding.resource].owns_pods:
        return pod.owner_uid == workload.uid
    return bool(pod.owner_uid)  # a Job of the JobSet, whose uid is not known here


def _concurrent_pods(shape: Shape, *, succeeded: Mapping[str, int]) -> int:
    """Return the number of pods that run concurrently, without those seen to succeed.

    A Job counts its own pods. A JobSet counts only whole Jobs, so its pods are observed. A Job
    without an observed pod counts as a whole.

        3 Jobs of 4 pods; of a 1 pod has succeeded, of b all 4       -> 3 of a, 4 of the third
        the same once the JobSet has counted b as one that succeeded -> the same
        a Job of 10 completions, 4 at a time, of which 8 succeeded   -> 2

    If the JobSet counts more ended Jobs than were observed, pods of ended Jobs are gone. Then the
    Jobs nearest to their end count as those Jobs, which charges too much rather than too little.

    Args:
        shape: the shape in the workload's object.
        succeeded: number of observed succeeded pods, by uid of their Job.
    """
    jobs = shape.jobs
    if jobs is None:
        return shape.pods
    # Jobs with observed pods, without those that have ended.
    begun = sorted(filter(None, (_unfinished(jobs, seen) for seen in succeeded.values())))
    ended = len(succeeded) - len(begun)
    begun = begun[max(0, jobs.ended - ended) :]
    # Jobs without any observed pod.
    unseen = max(0, jobs.number - max(ended, jobs.ended) - len(begun))
    at_a_time = sum(min(jobs.parallelism, left) for left in begun)
    return min(shape.pods, at_a_time + unseen * min(jobs.parallelism, _unfinished(jobs, 0)))


def _unfinished(jobs: JobsView, seen: int) -> int:
    """Return the number of a Job's pods that have not succeeded."""
    return max(0, jobs.completions - max(jobs.succeeded, seen))
