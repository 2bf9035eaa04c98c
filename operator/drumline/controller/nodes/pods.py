"""The pods of every job. A pod belongs to a job if its owner reference and its label agree."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace

from drumline.controller.nodes.pod_conversion import facts_of
from drumline.kube.views import PodView
from drumline.lifecycle.model.observed import PodFacts
from drumline_api.base import LABEL_JOB_UID


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedPod:
    """A pod that is charged to a queue without being a member."""

    pod: PodView
    leaving: bool
    hanging: str = ""
    """Name, node and holder of a pod that should have left. Empty if it is not stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsByRole:
    """The pods of a node that are not members of an admitted gang."""

    charged: tuple[ChargedPod, ...] = ()
    """Pods that a queue pays for beside the members."""
    terminating: tuple[PodView, ...] = ()
    """Pods that will leave and that no queue pays for.

    They have other owners, or the job still holds their places.
    """


class JobPods:
    """Pods by namespace and uid of their job, in all generations. For one event loop."""

    def __init__(self) -> None:
        self._pods: dict[tuple[str, str], dict[str, PodFacts]] = defaultdict(dict)
        self._stamps: dict[tuple[str, str], int] = {}
        """Number of the newest event of each job that has pods."""
        self._numbers = itertools.count(1)

    def on_pod(
        self, old: PodView | None, new: PodView | None, *, leaves_at: float | None = None
    ) -> None:
        """Process an event.

        Args:
            old: the pod before.
            new: the pod now. None if it was deleted.
            leaves_at: end of its grace period on our clock. None: that of the API server counts.
        """
        if old is not None:
            self._remove(old)
        if new is None or not is_owned(new):
            return
        facts = facts_of(new)
        if facts is not None:
            if leaves_at is not None:
                facts = replace(facts, terminates_by=leaves_at)
            self._pods[new.namespace, new.owner_uid][new.uid] = facts
            self._stamps[new.namespace, new.owner_uid] = next(self._numbers)

    def of(self, namespace: str, uid: str) -> Collection[PodFacts]:
        """Return the pods of a job. A pod of another namespace is never included."""
        return self._pods.get((namespace, uid), {}).values()

    def facts(self, pod: PodView) -> PodFacts | None:
        """Return the facts of this pod, or None if it does not belong to a job."""
        return self._pods.get((pod.namespace, pod.owner_uid), {}).get(pod.uid)

    def stamp(self, namespace: str, uid: str) -> int:
        """Return a number that changes with every event of the job's pods. 0 without pods."""
        return self._stamps.get((namespace, uid), 0)

    def _remove(self, pod: PodView) -> None:
        job = (pod.namespace, pod.owner_uid)
        pods = self._pods.get(job)
        if pods is None:
            return
        if pods.pop(pod.uid, None) is not None:
            self._stamps[job] = next(self._numbers)
        if not pods:
            del self._pods[job], self._stamps[job]


def is_owned(pod: PodView) -> bool:
    """Return whether the pod's label and its owner reference name the same job."""
    return LABEL_JOB_UID in pod.labels and pod.labels[LABEL_JOB_UID] == pod.owner_uid
