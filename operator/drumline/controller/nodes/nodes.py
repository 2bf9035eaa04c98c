"""The nodes for scheduler and reconciler: capacity, use, and announced disruptions.

Informer events keep them up to date. A node's use counts every pod bound to it until the pod has
ended or its object is gone. Members on dead nodes hold their resources that long, even if the
operator has replaced them. A node is *gone* when its object is deleted, or when it is not ready and
the out-of-service taint confirms that nothing runs there any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final, NamedTuple, Protocol

import msgspec

from drumline.controller.informers.runtime_classes import RuntimeClassCache
from drumline.controller.informers.volumes import VolumeCache, attachable
from drumline.controller.nodes.conversion import (
    MAX_AMOUNT,
    GpuUnits,
    capped,
    held_of,
    node_facts_of,
    node_of,
    seconds_of,
    setup_deadline,
    with_runtime_class,
)
from drumline.controller.nodes.devices import DeviceCache
from drumline.controller.nodes.pods import ChargedPod, PodsByRole
from drumline.kube.views import NodeView, PodView
from drumline.lifecycle.model.observed import NodeDisruption
from drumline_api.base import LABEL_JOB, RESOURCE_CHANNEL, TAINT_PROMISED
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.policy import SchedulingPolicy
from drumline_scheduler.disruption.merge import (
    AnnouncedDisruptions,
    keep_earliest_deadlines,
    merged,
)
from drumline_scheduler.disruption.model import Confidence, Disruption
from drumline_scheduler.disruption.node_scores import TRUSTED, NodeStanding
from drumline_scheduler.disruption.signals import announced_disruptions, out_of_service
from drumline_scheduler.model import Node
from drumline_scheduler.resources import NOTHING, Resources

LONGEST_GRACE_SECONDS: Final = 3600.0
"""Longest grace period that is waited for. Other gangs are preempted instead of waiting longer."""
OVERDUE_SECONDS: Final = SchedulingPolicy().overdue_seconds
"""Time after which a pod that should have left counts as stuck.

A finalizer holds it, or its kubelet is dead.
"""
DISTRUSTED_PART: Final = 10
"""Divisor of the nodes of a pool that failed starts of one namespace can close."""
MAX_HANGING: Final = 3
"""Most stuck pods of a node that are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """The effect of a node's event, or of the passing time."""

    schedulable: bool = False
    """True if the scheduler may decide differently now."""
    jobs: frozenset[str] = field(default_factory=frozenset[str])
    """Keys of the jobs with pods there that must be reconciled."""


class _Distrust(NamedTuple):
    """The version of a node with which pods of a namespace did not start there."""

    version: str
    by: str


