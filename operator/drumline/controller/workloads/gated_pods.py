"""Pods that our scheduling gate holds until their queue has room, by themselves or as a group.

A pod waits with the gate `drumline.dev/queue` and the label of the same name. Pods with the same
label `drumline.dev/pod-group` are let go together, once as many as `pod-group-size` says are there.

What was let go is written on the pods (`ANNOTATION_ADMITTED`, a policy of the chart keeps others
from it), so that it stays charged until a kubelet has it, and a new leader goes on. Of a group all
pods are marked before the first one loses its gate. So after a crash either all are marked, and let
go, or none has lost its gate, and the marks mean nothing:

    gated, gated, gated         waits
    marked, gated, gated        waits: the marks are void
    marked, marked, marked      let go
    released, marked, marked    let go
    released, released, gated   the last one came later: it waits alone

Each pod pays by its own label, and all of a group name one queue, also those that come later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import msgspec

from drumline.controller.workloads.conversion import ForeignWorkload, PlacesFound, Shape, places_in
from drumline.kube.events import Regarding
from drumline.kube.kinds import PODS
from drumline.kube.views import PodView
from drumline.lifecycle.model.timestamps import parse_timestamp
from drumline_api.base import (
    ANNOTATION_ADMITTED,
    ANNOTATION_POD_GROUP_SIZE,
    LABEL_JOB_UID,
    LABEL_POD_GROUP,
    LABEL_QUEUE,
    LABEL_WORKLOAD,
)

POD = ""
"""The name of the shape of which a single pod's places are."""


class GroupKey(NamedTuple):
    """A group of pods, or a pod by itself."""

    namespace: str
    group: str
    uid: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodGroup:
    """Pods that are let go together, at one moment.

    Attributes:
        workload: those that wait; None: none does, or the group is not complete.
        pods: of the workload, by the name of the shape.
        admitted: marked pods that are not bound, with their places.
        unreleased: marked pods that still have the gate although all of the group are marked.
        waits_for: what keeps a group from being looked at; empty: nothing.
        queue: of the first pod that waits, or else that was let go.
        regarding: the pod that hears what becomes of them.
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
    """The pods of every group that has one that waits or is not bound. For one event loop."""

    def __init__(self) -> None:
        self._pods: dict[GroupKey, dict[str, PodView]] = defaultdict(dict)
        self._groups: dict[GroupKey, PodGroup] = {}
        """What was made of those that have not changed since."""

    def on_pod(self, old: PodView | None, new: PodView | None) -> bool:
        """Take in an event; returns whether it concerns a group."""
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

    def groups(self) -> Iterable[PodGroup]:
        """All groups. O(groups), and O(pods) of those that changed."""
        for key, pods in self._pods.items():
            known = self._groups.get(key)
            if known is None:
                known = self._groups[key] = _group(key, sorted(pods.values(), key=_by_name))
            yield known


def _key(pod: PodView) -> GroupKey | None:
    """The group in which a pod counts; None: it neither waits nor was let go."""
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
    gated = [pod for pod in pods if pod.gate is not None]
    marked = {pod.uid: places for pod in pods if (places := _places(pod)) is not None}
    released = [pod for pod in pods if pod.gate is None and pod.uid in marked]
    missing = "" if key.uid else _missing(pods)
    are_let_go = bool(released) or (not missing and all(pod.uid in marked for pod in gated))
    waiting = [pod for pod in gated if not (are_let_go and pod.uid in marked)]
    named = f"{key.namespace}/pods/{key.group}"
    of_shapes = _by_shape(waiting)
    waits_for = _disagreement(pods) if released else missing
    if any(pod.gate is not None and not pod.gate.is_last for pod in waiting):
        waits_for = "another scheduling gate holds it"
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
            if are_let_go and pod.uid in marked and not pod.node_name
        ),
        unreleased=tuple(pod for pod in gated if are_let_go and pod.uid in marked),
        waits_for=waits_for if waiting else "",
    )


def _missing(pods: Sequence[PodView]) -> str:
    """What a group lacks; '' for a group that is complete."""
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
    """Pods by what makes them equal for the scheduler; named by the first pod of each shape."""
    ordered = sorted(pods, key=lambda pod: (_likeness(pod), pod.name))
    alike = [tuple(same) for _, same in groupby(ordered, key=_likeness)]
    return {same[0].name: same for same in alike}


def _likeness(pod: PodView) -> bytes:
    placement = pod.gate and pod.gate.placement
    likeness = (pod.requests, placement, pod.deadline_seconds)
    return msgspec.json.encode(likeness, order="deterministic")


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
    )


def _places(pod: PodView) -> PlacesFound | None:
    text = pod.annotations.get(ANNOTATION_ADMITTED)
    return None if text is None else places_in(text).get(POD)


def _created_at(pod: PodView) -> float:
    return parse_timestamp(pod.gate.created_time) if pod.gate and pod.gate.created_time else 0.0


def _by_name(pod: PodView) -> str:
    return pod.name
