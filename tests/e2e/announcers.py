"""Components that announce the end of a node, played in the order in which they act.

Each is a function that marks a node as the real component does, first mark first; `Marker` takes
all of them off again. The deadline is the component's own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from tests.kube import Json
from tools.cluster import Cluster, kubectl


class Marker:
    """Writes to one Node object; a context manager that undoes what it wrote."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.node = node
        self.now = time.time()
        self._cluster = cluster
        self._undo = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def cordon(self) -> None:
        """No new pods."""
        kubectl(self._cluster, "cordon", self.node)
        self._undo.callback(kubectl, self._cluster, "uncordon", self.node)

    def taint(self, key: str, *, value: str = "", effect: str = "NoSchedule") -> None:
        """Add a taint."""
        kubectl(self._cluster, "taint", "node", self.node, f"{key}={value}:{effect}")
        self._undo.callback(kubectl, self._cluster, "taint", "node", self.node, f"{key}-")

    def label(self, key: str, value: str) -> None:
        """Add a label."""
        kubectl(self._cluster, "label", "node", self.node, f"{key}={value}")
        self._undo.callback(kubectl, self._cluster, "label", "node", self.node, f"{key}-")

    def annotate(self, key: str, value: str) -> None:
        """Add an annotation."""
        kubectl(self._cluster, "annotate", "node", self.node, f"{key}={value}")
        self._undo.callback(kubectl, self._cluster, "annotate", "node", self.node, f"{key}-")

    def condition(self, kind: str, *, status: str, reason: str, message: str) -> None:
        """Add a condition, beside those of the kubelet."""
        at = stamp(self.now)
        times = {"lastTransitionTime": at, "lastHeartbeatTime": at}
        added = {"type": kind, "status": status, "reason": reason, "message": message, **times}
        self._patch_conditions(added)
        self._undo.callback(self._patch_conditions, {"type": kind, "$patch": "delete"})

    def _patch_conditions(self, entry: Json) -> None:
        patch = json.dumps({"status": {"conditions": [entry]}})
        options = ("--subresource=status", "--type=strategic", f"--patch={patch}")
        kubectl(self._cluster, "patch", "node", self.node, *options)


def stamp(seconds: float) -> str:
    """As the API writes times."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _gke(node: Marker) -> None:
    """A Spot VM's agent: a label from birth, a taint when the reclaim is announced."""
    node.label("cloud.google.com/gke-spot", "true")
    node.taint("cloud.google.com/impending-node-termination")


def _karpenter(node: Marker) -> None:
    """A taint; then its NodeClaim is deleted, which writes down when it ends at the latest."""
    node.label("karpenter.sh/capacity-type", "spot")
    node.taint("karpenter.sh/disrupted")
    node.annotate("karpenter.sh/nodeclaim-termination-timestamp", stamp(node.now + 120))


def _termination_handler(node: Marker) -> None:
    """AWS NTH for a spot interruption, with taintNode: labels, a taint, the cordon."""
    node.label("aws-node-termination-handler/action", "cordon-and-drain")
    node.label("aws-node-termination-handler/action-time", str(int(node.now)))
    node.label("aws-node-termination-handler/event-id", "spot-itn-0123456789abcdef")
    node.taint("aws-node-termination-handler/spot-itn", value="spot-itn-0123456789abcdef")
    node.cordon()


def _azure(node: Marker) -> None:
    """Scheduled Events as AKS' node problem detector shows them."""
    until = datetime.fromtimestamp(node.now + 30, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    node.condition(
        "PreemptScheduled",
        status="True",
        reason="PreemptScheduled",
        message=f"Preempt Scheduled: {until}",
    )


def _autoscaler(node: Marker) -> None:
    """A candidate first; then it is decided, and the node drained."""
    at = str(int(node.now))
    node.taint("DeletionCandidateOfClusterAutoscaler", value=at, effect="PreferNoSchedule")
    node.taint("ToBeDeletedByClusterAutoscaler", value=at)


def _problem_detector(node: Marker) -> None:
    message = "task kworker:1 blocked for more than 300 seconds."
    node.condition("KernelDeadlock", status="True", reason="DockerHung", message=message)


def _gpu_health(node: Marker) -> None:
    """EKS' node monitoring agent after an XID that only a replacement mends."""
    node.condition(
        "AcceleratedHardwareReady",
        status="False",
        reason="NvidiaXID79Error",
        message="GPU has fallen off the bus",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcer:
    """One component.

    Attributes:
        play: makes its marks.
        seconds: from the first of them until the node's pods are ended by force.
        kind: what a job's status calls it.
    """

    play: Callable[[Marker], Any]
    seconds: float
    kind: str


ANNOUNCERS = {
    "GKE": Announcer(play=_gke, seconds=15, kind="SpotReclaim"),
    "Karpenter": Announcer(play=_karpenter, seconds=120, kind="SpotReclaim"),
    "AWS node termination handler": Announcer(
        play=_termination_handler, seconds=120, kind="SpotReclaim"
    ),
    "Azure": Announcer(play=_azure, seconds=30, kind="SpotReclaim"),
    "cluster autoscaler": Announcer(play=_autoscaler, seconds=600, kind="ScaleDown"),
    "node problem detector": Announcer(play=_problem_detector, seconds=600, kind="Unhealthy"),
    "GPU health": Announcer(play=_gpu_health, seconds=600, kind="Hardware"),
}
