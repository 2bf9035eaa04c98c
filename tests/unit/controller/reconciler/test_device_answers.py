"""Devices are allocated once, and before the pod is bound, though the answer to a write is lost."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.reconciler.device_binder import DeviceBinder
from drumline.controller.state.cluster import ClusterCache
from drumline.kube import device_codec
from drumline.kube.client import KubeClient
from drumline.kube.errors import NotFound, Unreachable
from drumline.kube.request import Request, Verb
from drumline.kube.views import PodPhase
from tests.unit.controller.views import assignment, job_view, node_view, pod_view, pool_view

DRIVER = "gpu.nvidia.com"
POD = pod_view(
    node_name="", phase=PodPhase.PENDING, gpus=1, annotations={"drumline.dev/node": "node-0"}
)
OWNER = {"uid": POD.uid, "controller": True}
Json = dict[str, Any]


@dataclass
class LostAnswer(KubeClient):
    """Loses the answer to the first allocation."""

    is_done: bool
    """Whether the allocation was carried out."""
    claim: Json = field(default_factory=dict[str, Any])
    lost: bool = False
    asked: list[str] = field(default_factory=list[str])
    allocated: list[Json] = field(default_factory=list[Json])

    async def send(self, request: Request) -> bytes:
        kind = request.path.removeprefix("/").replace(POD.name, "POD").rpartition("team/")[2]
        self.asked.append(f"{request.verb} {kind}")
        if not kind.startswith("resourceclaims"):
            return b'{"metadata": {"uid": "u", "resourceVersion": "1"}}'
        body = json.loads(request.body or b"{}")
        if request.verb is Verb.CREATE:
            metadata = {**body["metadata"], "uid": "claim", "resourceVersion": "1"}
            self.claim = {**body, "metadata": metadata}
        elif request.verb is not Verb.GET:
            self._allocate(next(each["value"] for each in body if each["path"] == "/status"))
        elif not self.claim:
            raise NotFound(code=404, reason="NotFound", message="no claim")
        return json.dumps(self.claim).encode()

    def _allocate(self, status: Json) -> None:
        results = status["allocation"]["devices"]["results"]
        self.allocated.append(results)
        if self.lost or self.is_done:
            self.claim["status"] = status
        if not self.lost:
            self.lost = True
            error = Unreachable("the connection broke")
            error.maybe_done = True
            raise error


def a_node_with_two_devices() -> ClusterCache:
    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    state.nodes.on_node(None, node_view())
    pool = pool_view()
    pool.spec["devices"] = {"driver": DRIVER, "deviceClassName": DRIVER}
    state.on_pool(None, pool)
    devices = [{"name": "gpu-0"}, {"name": "gpu-1"}]
    spec = {"driver": DRIVER, "nodeName": "node-0", "pool": {"name": "node-0"}, "devices": devices}
    published = json.dumps({"metadata": {"name": "s"}, "spec": spec}).encode()
    state.nodes.devices.on_slice(None, device_codec.device_slice(published))
    state.on_job(None, job_view(nodes=1, gpusPerNode=1, status=assignment("node-0")))
    return state


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_pod_is_bound_once_the_api_server_says_that_its_claim_has_devices(
    is_done: bool,
) -> None:
    api, state = LostAnswer(is_done), a_node_with_two_devices()
    binder = DeviceBinder(client=api, state=state, pods=lambda: [POD])
    await binder.look()
    assert not any("binding" in each for each in api.asked)
    api.asked.clear()
    await binder.look()
    assert api.claim["status"]["allocation"]
    assert api.allocated == [api.allocated[0]] * (1 if is_done else 2)
    assert [each.partition(" ")[2] for each in api.asked] == [
        "resourceclaims/POD-gpus",
        *([] if is_done else ["resourceclaims/POD-gpus/status"]),
        "pods/POD/status",
        "pods/POD/binding",
    ]


async def test_devices_of_a_claim_that_is_gone_are_free_again() -> None:
    api, state = LostAnswer(is_done=False), a_node_with_two_devices()
    binder = DeviceBinder(client=api, state=state, pods=lambda: [POD])
    await binder.look()
    assert len(state.nodes.devices.free("node-0", driver=DRIVER)) == 1
    api.claim = {}
    await binder.look()
    assert len(state.nodes.devices.free("node-0", driver=DRIVER)) == 2
