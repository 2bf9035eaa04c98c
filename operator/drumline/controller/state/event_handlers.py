"""Handlers of informer events: update the cache, wake jobs, wake the scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from drumline.controller.informers.informers import Informers
from drumline.controller.jobs.status_writer import scheduled_state
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.device_views import DeviceSliceView, DeviceTaintRuleView, ResourceClaimView
from drumline.kube.informer import Informer
from drumline.kube.store import Change, Event
from drumline.kube.views import (
    NamespaceView,
    NodeView,
    ObjectView,
    PodView,
    PriorityClassView,
    TrainingJobView,
)
from drumline.kube.workload_views import WorkloadView
from drumline.lifecycle.model.job import Job
from drumline.telemetry import logs
from drumline_api.base import LABEL_JOB

log = logs.get("drumline.controller.state.event_handlers")
_OursEvent = Event[ObjectView] | Event[TrainingJobView]


class EventHandlers:
    """The subscribers of all informers.

    Args:
        state: the caches to update.
        enqueue: wakes the reconciler for a job's key.
        enqueue_soon: wakes the reconciler after a moment, because a gang's pods change in bursts.
        wake_scheduler: called when capacity, quota or the waiting jobs may have changed.
        covers: returns whether the jobs of a namespace belong to this installation.
    """

    def __init__(
        self,
        state: ClusterCache,
        *,
        enqueue: Callable[[str], None],
        enqueue_soon: Callable[[str], None],
        wake_scheduler: Callable[[], None],
        covers: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._state = state
        self._enqueue = enqueue
        self._enqueue_soon = enqueue_soon
        self._wake_scheduler = wake_scheduler
        self._covers = covers

    def subscribe_to(self, informers: Informers) -> None:
        """Subscribe to every later event of these informers."""
        for jobs in informers.jobs:
            jobs.subscribe(self._on_job)
            jobs.subscribe_to_rewinds(self._on_rewind)
        informers.pods.subscribe(self._on_pod)
        informers.nodes.subscribe(self._on_node)
        informers.pools.subscribe(self._on_pool)
        informers.queues.subscribe(self._on_queue)
        informers.priority_classes.subscribe(self._on_priority_class)
        for workloads in informers.workloads:
            self.follow(workloads)
        informers.namespaces.subscribe(self._on_namespace)
        informers.runtime_classes.subscribe(self._waking(self._state.on_runtime_class))
        volumes = self._state.volumes
        for claims in informers.volumes.claims:
            claims.subscribe(self._waking(volumes.on_claim))
        informers.volumes.volumes.subscribe(self._waking(volumes.on_volume))
        informers.volumes.classes.subscribe(self._waking(volumes.on_storage_class))
        informers.volumes.csi_nodes.subscribe(self._waking(volumes.csi.on_node))
        informers.volumes.csi_drivers.subscribe(self._waking(volumes.csi.on_driver))
        if informers.devices is not None:
            informers.devices.slices.subscribe(self._on_slice)
            informers.devices.claims.subscribe(self._on_claim)
            if informers.devices.taint_rules is not None:
                informers.devices.taint_rules.subscribe(self._on_taint_rule)

    def _on_job(self, event: Event[TrainingJobView]) -> None:
        old, new = _sides(event)
        key = "/".join(event.key)
        # Compare with our version before the event: a write of ours has woken the scheduler
        # already.
        before = self._state.jobs.get(key)
        _log_unreadable(event, self._state.on_job(old, new))
        if _scheduling_changed(event) or _status_is_news(before, self._state.jobs.get(key)):
            self._wake_scheduler()
        self._enqueue(key)
        # A job that ends or goes changes the state of the jobs that start after it.
        for successor in self._state.chains.successors(key):
            self._enqueue_soon(successor)

    def _on_rewind(self) -> None:
        log.warning("cluster_restored", why="the list of jobs is older than what was seen")
        self._state.jobs.forget_assumed()
        self._wake_scheduler()

    def _on_pod(self, event: Event[PodView]) -> None:
        old, new = _sides(event)
        waits = self._state.on_pod(old, new)
        job = event.view.labels.get(LABEL_JOB) if self._covers(event.view.namespace) else None
        if job is not None:
            self._enqueue_soon(f"{event.view.namespace}/{job}")
        # Pods on CPU nodes change no decision. There may be many thousands of them.
        placed = any(
            pod is not None and self._state.nodes.may_be_pooled(pod.node_name) for pod in (old, new)
        )
        if waits or (placed and _capacity_changed(old, new, foreign=job is None)):
            self._wake_scheduler()

    def follow(self, workloads: Informer[WorkloadView]) -> None:
        """Subscribe to every later event of Jobs or JobSets that name a queue."""

        def on_workload(event: Event[WorkloadView]) -> None:
            self._state.on_workload(workloads.resource, *_sides(event))
            self._wake_scheduler()

        workloads.subscribe(on_workload)

    def _on_node(self, event: Event[NodeView]) -> None:
        change = self._state.nodes.on_node(*_sides(event))
        if change.schedulable:
            self._wake_scheduler()
        for key in change.jobs:
            self._enqueue_soon(key)

    def _on_slice(self, event: Event[DeviceSliceView]) -> None:
        self._devices_changed(self._state.nodes.devices.on_slice(*_sides(event)))

    def _on_taint_rule(self, event: Event[DeviceTaintRuleView]) -> None:
        self._devices_changed(self._state.nodes.devices.on_taint_rule(*_sides(event)))

    def _on_claim(self, event: Event[ResourceClaimView]) -> None:
        self._devices_changed(self._state.nodes.devices.on_claim(*_sides(event)))

    def _devices_changed(self, nodes: Iterable[str]) -> None:
        for change in self._state.nodes.devices_changed(nodes):
            self._wake_scheduler()
            for key in change.jobs:
                self._enqueue_soon(key)

    def _on_pool(self, event: Event[ObjectView]) -> None:
        if _spec_changed(event):
            _log_unreadable(event, self._state.on_pool(*_sides(event)))
            self._wake_scheduler()
            self._wake_jobs(event)

    def _on_queue(self, event: Event[ObjectView]) -> None:
        if _spec_changed(event):
            _log_unreadable(event, self._state.on_queue(*_sides(event)))
            self._wake_scheduler()
            self._wake_jobs(event)

    def _wake_jobs(self, event: Event[ObjectView]) -> None:
        """Wake the jobs with nodes whose queue or pool was created or deleted."""
        if event.change is Change.MODIFIED:
            return
        name = event.view.name
        for job in self._state.jobs.all():
            places = job.status.assignment
            if places is not None and name in (job.spec.queue, places.gpu_pool):
                self._enqueue_soon(job.key)

    def _on_priority_class(self, event: Event[PriorityClassView]) -> None:
        self._state.on_priority_class(*_sides(event))
        self._wake_scheduler()

    def _waking(self, take: Callable[[Any, Any], bool]) -> Callable[[Event[Any]], None]:
        """Return a subscriber that wakes the scheduler if an event may change a decision."""

        def on_event(event: Event[Any]) -> None:
            if take(*_sides(event)):
                self._wake_scheduler()

        return on_event

    def _on_namespace(self, event: Event[NamespaceView]) -> None:
        if self._state.namespaces.on_namespace(*_sides(event)):
            self._wake_scheduler()


def _status_is_news(before: Job | None, after: Job | None) -> bool:
    """Return whether a status has changed that no component of this process announced.

    A write of ours that was answered by a conflict, or a write of another leader.
    """
    if before is None or after is None:
        return False  # a job that comes or goes is news by itself
    return scheduled_state(before.status) != scheduled_state(after.status)


def _log_unreadable(event: _OursEvent, problem: str | None) -> None:
    if problem is not None:
        log.warning("object_unreadable", key="/".join(event.key).lstrip("/"), why=problem)


def _sides(event: Event[Any]) -> tuple[Any, Any]:
    """Return the views before and after the event. None after a deletion."""
    if event.change is Change.DELETED:
        return event.view, None
    return event.previous, event.view


def _capacity_changed(old: PodView | None, new: PodView | None, *, foreign: bool) -> bool:
    """Return whether a pod freed resources, or a pod of another owner took some."""
    if new is None or old is None:
        # A new member's resources were counted with its assignment.
        return new is None or foreign
    if new.finished != old.finished:
        return True
    return foreign and (new.node_name, new.requests) != (old.node_name, old.requests)


def _spec_changed(event: _OursEvent) -> bool:
    """Return whether an object was created, deleted, or has another spec."""
    if event.change is Change.DELETED or event.previous is None:
        return True
    return event.previous.generation != event.view.generation


def _scheduling_changed(event: Event[TrainingJobView]) -> bool:
    """Return whether an event can change a decision.

    Our own status writes wake the scheduler themselves, so only users' changes count here.
    """
    return event.change is not Change.MODIFIED or _spec_changed(event)
