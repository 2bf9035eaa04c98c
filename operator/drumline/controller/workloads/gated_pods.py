"""Pods that our scheduling gate holds until their queue has quota, single or as a group.

A pod waits with the gate `drumline.dev/queue` and the label of the same name. Pods with the same
label `drumline.dev/pod-group` are admitted together, once as many as `pod-group-size` exist.

The admission is written on the pods (`ANNOTATION_ADMITTED`, which a policy of the chart protects).
So a pod stays charged until a kubelet accepts it, and a new leader can continue. All pods of a
group are marked before the first one loses its gate. So after a crash either all are marked, and
are released, or none has lost its gate, and the marks have no effect:

    gated, gated, gated         waits
    marked, gated, gated        waits: the marks are void
    marked, marked, marked      admitted
    released, marked, marked    admitted
    released, released, gated   the last one came later: it waits alone

Each pod is charged by its own label. All pods of a group name one queue, also those that come
later.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from drumline.controller.nodes.conversion import seconds_of
from drumline.controller.workloads.conversion import ForeignWorkload, PlacesFound, Shape, places_in
from drumline.kube.events import Regarding
from drumline.kube.kinds import PODS
from drumline.kube.views import PodView
from drumline.kube.workloads import MAX_PODS, MAX_SHAPES
from drumline_api.base import (
    ANNOTATION_ADMITTED,
    ANNOTATION_POD_GROUP_SIZE,
    LABEL_JOB_UID,
    LABEL_POD_GROUP,
    LABEL_QUEUE,
    LABEL_WORKLOAD,
)

_encode = msgspec.json.Encoder(order="deterministic").encode
POD = ""
"""Name of the shape for a single pod's places."""