class PodRoles(Protocol):
    """Sorts the pods of a node by role."""

    def __call__(self, name: str, pods: Iterable[PodView], *, ready: bool) -> PodsByRole:
        """Return the pods of the named node by their role."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nominated:
    """An unbound pod for which another scheduler reserves resources of a node."""

    pod: PodView
    until: float
    """Time until which it is expected there, in seconds since the epoch."""


class NodeCache:
    """All nodes, and the pods on them.

    Args:
        clock: seconds since the epoch. A disruption without a time is announced now.
        overdue_seconds: time after its grace period for which a pod is still expected to leave.
    """

    def __init__(
        self, *, clock: Callable[[], float], overdue_seconds: float = OVERDUE_SECONDS
    ) -> None:
        self._clock = clock
        self._overdue_seconds = overdue_seconds
        self._expected_since: dict[str, float] = {}
        """Time since which a pod should have been deleted, by uid."""
        self._leaves_at: dict[str, float] = {}
        """End of the grace period of a pod whose deletion was seen, by uid."""
        self.runtime_classes = RuntimeClassCache()
        """Requirements of the pools' RuntimeClasses."""
        self.labels: dict[str, Mapping[str, str]] = {}
        """Labels by node."""
        self.volumes = VolumeCache(labels_of=self.labels.get)
        """Volumes of jobs, and how many of them a node can attach."""
        self._limited: frozenset[str] = frozenset()
        """Drivers with a limit for which the cached values of the nodes were made."""
        self.devices = DeviceCache()
        """Devices of nodes whose GPUs are allocated by claims."""
        self._views: dict[str, NodeView] = {}
        self._pods: dict[str, dict[str, PodView]] = defaultdict(dict)
        self.groups: dict[tuple[str, str], dict[str, PodView]] = {}
        """Bound pods by namespace and name of their group, on nodes of all kinds."""
        self._distrusted: dict[str, _Distrust] = {}
        self.standings: Mapping[str, NodeStanding] = {}
        """Verdicts on nodes with evidence against them. `set_standings` sets them."""
        self._nominated: dict[str, dict[str, _Nominated]] = {}
        """Unbound pods for which another scheduler reserves resources, by uid, by node."""
        self._out_of_service: set[str] = set()
        self.promised: set[str] = set()
        """Nodes with the taint that keeps kube-scheduler off promised places."""
        self._announced: dict[str, AnnouncedDisruptions] = {}
        self._verdicts: dict[str, Disruption] = {}
        self._values: dict[str, Node] = {}
        self._recount_at: dict[str, float] = {}
        """Time at which a node's cached value may change without an event, by node."""
        self.contested: dict[str, tuple[str, ...]] = {}
        """Pools of each node that several pools select, its own first."""
        self._unpooled: set[str] = set()
        """Nodes that belonged to no pool at the last call of `in_pools`."""
        self._charged: dict[str, tuple[ChargedPod, ...]] = {}
        """Pods that are charged to a queue without being members, by node."""

    def on_pod(self, old: PodView | None, new: PodView | None) -> float | None:
        """Process an event of a pod, of any owner.

        Returns:
            the end of its grace period on this clock; None if its begin was not seen.
        """
        self._nominate(old, new)
        leaves_at = self._end_seen(old, new)
        if old is not None:
            self._remove(old)
        # A finished pod holds nothing, although its object may stay for days.
        if new is not None and new.node_name and not new.finished:
            self._pods[new.node_name][new.uid] = new
            self._values.pop(new.node_name, None)
            if leaves_at is not None:
                self._leaves_at[new.uid] = leaves_at
            self.volumes.on_pod(None, new)
            if new.group:
                self.groups.setdefault((new.namespace, new.group), {})[new.uid] = new
        return leaves_at

    def _remove(self, pod: PodView) -> None:
        pods = self._pods.get(pod.node_name)
        if pods is not None:
            self.volumes.on_pod(pods.pop(pod.uid, None), None)
            if pod.group:
                group = self.groups.get((pod.namespace, pod.group), {})
                group.pop(pod.uid, None)
                if not group:
                    self.groups.pop((pod.namespace, pod.group), None)
            self._expected_since.pop(pod.uid, None)
            self._leaves_at.pop(pod.uid, None)
            if not pods:
                del self._pods[pod.node_name]
        self._values.pop(pod.node_name, None)

    def _end_seen(self, old: PodView | None, new: PodView | None) -> float | None:
        """Return the end of a pod's grace period on this clock; None if its begin was not seen.

        The clock of the API server may differ.
        """
        if old is None or new is None or old.uid != new.uid or not new.terminating:
            return None
        before = self._leaves_at.get(new.uid)
        if old.terminating and (before is None or old.grace_seconds == new.grace_seconds):
            return before
        return min(self._clock() + new.grace_seconds, inf if before is None else before)

    def _nominate(self, old: PodView | None, new: PodView | None) -> None:
        """Record on which node another scheduler reserves resources for an unbound pod."""
        before: _Nominated | None = None
        for pod in filter(None, (old, new)):
            if pod.nominated_node:
                by_uid = self._nominated.get(pod.nominated_node, {})
                before = by_uid.pop(pod.uid, None) or before
                if not by_uid:
                    self._nominated.pop(pod.nominated_node, None)
                self._values.pop(pod.nominated_node, None)
        if new is not None and new.nominated_node and not (new.node_name or new.finished):
            is_same = before is not None and before.pod.nominated_node == new.nominated_node
            end = self._clock() + self._overdue_seconds
            until = before.until if before is not None and is_same else end
            by_uid = self._nominated.setdefault(new.nominated_node, {})
            by_uid[new.uid] = _Nominated(pod=new, until=until)

    def on_node(self, old: NodeView | None, new: NodeView | None) -> NodeChange:
        """Process an event of a node. An update ends the distrust of its earlier state."""
        view = new or old
        if view is None:
            return NodeChange()
        name = view.name
        # Compare the state before and after: most updates are heartbeats that change no decision.
        schedulable, relevant = self._schedulable_state(name), self._job_relevant_state(name)
        self._out_of_service.discard(name)
        self.promised.discard(name)
        if new is None:
            for by_name in (
                self._views,
                self.labels,
                self._distrusted,
                self._values,
                self.contested,
                self._recount_at,
                self._charged,
            ):
                by_name.pop(name, None)
            self._unpooled.discard(name)
            self._announce(name, ())
        else:
            self._take(new)
        return self._changed(name, schedulable, relevant)

    def devices_changed(self, names: Iterable[str]) -> list[NodeChange]:
        """Process that drivers publish other devices of these nodes, or that claims hold others."""
        changes: list[NodeChange] = []
        for name in names:
            if name in self._views:
                relevant = self._job_relevant_state(name)
                self._announce_again(name)
                self._values.pop(name, None)
                changes.append(self._changed(name, (), relevant))
        return changes

    def pools_changed(self) -> None:
        """Assign every node to its pool again after the pools changed."""
        self._values.clear()
        self._unpooled.clear()

    def recount(self, names: Iterable[str]) -> None:
        """Count the resources of these nodes again, because other pods are about to leave."""
        for name in names:
            self._values.pop(name, None)

    def distrust(self, names: Iterable[str], *, pool: str, by: str) -> None:
        """Do not use nodes on which pods did not start, until each node object's next update.

        A program or its spec may be the cause. So the pods of one namespace can close at most one
        node, or `1 / DISTRUSTED_PART` of the pool.

        Args:
            names: the nodes.
            pool: pool of the pods.
            by: namespace of the pods.
        """
        size = sum(value.pool == pool for value in self._values.values())
        known = sum(each.by == by for each in self._distrusted.values())
        left = max(0, max(1, size // DISTRUSTED_PART) - known)
        new = [name for name in names if name in self._views and name not in self._distrusted]
        for name in new[:left]:
            self._distrusted[name] = _Distrust(self._views[name].resource_version, by)
            self._values.pop(name, None)

    def check_announcements(self) -> list[NodeChange]:
        """Judge announced disruptions again. A maintenance window approaches without an event."""
        changes: list[NodeChange] = []
        for name in list(self._announced):
            schedulable, relevant = self._schedulable_state(name), self._job_relevant_state(name)
            self._announce_again(name)
            changes.append(self._changed(name, schedulable, relevant))
        return [change for change in changes if change != NodeChange()]

    def is_gone(self, name: str) -> bool:
        """Return whether nothing can run on the node any more."""
        return name not in self._views or name in self._out_of_service

    def may_be_pooled(self, name: str) -> bool:
        """Return whether pods on this node may matter to the scheduler."""
        return bool(name) and name not in self._unpooled

    def is_ready(self, name: str) -> bool:
        """Return whether the Ready condition is true: the API server hears from the kubelet."""
        view = self._views.get(name)
        return view is not None and view.ready

    def disruptions_of(self, names: Iterable[str]) -> tuple[NodeDisruption, ...]:
        """Return the certain and likely disruptions of these nodes, to which members react."""
        announced = [self._verdicts[name] for name in names if name in self._verdicts]
        return tuple(
            NodeDisruption(
                node=disruption.node,
                kind=disruption.kind,
                source=disruption.source,
                deadline=disruption.deadline,
                certain=disruption.confidence is Confidence.CERTAIN,
            )
            for disruption in announced
            if disruption.confidence >= Confidence.LIKELY
        )

    def disruptions(self) -> Iterable[Disruption]:
        """Return the announced disruptions, one for each node."""
        return self._verdicts.values()

    def in_pools(
        self,
        pools: Mapping[str, GpuPoolSpec],
        *,
        roles: PodRoles,
    ) -> Iterable[Node]:
        """Return the nodes that belong to a pool. O(nodes changed since the last call).

        Args:
            pools: specs by name. A node belongs to the first pool that matches.
            roles: returns the pods of a node by role. Call `recount` when roles change.
        """
        # Phase 1: drop values that the passing time may have changed.
        now = self._clock()
        for name in [name for name, at in self._recount_at.items() if at <= now]:
            del self._recount_at[name]
            self._values.pop(name, None)
        self.recount(self.volumes.take_changed())
        # Every node offers each driver that has a limit somewhere.
        if self._limited != self.volumes.csi.limited:
            self._limited = self.volumes.csi.limited
            self._values.clear()
        # Phase 2: compute the missing values. The events drop those that they change.
        for name, view in self._views.items():
            value = self._values.get(name)
            if value is None:
                if name in self._unpooled:
                    continue
                # A node without a matching pool is remembered, so that CPU nodes cost nothing.
                matching = _pools_of(view, pools)
                self.contested.pop(name, None)
                self._charged.pop(name, None)
                if len(matching) > 1:
                    self.contested[name] = matching
                if not matching:
                    self._unpooled.add(name)
                    continue
                pool = matching[0]
                pods = self._pods[name].values() if name in self._pods else ()
                role = roles(name, pods, ready=view.ready)
                value = self._value(view, pool=pool, spec=pools[pool], pods=pods, role=role)
                self._values[name] = value
                if role.charged:
                    self._charged[name] = role.charged
            yield value

    def charged(self) -> Iterable[tuple[Node, ChargedPod]]:
        """Return the charged pods of `roles`, as of the last call of `in_pools`."""
        for name, pods in self._charged.items():
            if name in self._values:
                for charged in pods:
                    leaving = charged.leaving and self._ends_soon(charged.pod)
                    hangs = charged.leaving and self.is_stuck(charged.pod)
                    hanging = f"{stuck_text(charged.pod)} on {name}" if hangs else ""
                    yield self._values[name], replace(charged, leaving=leaving, hanging=hanging)

    def _take(self, view: NodeView) -> None:
        name, before = view.name, self._views.get(view.name)
        # Labels decide about the pool. Other labels may mean another pool.
        if before is None or before.labels != view.labels:
            self._unpooled.discard(name)
        self._views[name] = view
        self.labels[name] = view.labels
        # A newer version ends the distrust: the kubelet has reported what it has.
        distrust = self._distrusted.get(name)
        if distrust is not None and distrust.version != view.resource_version:
            del self._distrusted[name]
        if any(taint.key == TAINT_PROMISED for taint in view.taints):
            self.promised.add(name)
        # The taint may still be there when the node has returned. Then its pods run (KEP-2268).
        if not view.ready and out_of_service(node_facts_of(view)):
            self._out_of_service.add(name)
        self._announce_again(name)

    def _announce_again(self, name: str) -> None:
        facts = node_facts_of(self._views[name], device_taints=self.devices.taints(name))
        self._announce(name, announced_disruptions(facts, now=self._clock()))

    def _value(
        self,
        view: NodeView,
        *,
        pool: str,
        spec: GpuPoolSpec,
        pods: Iterable[PodView],
        role: PodsByRole,
    ) -> Node:
        view, hidden = self._offering(view, spec=spec, pods=pods)
        units = GpuUnits.of(spec)

        def use(counted: Iterable[PodView]) -> Resources:
            here = (self.devices.counted(pod, node=view.name) for pod in counted)
            return _use(here, units=units, offered=view.allocatable)

        attached, volumes = self.volumes.attached(view.name), NOTHING
        if self._limited:
            limits = {attachable(driver): MAX_AMOUNT for driver in self._limited}
            limits |= {attachable(each.driver): each.limit for each in attached}
            view = msgspec.structs.replace(view, allocatable={**view.allocatable, **limits})
            counts = ((attachable(each.driver), len(each.volumes)) for each in attached)
            volumes = Resources(extended=tuple(counts))
        # When does time alone change the value? A pod becomes overdue, or the setup ends.
        leaving = [*role.terminating, *(each.pod for each in role.charged if each.leaving)]
        due = [setup_deadline(view, spec), *map(self._overdue_at, leaving)]
        due += [each.until for each in self._expected(view.name)]
        now = self._clock()
        last = now + self._overdue_seconds  # a later end is from before the clock was set back
        arriving = [each.pod for each in self._expected(view.name) if now < each.until <= last]
        self._recount_at.pop(view.name, None)
        if (at := min(filter(now.__lt__, due), default=inf)) < inf:
            self._recount_at[view.name] = at
        node = node_of(
            view,
            is_set_up=due[0] <= now,
            hides_gpus=hidden,
            pool=pool,
            spec=spec,
            used=use([*pods, *arriving]) + volumes,
            terminating=use(each for each in role.terminating if self._may_end(each)),
            overdue=use(
                each for each in role.terminating if self._may_end(each) and self.is_stuck(each)
            ),
            hanging=tuple(map(stuck_text, filter(self.is_stuck, leaving)))[:MAX_HANGING],
            distrusted=view.name in self._distrusted,
            closed=self._closed(view.name) or _unread(view, pods),
            standing=self._standing(view.name),
        )
        if attached:
            node = replace(node, attached=attached)
        return with_runtime_class(node, self.runtime_classes.of(spec))

    def _offering(
        self, view: NodeView, *, spec: GpuPoolSpec, pods: Iterable[PodView]
    ) -> tuple[NodeView, bool]:
        """Replace the amounts of GPUs and channels that exist as devices.

        Return the node, and whether it may have GPUs that cannot be seen.
        """
        hidden = False
        if spec.devices is not None:
            requests = {pod.uid: pod.requests.get(spec.gpu_resource, 0) for pod in pods}
            driver = spec.devices.driver
            count = self.devices.usable(view.name, driver=driver, requests=requests)
            amounts = {**view.allocatable, spec.gpu_resource: count}
            view = msgspec.structs.replace(view, allocatable=amounts)
            hidden = not self.devices.drivers(view.name)  # nobody watches slices, or none are there
        elif not view.allocatable.get(spec.gpu_resource):
            hidden = bool(self.devices.drivers(view.name))
        if channels := self.devices.channels(view.name, pods=[*pods]):
            amounts = {**view.allocatable, RESOURCE_CHANNEL: channels}
            view = msgspec.structs.replace(view, allocatable=amounts)
        return view, hidden

    def _expected(self, name: str) -> list[_Nominated]:
        """Return the pods that another scheduler is about to bind to a node.

        A pod with a label or an annotation of ours has a place already.
        """
        return [
            each
            for each in self._nominated.get(name, {}).values()
            if not (each.pod.labels or each.pod.annotations or each.pod.terminating)
        ]

    def _standing(self, name: str) -> NodeStanding:
        """Return the verdict on a node.

        A node that another scheduler reserves for a pod is used after equal nodes.
        """
        standing = self.standings.get(name, TRUSTED)
        if not self._nominated.get(name):
            return standing
        return replace(standing, suspicion=standing.suspicion + 1)

    def is_stuck(self, pod: PodView) -> bool:
        """Return whether a leaving pod should have been gone some time ago."""
        return self._overdue_at(pod) <= self._clock()

    def _ends_soon(self, pod: PodView) -> bool:
        """Return whether to wait for the end of a pod that is, or will be, deleted."""
        return self._may_end(pod) and not self.is_stuck(pod)

    def _may_end(self, pod: PodView) -> bool:
        """Return whether the grace period of a leaving pod ends soon or has ended.

        A grace period of years is legal. Its capacity is not available to any other pod meanwhile.
        """
        # An empty time means not deleted yet: the deletion is due now.
        end = seconds_of(pod.deletion_time) if pod.deletion_time else 0.0
        return end is not None and end <= self._clock() + LONGEST_GRACE_SECONDS

    def _overdue_at(self, pod: PodView) -> float:
        """Return the time at which a leaving pod counts as stuck.

        The API server may reject the deletion of a pod that is not deleted yet.
        """
        if pod.deletion_time:
            end = self._leaves_at.get(pod.uid, seconds_of(pod.deletion_time))
        else:
            end = self._expected_since.setdefault(pod.uid, self._clock())
        return inf if end is None else end + self._overdue_seconds

    def _closed(self, name: str) -> str:
        verdict = self._verdicts.get(name)
        if verdict is None or verdict.confidence < Confidence.SUSPECT:
            return ""
        return f"{verdict.kind} ({verdict.source})"

    def _announce(self, name: str, seen: Iterable[Disruption]) -> None:
        # Keep the earliest deadline that was seen: a later announcement of the same end does not
        # move it.
        announced = keep_earliest_deadlines(self._announced.pop(name, {}), seen)
        verdict = merged(announced.values())
        self._verdicts.pop(name, None)
        if verdict is not None:
            self._announced[name] = announced
            self._verdicts[name] = verdict

    def _schedulable_state(self, name: str) -> tuple[object, ...]:
        """Return the parts of a node that scheduling reads. Heartbeats change none of them."""
        view = self._views.get(name)
        if view is None:
            return ()
        return (
            view.ready,
            view.unschedulable,
            view.terminating,
            view.allocatable,
            view.labels,
            tuple(taint for taint in view.taints if taint.key != TAINT_PROMISED),
            name in self._distrusted,
            self._closed(name),
            view.unread,
        )

    def _job_relevant_state(self, name: str) -> tuple[object, ...]:
        """Return the parts of a node to which its jobs react."""
        labels = self.labels.get(name)
        return (self.is_gone(name), self.is_ready(name), self.disruptions_of((name,)), labels)

    def _changed(
        self, name: str, schedulable: tuple[object, ...], relevant: tuple[object, ...]
    ) -> NodeChange:
        changed = self._schedulable_state(name) != schedulable
        if changed:
            self._values.pop(name, None)
        pods = self._pods[name].values() if name in self._pods else ()
        jobs = (
            f"{pod.namespace}/{pod.labels[LABEL_JOB]}" for pod in pods if LABEL_JOB in pod.labels
        )
        return NodeChange(
            schedulable=changed,
            jobs=frozenset(jobs if self._job_relevant_state(name) != relevant else ()),
        )


def stuck_text(pod: PodView) -> str:
    """Return the name of a stuck pod, with the finalizers that hold it."""
    name = f"{pod.namespace}/{pod.name}"
    if not pod.terminating:
        return f"{name} (not deleted yet)"
    return f"{name} (finalizer {', '.join(pod.finalizers)})" if pod.finalizers else name


def _unread(view: NodeView, pods: Iterable[PodView]) -> str:
    """Return the object that cannot be read, for which a node takes no new pods, or ''."""
    if view.unread:
        return "the node cannot be read"
    pod = next((pod for pod in pods if pod.unread), None)
    return f"pod {pod.namespace}/{pod.name} cannot be read" if pod is not None else ""


def _pools_of(view: NodeView, pools: Mapping[str, GpuPoolSpec]) -> tuple[str, ...]:
    """Return the pools whose selector matches a node, in their order."""
    return tuple(
        name
        for name, spec in pools.items()
        if all(view.labels.get(key) == value for key, value in spec.node_selector.items())
    )


def _use(pods: Iterable[PodView], *, units: GpuUnits, offered: Container[str]) -> Resources:
    used = held = NOTHING
    requests: Mapping[str, int] | None = None
    for pod in pods:
        if pod.requests is not requests:  # equal pods share their requests
            requests = pod.requests
            held = held_of(requests, units=units, offered=offered)
        used += held
    return capped(used)
