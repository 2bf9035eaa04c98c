"""A double of cluster-autoscaler that adds fake nodes to one node group and takes them away.

It plays what was measured of version 1.36 (docs/autoscaling.md), on a clock that only a test moves:

* A scan every 10 s. A pod without a node whose PodScheduled is False, reason Unschedulable, counts,
  whoever is to schedule it, and only once it was seen for 30 s.
* Such pods are packed into what is free, then new nodes are added as far as the group's limit: it
  is not all-or-nothing. Each pod gets the event that says what came of it.
* A ProvisioningRequest is granted as a whole or not at all, at once: its pods need not age. For ten
  minutes after that its pods are imagined on the nodes, whatever is bound there; a refused one is
  tried again after a minute.
* A CapacityBuffer's pods are imagined beside those that are bound: it fills up again.
* A node that no pod needs, those that ask for nodes counted, is a candidate (a soft taint) until
  somebody needs it; unneeded for long enough it gets `ToBeDeleted` and is gone 5 s later. Nodes
  annotated with scale-down-disabled stay.

Shapes are played by GPUs alone. Real pods of other owners cannot be moved, so their nodes stay.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from tests.kube import Json, Kube
from tools.cluster.kwok import fake_node
from tools.cluster.rest import ApiStatusError

NAMESPACE = "drumline-system"
GPU = "nvidia.com/gpu"
HOSTNAME = "kubernetes.io/hostname"
NODE_GPUS = 8
SCAN_SECONDS: Final = 10.0
AGE_SECONDS: Final = 30.0
DRAIN_SECONDS: Final = 5.0
BOOKED_SECONDS: Final = 600.0
RETRY_SECONDS: Final = 60.0
CANDIDATE: Final = "DeletionCandidateOfClusterAutoscaler"
TO_BE_DELETED: Final = "ToBeDeletedByClusterAutoscaler"
DISABLED: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"


@dataclass(kw_only=True)
class ClusterAutoscaler:
    """One node group of nodes with these labels, `most` of them at most."""

    kube: Kube
    labels: dict[str, str]
    first: int
    """Number of the first node."""
    most: int
    unneeded_seconds: float = 30.0
    """--scale-down-unneeded-time."""
    after_add_seconds: float = 10.0
    """--scale-down-delay-after-add."""
    startup_taint: str | None = None
    """Key of a taint that nodes have until `set_up`."""
    serves_requests: bool = False
    """Whether ProvisioningRequests and CapacityBuffers are looked at."""
    now: float = 0.0
    nodes: list[str] = field(default_factory=list[str])
    """Those that are there."""
    added: int = 0
    """How many it has ordered so far."""
    _next_scan: float = SCAN_SECONDS
    _added_at: float = 0.0
    _seen: dict[str, float] = field(default_factory=dict[str, float])
    """When a pod was first seen, by uid."""
    _unneeded: dict[str, float] = field(default_factory=dict[str, float])
    _booked: dict[str, float] = field(default_factory=dict[str, float])
    """When a request was granted, by uid."""
    _refused: dict[str, float] = field(default_factory=dict[str, float])
    """When a request is looked at again."""
    _drained: dict[str, float] = field(default_factory=dict[str, float])
    """When a node goes that is to be deleted."""

    def placeholders(self) -> list[Json]:
        """The pods that it would add nodes for."""
        return [pod for pod in self.kube.list("pods", NAMESPACE) if self._asks(pod)]

    def wait_placeholders(self, count: int) -> list[Json]:
        """Until so many pods ask for nodes."""
        return self.kube.wait_all(
            "pods", NAMESPACE, lambda pods: sum(map(self._asks, pods)) == count
        )

    def advance(self, seconds: float) -> int:
        """Let time pass, with all that happens in it; returns how many nodes were added."""
        end, before = self.now + seconds, self.added
        while (moment := min([self._next_scan, *self._drained.values()])) <= end:
            self.now = moment
            for name in [name for name, gone_at in self._drained.items() if gone_at <= moment]:
                self._remove(name)
            if self._next_scan <= moment:
                self._next_scan += SCAN_SECONDS
                self._scan()
        self.now = end
        return self.added - before

    def set_up(self) -> None:
        """What new nodes have to wait for is there."""
        self.startup_taint = None
        for name in self.nodes:
            self._taint(name, None)

    def announce(self, name: str) -> None:
        """The cloud says that it takes a spot machine back in two minutes."""
        self._taint(name, "aws-node-termination-handler/spot-itn")

    def lose(self, name: str) -> None:
        """The cloud takes a spot machine back."""
        self._remove(name)

    def _scan(self) -> None:
        pods = self.kube.list("pods")
        pending = sorted(filter(self._asks, pods), key=gpus_of, reverse=True)
        for pod in pending:
            self._seen.setdefault(pod["metadata"]["uid"], self.now)
        free = {name: NODE_GPUS for name in self.nodes if name not in self._drained}
        needed: set[str] = set()
        for pod in pods:
            name = pod["spec"].get("nodeName")
            if name in free and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                free[name] -= gpus_of(pod)
                needed.add(name)
        if self.serves_requests:
            self._serve(free=free, needed=needed)
        self._scale_up(pending, free=free, needed=needed)
        self._scale_down(needed)

    def _scale_up(self, pending: Iterable[Json], *, free: dict[str, int], needed: set[str]) -> None:
        for pod in pending:
            gpus, host = gpus_of(pod), pod["spec"]["nodeSelector"].get(HOSTNAME)
            fits = next(
                (name for name, room in free.items() if room >= gpus and host in (None, name)),
                None,
            )
            is_old = self.now - self._seen[pod["metadata"]["uid"]] >= AGE_SECONDS
            if fits is None and is_old and host is None:  # no new node has that name
                fits = self._add() if len(self.nodes) < self.most else None
                self._say(pod, helped=fits is not None)
            if fits is not None:
                free[fits] = free.get(fits, NODE_GPUS) - gpus
                needed.add(fits)

    def _serve(self, *, free: dict[str, int], needed: set[str]) -> None:
        """Look at the requests, those that are booked first, and at the buffers."""
        requests = self.kube.list("provisioningrequests", NAMESPACE)
        for request in sorted(
            requests, key=lambda each: each["metadata"]["uid"] not in self._booked
        ):
            pods = self._pods_of(request)
            if all(pods):  # else of another node group
                self._decide(request, pods, free=free, needed=needed)
        for buffer in self.kube.list("capacitybuffers", NAMESPACE):
            spec = buffer["spec"]
            pods = [self._gpus_of_template(spec["podTemplateRef"]["name"])] * spec["replicas"]
            if all(pods):
                missing = min(_missing(pods, free), self.most - len(self.nodes))
                free.update({self._add(): NODE_GPUS for _ in range(missing)})
                _imagine(pods, free=free, needed=needed)

    def _decide(
        self, request: Json, pods: list[int], *, free: dict[str, int], needed: set[str]
    ) -> None:
        uid, missing = request["metadata"]["uid"], _missing(pods, free)
        granted_at = self._booked.get(uid)
        if granted_at is not None and self.now >= granted_at + BOOKED_SECONDS:
            self.tell(request, "BookingExpired", "True", "CapacityReservationTimeExpired")
        elif granted_at is not None:
            _imagine(pods, free=free, needed=needed)
        elif len(self.nodes) + missing <= self.most:
            free.update({self._add(): NODE_GPUS for _ in range(missing)})
            self._booked[uid] = self.now
            _imagine(pods, free=free, needed=needed)
            self.tell(request, "Provisioned", "True", "CapacityIsProvisioned")
        elif self.now >= self._refused.get(uid, 0.0):
            self._refused[uid] = self.now + RETRY_SECONDS
            self.tell(request, "Provisioned", "False", "CapacityIsNotFound")

    def _pods_of(self, request: Json) -> list[int]:
        """What each of its pods requests; 0 where they are for another node group."""
        return [
            gpus
            for each in request["spec"]["podSets"]
            for gpus in [self._gpus_of_template(each["podTemplateRef"]["name"])] * each["count"]
        ]

    def _gpus_of_template(self, name: str) -> int:
        """What a pod of it requests; 0 where it is for other nodes, or withdrawn meanwhile."""
        spec: Json = {"nodeSelector": {}}
        with _unless_gone():
            spec = self.kube.get("podtemplates", name, NAMESPACE)["template"]["spec"]
        return gpus_of({"spec": spec}) if spec["nodeSelector"].items() >= self.labels.items() else 0

    def tell(self, request: Json, kind: str, status: str, reason: str) -> None:
        """Write a condition of a request."""
        condition = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": "as the double says",
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        name, body = request["metadata"]["name"], {"conditions": [condition]}
        with _unless_gone():
            self.kube.patch_status("provisioningrequests", name, body, NAMESPACE)

    def _scale_down(self, needed: set[str]) -> None:
        for name in self.nodes:
            if name in needed:
                if self._unneeded.pop(name, None) is not None:
                    self._taint(name, None)
            elif name not in self._unneeded:
                self._unneeded[name] = self.now
                self._taint(name, CANDIDATE)
            elif (
                name not in self._drained
                and self.now >= self._unneeded[name] + self.unneeded_seconds
                and self.now >= self._added_at + self.after_add_seconds
                and not self._is_held(name)
            ):
                self._drained[name] = self.now + DRAIN_SECONDS
                self._taint(name, TO_BE_DELETED)

    def _add(self) -> str:
        node = fake_node(self.first + self.added, gpus=NODE_GPUS, nodes_per_rack=100)
        node["metadata"]["labels"].update(self.labels)
        if self.startup_taint is not None:
            node["spec"] = {"taints": [_startup_taint(self.startup_taint)]}
        self.kube.create(node)
        self.added += 1
        self._added_at = self.now
        self.nodes.append(node["metadata"]["name"])
        return node["metadata"]["name"]

    def _remove(self, name: str) -> None:
        self.kube.delete("nodes", name)
        self.nodes.remove(name)
        self._unneeded.pop(name, None)
        self._drained.pop(name, None)

    def _taint(self, name: str, key: str | None) -> None:
        effect = "PreferNoSchedule" if key == CANDIDATE else "NoSchedule"
        taints = [] if key is None else [{"key": key, "value": "1", "effect": effect}]
        taints += [] if self.startup_taint is None else [_startup_taint(self.startup_taint)]
        self.kube.patch("nodes", name, {"spec": {"taints": taints}})

    def _is_held(self, name: str) -> bool:
        annotations: Json = self.kube.get("nodes", name)["metadata"].get("annotations") or {}
        return annotations.get(DISABLED) == "true"

    def _say(self, pod: Json, *, helped: bool) -> None:
        metadata = pod["metadata"]
        reason = "TriggeredScaleUp" if helped else "NotTriggerScaleUp"
        text = (
            f"pod triggered scale-up: [{{group {len(self.nodes)} (max: {self.most})}}]"
            if helped
            else "pod didn't trigger scale-up: 1 max node group size reached"
        )
        self.kube.ensure(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {
                    "name": f"{metadata['name']}.{reason.lower()}",
                    "namespace": metadata["namespace"],
                },
                "involvedObject": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "namespace": metadata["namespace"],
                    "uid": metadata["uid"],
                },
                "type": "Normal",
                "reason": reason,
                "message": text,
            }
        )

    def _asks(self, pod: Json) -> bool:
        conditions: list[Json] = pod["status"].get("conditions") or []
        return (
            "nodeName" not in pod["spec"]
            and "nominatedNodeName" not in pod["status"]
            and pod["spec"].get("nodeSelector", {}).items() >= self.labels.items()
            and any(
                (each["type"], each["status"], each.get("reason"))
                == ("PodScheduled", "False", "Unschedulable")
                for each in conditions
            )
        )


def _startup_taint(key: str) -> Json:
    return {"key": key, "effect": "NoSchedule"}


@contextmanager
def _unless_gone() -> Generator[None]:
    """The operator withdraws its objects while a scan looks at them."""
    try:
        yield
    except ApiStatusError as error:
        if error.code != 404:
            raise


def _missing(pods: list[int], free: dict[str, int]) -> int:
    """How many nodes these pods need beside what is free; each takes most of one."""
    return max(0, len(pods) - sum(room >= max(pods) for room in free.values()))


def _imagine(pods: list[int], *, free: dict[str, int], needed: set[str]) -> None:
    """Take the places of pods that are not there."""
    for gpus in pods:
        name = next((name for name, room in free.items() if room >= gpus), None)
        if name is not None:
            free[name] -= gpus
            needed.add(name)


def gpus_of(pod: Json) -> int:
    """What its containers request together."""
    return sum(
        int(container.get("resources", {}).get("requests", {}).get(GPU, "0"))
        for container in pod["spec"]["containers"]
    )