class GroupKey(NamedTuple):
    """A group of pods, or a single pod."""

    namespace: str
    group: str
    uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Pods that are admitted together.

    Attributes:
        workload: the waiting pods. None if no pod waits, or the group is not complete.
        pods: pods of the workload, by name of the shape.
        admitted: marked pods that are not bound, with their places.
        unreleased: marked pods that still have the gate although all of the group are marked.
        waits_for: why the group cannot be considered yet, or ''.
        queue: queue of the first waiting pod, otherwise of the first admitted one.
        regarding: the pod that gets the events.
    """

    key: str
    uid: str
    queue: str
    regarding: Regarding
    workload: ForeignWorkload | None = None
    pods: dict[str, tuple[PodView, ...]] = field(default_factory=dict[str, tuple[PodView, ...]])
    admitted: tuple[tuple[PodView, PlacesFound], ...] = ()
    unreleased: tuple[PodView, ...] = ()
    waits_for: str = ""


class GatedPods:
    """The pods of every group with a waiting or unbound pod. For one event loop."""

    def __init__(self) -> None:
        self._pods: dict[GroupKey, dict[str, PodView]] = defaultdict(dict)
        self._groups: dict[GroupKey, PodGroup] = {}
        """Cached groups that have not changed."""

    def on_pod(self, old: PodView | None, new: PodView | None) -> bool:
        """Process an event and return whether it concerns a group."""
        keys = {_key(pod) for pod in (old, new) if pod is not None} - {None}
        for key in filter(None, keys):
            self._groups.pop(key, None)
        before = old and _key(old)
        if old is not None and before is not None:
            self._pods[before].pop(old.uid, None)
            if not self._pods[before]:
                del self._pods[before]
        after = new and _key(new)
        if new is not None and after is not None:
            self._pods[after][new.uid] = new
        return bool(keys)

    def single(self, pod: PodView) -> PodGroup | None:
        """Return the value of a pod that waits alone; None for pods of groups and other pods."""
        key = _key(pod)
        if key is None or not key.uid:
            return None
        return self._known(key, self._pods[key])

    def groups(self) -> Iterable[PodGroup]:
        """Yield all groups. O(groups), and O(pods) of those that changed."""
        for key, pods in self._pods.items():
            yield self._known(key, pods)

    def _known(self, key: GroupKey, pods: Mapping[str, PodView]) -> PodGroup:
        known = self._groups.get(key)
        if known is None:
            known = self._groups[key] = _group(key, sorted(pods.values(), key=_by_name))
        return known


def _key(pod: PodView) -> GroupKey | None:
    """Return the group of a pod, or None if it neither waits nor was admitted."""
    if LABEL_QUEUE not in pod.labels or {LABEL_JOB_UID, LABEL_WORKLOAD} & pod.labels.keys():
        return None  # a workload's pods wait with it
    if pod.terminating or pod.finished:
        return None
    if group := pod.labels.get(LABEL_POD_GROUP):
        return GroupKey(pod.namespace, group)
    if pod.gate is None and (pod.node_name or ANNOTATION_ADMITTED not in pod.annotations):
        return None
    return GroupKey(pod.namespace, pod.name, pod.uid)


def _group(key: GroupKey, pods: Sequence[PodView]) -> PodGroup:
    # Phase 1: sort the pods into gated, marked and released ones.
    gated = [pod for pod in pods if pod.gate is not None]
    marked = {pod.uid: places for pod in pods if (places := _places(pod)) is not None}
    released = [pod for pod in pods if pod.gate is None and pod.uid in marked]
    # Phase 2: is the group admitted? One released pod proves that all were marked before.
    missing = "" if key.uid else _missing(pods)
    is_admitted = bool(released) or (not missing and all(pod.uid in marked for pod in gated))
    waiting = [pod for pod in gated if not (is_admitted and pod.uid in marked)]
    named = f"{key.namespace}/pods/{key.group}"
    # Phase 3: the waiting pods by shape, and the reason if they cannot be considered.
    of_shapes = _by_shape(waiting) if len(waiting) <= MAX_PODS else {}
    waits_for = _disagreement(pods) if released else missing
    if any(pod.gate is not None and not pod.gate.is_last for pod in waiting):
        waits_for = "another scheduling gate holds it"
    if len(waiting) > MAX_PODS:
        waits_for = f"{len(waiting)} pods, but at most {MAX_PODS} are supported"
    if len(of_shapes) > MAX_SHAPES:
        waits_for = f"{len(of_shapes)} kinds of pods, but at most {MAX_SHAPES} are supported"
    # Phase 4: the value.
    first = (waiting or pods)[0]
    queue = first.labels[LABEL_QUEUE]
    regarding = Regarding(resource=PODS, namespace=first.namespace, name=first.name, uid=first.uid)
    return PodGroup(
        key=named,
        uid=key.uid or f"{key.namespace}/{key.group}",
        queue=queue,
        regarding=regarding,
        workload=ForeignWorkload(
            key=named,
            uid=key.uid or f"{key.namespace}/{key.group}",
            queue=queue,
            queued_at=max(map(_created_at, waiting)),
            shapes=tuple(_shape(name, same) for name, same in of_shapes.items()),
            regarding=regarding,
            has_started=bool(released),
        )
        if waiting and not waits_for
        else None,
        pods=of_shapes,
        admitted=tuple(
            (pod, marked[pod.uid])
            for pod in pods
            if is_admitted and pod.uid in marked and not pod.node_name
        ),
        unreleased=tuple(pod for pod in gated if is_admitted and pod.uid in marked),
        waits_for=waits_for if waiting else "",
    )


def _missing(pods: Sequence[PodView]) -> str:
    """Return what a group lacks, or '' if it is complete."""
    if disagreement := _disagreement(pods):
        return disagreement
    sizes = {pod.annotations.get(ANNOTATION_POD_GROUP_SIZE, "") for pod in pods}
    if len(sizes) > 1 or not all(size.isdecimal() for size in sizes):
        return f"its pods must have the same annotation {ANNOTATION_POD_GROUP_SIZE}"
    (size,) = sizes
    here = len(pods)
    return "" if here >= int(size[:9]) else f"{here} of {int(size[:9])} pods exist"


def _disagreement(pods: Sequence[PodView]) -> str:
    queues = sorted({pod.labels[LABEL_QUEUE] for pod in pods})
    return f"its pods name several queues: {', '.join(queues[:3])}" if queues[1:] else ""


def _by_shape(pods: Iterable[PodView]) -> dict[str, tuple[PodView, ...]]:
    """Group equal pods, which are in the order of their names. Each shape has its first pod's name.

    Equal pods share one placement, so each is encoded once. It may have 64 KiB, and a group 10,000
    pods, so only a digest of it is kept.
    """
    digests: dict[int, bytes] = {}
    by_shape: dict[tuple[bytes, bytes], list[PodView]] = {}
    for pod in pods:
        placement = pod.gate and pod.gate.placement
        digest = digests.get(id(placement))
        if digest is None:
            digest = digests[id(placement)] = hashlib.sha256(_encode(placement)).digest()
        key = _encode((pod.requests, pod.deadline_seconds)), digest
        by_shape.setdefault(key, []).append(pod)
    return {same[0].name: tuple(same) for same in by_shape.values()}


def _shape(name: str, pods: Sequence[PodView]) -> Shape:
    gate = pods[0].gate
    if gate is None:
        raise ValueError(f"{name} has no gate")
    return Shape(
        name=name,
        pods=len(pods),
        requests=pods[0].requests,
        placement=gate.placement,
        deadline_seconds=pods[0].deadline_seconds,
        claims=tuple(name for name in pods[0].claims if all(name in pod.claims for pod in pods)),
    )


def _places(pod: PodView) -> PlacesFound | None:
    text = pod.annotations.get(ANNOTATION_ADMITTED)
    return None if text is None else places_in(text).get(POD)


def _created_at(pod: PodView) -> float:
    return (pod.gate and seconds_of(pod.gate.created_time)) or 0.0


def _by_name(pod: PodView) -> str:
    return pod.name
