"""A Deployment that scales, on the real kube-scheduler, against a gang that preempts.

Both want what a job of low priority leaves. Every round the low gang holds all 32 GPUs of four
nodes, pods of the Deployment wait for some, and a gang of high priority comes: its places are free
from when the low one's pods are gone until its own are bound, a moment in which kube-scheduler has
pods at hand that fit.

What the API server's watch shows of all pods, in its order, is the truth about overcommitment: at
no moment do the pods bound to a node ask for more than it has.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random

from tests.integration.operator.conftest import HIGH, Site
from tests.kube import Json, path_of, phase_is
from tests.patience import HANG_SECONDS
from tools.cluster.rest import TOO_MANY_REQUESTS, Api, ApiStatusError

NODE_GPUS = 8
SIZES = (1, 2, 4, 8)
"""GPUs of a pod of a Deployment."""


@dataclass(kw_only=True)
class BoundPods:
    """GPUs on each node of a site by what the watch has shown so far, and their excesses."""

    nodes: frozenset[str]
    excesses: list[str] = field(default_factory=list[str])
    refused: list[str] = field(default_factory=list[str])
    """Pods that a kubelet refused; KWOK refuses none, so this is about real ones."""
    is_complete: bool = False
    """Whether the watch was followed to its end."""
    _held: dict[str, tuple[str, int, str]] = field(default_factory=dict[str, tuple[str, int, str]])
    """By uid: node, GPUs and name."""

    def begin(self, pods: list[Json]) -> None:
        """All pods that there are."""
        self._held.clear()
        for pod in pods:
            self.take("ADDED", pod)

    def take(self, kind: str, pod: Json) -> None:
        """One event of the watch."""
        uid = pod["metadata"]["uid"]
        node = pod["spec"].get("nodeName", "")
        status = pod.get("status", {})
        if status.get("reason", "").startswith("OutOf"):
            self.refused.append(pod["metadata"]["name"])
        if kind == "DELETED" or status.get("phase") in ("Succeeded", "Failed"):
            self._held.pop(uid, None)
        elif node in self.nodes:
            self._held[uid] = (node, _gpus(pod), pod["metadata"]["name"])
        totals = Counter[str]()
        for place, gpus, _ in self._held.values():
            totals[place] += gpus
        for place, gpus in totals.items():
            if gpus > NODE_GPUS:
                names = sorted(name for at, _, name in self._held.values() if at == place)
                self.excesses.append(f"{place}: {gpus} GPUs of {', '.join(names)}")


def _gpus(pod: Json) -> int:
    limits = (each.get("resources", {}).get("limits", {}) for each in pod["spec"]["containers"])
    return sum(int(each.get("nvidia.com/gpu", 0)) for each in limits)


@contextmanager
def watching(site: Site) -> Generator[BoundPods]:
    """Follow all pods of the site's namespace, from now on until the end."""
    bound = BoundPods(nodes=frozenset(site.nodes))
    over, api, path = threading.Event(), Api(site.kube.kubeconfig), path_of("pods", site.namespace)

    def begin() -> str:
        with Api(site.kube.kubeconfig) as other:
            answer = other.request("GET", path)
        bound.begin(answer["items"])
        return answer["metadata"]["resourceVersion"]

    version = begin()

    def follow() -> None:
        nonlocal version
        while not over.is_set():
            query = f"watch=true&resourceVersion={version}&timeoutSeconds=5"
            try:
                for line in api.stream(f"{path}?{query}&allowWatchBookmarks=true"):
                    event = json.loads(line)
                    if event["type"] == "ERROR":  # the version is gone: list again
                        version = begin()
                        break
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        bound.take(event["type"], event["object"])
            except ApiStatusError as error:
                if error.code != TOO_MANY_REQUESTS:
                    raise
                over.wait(1)  # it asks to be asked again
        bound.is_complete = True

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield bound
    finally:
        over.set()
        thread.join(60)
        api.close()
    assert bound.is_complete


@dataclass(frozen=True, kw_only=True)
class Race:
    """The rounds of one site; the operator runs, and knows the site's pool.

    Attributes:
        site: where.
        random: decides sizes and the order of what happens.
        patience: how long a gang may take before it has lost.
    """

    site: Site
    random: Random
    patience: float = HANG_SECONDS

    def prepare(self) -> None:
        """A Deployment without replicas for each size of pod."""
        for gpus in SIZES:
            self.site.kube.create_text(
                "deployments", self.site.namespace, json.dumps(self._deployment(gpus)).encode()
            )

    def round(self, number: int) -> bool:
        """One race; whether the gang won it. A gang that was preempted would wait longer each time,
        so each round has one of its own."""
        site, low, high = self.site, f"low-{number}", f"high-{number}"
        site.submit(low, nodes=4, gpusPerNode=NODE_GPUS)
        site.wait(low, phase_is("Running"))
        gpus, nodes = self.random.choice(SIZES), self.random.randint(1, 4)
        steps = [
            lambda: self._scale(gpus, 16 // gpus),
            lambda: site.submit(high, nodes=nodes, gpusPerNode=NODE_GPUS, priorityClassName=HIGH),
            lambda: self._scale(gpus, 32 // gpus + 4),
        ]
        if self.random.random() < 0.5:  # the Deployment scales beside, not before
            steps = [steps[1], steps[0], steps[2]]
        for step in steps:
            step()
        won = True
        try:
            site.wait(high, phase_is("Running"), seconds=self.patience)
        except TimeoutError:
            won = False
        ends = [
            lambda: site.kube.delete("trainingjobs", low, site.namespace),
            lambda: site.kube.delete("trainingjobs", high, site.namespace),
            lambda: self._scale(gpus, 0),
        ]
        self.random.shuffle(ends)
        for end in ends:
            end()
        return won

    def _scale(self, gpus: int, replicas: int) -> None:
        body = {"spec": {"replicas": replicas}}
        self.site.kube.patch("deployments", f"serve-{gpus}", body, self.site.namespace)

    def _deployment(self, gpus: int) -> Json:
        labels = {"app": f"serve-{gpus}", "drumline.dev/queue": self.site.queue}
        container = {
            "name": "server",
            "image": "any:1",
            "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
        }
        spec = {
            "nodeSelector": {"drumline.test/site": self.site.namespace},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
        }
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"serve-{gpus}", "namespace": self.site.namespace},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"app": f"serve-{gpus}"}},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }


def untainted(nodes: list[Json]) -> bool:
    """Whether no node has the taint of a promise."""
    return not any(tainted(node) for node in nodes)


def tainted(node: Json) -> bool:
    """Whether a node has the taint of a promise."""
    taints = node["spec"].get("taints") or ()
    return any(taint["key"] == "drumline.dev/promised" for taint in taints)


def end_deployments(site: Site) -> None:
    """Their pods would be made again while the site is cleared."""
    for gpus in SIZES:
        with suppress(ApiStatusError):
            site.kube.delete("deployments", f"serve-{gpus}", site.namespace)
