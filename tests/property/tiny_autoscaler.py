"""A tiny cluster's pool that may grow: its placeholders, and the API of who creates them."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any

from drumline.controller.pools.demand_objects import ObjectSettings
from drumline.controller.pools.keeping_pods import KeepingPods
from drumline.controller.pools.node_requests import NodeRequests
from drumline.controller.pools.placeholders import Placeholders
from drumline.controller.state.cluster import ClusterCache
from drumline.kube import errors
from drumline.kube.client import KubeClient
from drumline.kube.request import Request, Verb
from drumline.telemetry.metrics import Metrics
from drumline_scheduler.decisions import Decisions
from drumline_scheduler.model import Gang, Snapshot
from tests.property.tiny_cluster import NOW, Json
from tools.cluster.kwok import fake_node

NAMESPACE = "drumline-system"
QUIET_TURNS = 20
"""Turns of the event loop without a request after which whoever asks for nodes is done."""
METRICS = Metrics()


@dataclass
class TinyAutoscaler(KubeClient):
    """What is asked for in a pool of at most `most` nodes, and what came of it."""

    most: int
    zones: tuple[str, ...] = ()
    nodes: int = 3
    """How many are there."""
    pods: dict[str, Json] = field(default_factory=dict[str, Any])
    """The placeholders, by name."""
    status: Json = field(default_factory=dict[str, Any])
    """Of the pool."""
    answered: int = 0

    @property
    def spec(self) -> Json:
        """What the pool says of it."""
        labels = {"kubernetes.io/os": "linux"}
        amounts = fake_node(0, gpus=8, nodes_per_rack=3)["status"]["allocatable"]
        spec: Json = {"mode": "Placeholders", "maxNodes": self.most}
        spec["node"] = {"allocatable": amounts, "labels": labels}
        return {**spec, "zones": list(self.zones)} if self.zones else spec

    def asked_for(self, uid: str) -> list[Json]:
        """The placeholders of a job."""
        return self._selected(f"drumline.dev/node-demand={uid}")

    def _selected(self, selector: str) -> list[Json]:
        """Those whose labels a selector of one key selects: `key`, `key=value`, `key in (a,b)`."""
        key, *rest = re.split(r" in |=", selector, maxsplit=1)
        values = rest[0].strip("()").split(",") if rest else None
        labelled = [(pod, pod["metadata"]["labels"].get(key)) for pod in self.pods.values()]
        return [pod for pod, value in labelled if value and (values is None or value in values)]

    async def send(self, request: Request) -> bytes:
        self.answered += 1
        await asyncio.sleep(0)
        return json.dumps(self._answer(request)).encode()

    def _answer(self, request: Request) -> Json:
        name = request.path.split("/pods/")[-1].removesuffix("/status")
        if "/pods/" in request.path and name not in self.pods:
            raise errors.from_answer(code=404, body=b"{}", retry_after=None)
        match request.verb, request.resource.plural:
            case Verb.LIST, "pods":
                items = self._selected(request.query["labelSelector"])
                return {"metadata": {}, "items": items}
            case Verb.LIST, _:
                return {"metadata": {}, "items": []}
            case Verb.GET, "gpupools":
                return {"metadata": {"name": "pool", "uid": "u", "resourceVersion": "1"}}
            case Verb.CREATE, "pods":
                return self._create(json.loads(request.body or b""))
            case Verb.PATCH, "pods":
                self.pods[name]["status"] = json.loads(request.body or b"")["status"]
                return self.pods[name]
            case Verb.DELETE, "pods":
                return self.pods.pop(name)
            case Verb.DELETE_COLLECTION, "pods":
                for pod in self._selected(request.query["labelSelector"]):
                    del self.pods[pod["metadata"]["name"]]
                return {}
            case _:
                raise errors.from_answer(code=404, body=b"{}", retry_after=None)

    def _create(self, pod: Json) -> Json:
        name = pod["metadata"]["name"]
        pod["metadata"] |= {"uid": name, "resourceVersion": "1"}
        self.pods[name] = {**pod, "status": {"phase": "Pending"}}
        return self.pods[name]


class TinyNodeRequests:
    """The operator's node requests, of a leader that has just begun."""

    def __init__(self, autoscaler: TinyAutoscaler, *, state: ClusterCache) -> None:
        self._autoscaler = autoscaler
        self._read = asyncio.Event()
        settings = ObjectSettings(namespace=NAMESPACE, image="operator:1")
        placeholders = Placeholders(client=autoscaler, settings=settings, clock=lambda: NOW)
        self._requests = NodeRequests(
            pools=state.pools,
            pods=state.pods,
            modes={"Placeholders": placeholders},
            keeping=KeepingPods(client=autoscaler, settings=settings, clock=lambda: NOW),
            metrics=METRICS.autoscaling,
            clock=lambda: NOW,
            wake_scheduler=self._read.set,
        )
        self._requests.restore({"pool": autoscaler.status})

    async def offered(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot of the cycle, once what is asked for was read."""
        self._running = asyncio.ensure_future(self._requests.run())
        await self._read.wait()
        return self._requests.offered(snapshot, now=NOW)

    async def take(
        self, decisions: Decisions, *, snapshot: Snapshot, pending: tuple[Gang, ...]
    ) -> None:
        """Ask for what was decided, and end."""
        await self._requests.take(decisions, snapshot=snapshot, pending=pending, now=NOW)
        answered, quiet = self._autoscaler.answered, 0
        while quiet < QUIET_TURNS:
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._autoscaler.answered == answered else 0
            answered = self._autoscaler.answered
        self._autoscaler.status = self._requests.status_fields("pool")
        self._running.cancel()
