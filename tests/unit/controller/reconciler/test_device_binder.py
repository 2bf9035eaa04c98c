"""Whose claims are made: those of members, with as many GPUs as these have, and nobody else's."""

from __future__ import annotations

import re
import time
from typing import Any, cast

import msgspec
import pytest
from aiohttp import web

from drumline.controller.agents.client import AgentClient
from drumline.controller.agents.watch import AgentWatch
from drumline.controller.job_events import JobEvents
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.reconciler import device_binder
from drumline.controller.reconciler.device_binder import DeviceBinder
from drumline.controller.reconciler.reconciler import Reconciler
from drumline.controller.state.cluster import ClusterCache
from drumline.kube import device_codec
from drumline.kube.client import KubeClient
from drumline.kube.events import EventRecorder
from drumline.kube.retry import ONCE
from drumline.kube.views import PodPhase, PodView
from drumline.lifecycle.model.timestamps import timestamp
from drumline.telemetry.incidents import IncidentCounters
from drumline.telemetry.metrics import Metrics
from tests.builders import T0
from tests.unit.controller.app.fake_api import FakeApi
from tests.unit.controller.views import (
    assignment,
    job_view,
    node_view,
    pod_view,
    pool_view,
    queue_view,
)

DRIVER = "gpu.nvidia.com"
PODS = "/api/v1/namespaces/team/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims"


def unbound(index: int = 0, *, node: str = "node-0", gpus: int = 2, generation: int = 1) -> PodView:
    """A pod that waits for its devices."""
    return pod_view(
        index=index,
        generation=generation,
        gpus=gpus,
        node_name="",
        phase=PodPhase.PENDING,
        annotations={"drumline.dev/node": node},
    )


def four_devices() -> bytes:
    spec = {
        "driver": DRIVER,
        "nodeName": "node-0",
        "pool": {"name": "node-0"},
        "devices": [{"name": f"gpu-{number}"} for number in range(4)],
    }
    return msgspec.json.encode({"metadata": {"name": "s"}, "spec": spec})


async def writes_for(pod: PodView, *, nodes: int = 2) -> list[str]:
    """What the binder writes for this pod of a job with a member on node-0 and one on node-1."""
    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    state.nodes.on_node(None, node_view())
    pool = pool_view()
    pool.spec["devices"] = {"driver": DRIVER, "deviceClassName": DRIVER}
    state.on_pool(None, pool)
    state.nodes.devices.on_slice(None, device_codec.device_slice(four_devices()))
    state.on_job(None, job_view(nodes=nodes, status=assignment("node-0", "node-1")))
    state.on_pod(None, pod)
    api = FakeApi()
    api.put("pods", {"metadata": {"namespace": "team", "name": pod.name, "uid": pod.uid}})
    async with api.serving() as credentials, KubeClient(credentials) as client:
        await DeviceBinder(client=client, state=state, pods=lambda: [pod]).look()
    return api.requests


async def test_a_member_gets_its_devices_and_is_bound() -> None:
    assert await writes_for(unbound()) == [
        f"POST {CLAIMS}",
        f"PATCH {CLAIMS}/llama-0-g1-gpus/status",
        f"PATCH {PODS}/llama-0-g1/status",
        f"POST {PODS}/llama-0-g1/binding",
    ]


@pytest.mark.parametrize(
    "pod",
    [
        pytest.param(unbound(7), id="no member has its index"),
        pytest.param(unbound(generation=2), id="of another generation"),
        pytest.param(unbound(1), id="on the node of another member"),
        pytest.param(unbound(gpus=4), id="more GPUs than the member has"),
        pytest.param(
            msgspec.structs.replace(unbound(), name="by-hand"), id="of another name than members'"
        ),
    ],
)
async def test_a_pod_that_looks_like_a_member_gets_no_claim(pod: PodView) -> None:
    assert await writes_for(pod) == []


async def test_a_pod_of_a_job_that_gives_its_places_back_gets_no_claim() -> None:
    assert await writes_for(unbound(), nodes=1) == []


async def test_a_namespace_without_answers_is_asked_once_in_a_look() -> None:
    """Pods are bound one after the other, those of other namespaces too."""

    class Failing(FakeApi):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            if request.method != "GET":
                self.requests.append(request.path)
                return web.json_response({"code": 500}, status=500)
            return await super().handle(request)

    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    state.nodes.on_node(None, node_view())
    pool = pool_view()
    pool.spec["devices"] = {"driver": DRIVER, "deviceClassName": DRIVER}
    state.on_pool(None, pool)
    state.nodes.devices.on_slice(None, device_codec.device_slice(four_devices()))
    state.on_job(None, job_view(nodes=2, status=assignment("node-0", "node-0")))
    pods = [unbound(), unbound(1)]
    for pod in pods:
        state.on_pod(None, pod)
    api = Failing()
    async with api.serving() as credentials, KubeClient(credentials, retry=ONCE) as client:
        await DeviceBinder(client=client, state=state, pods=lambda: pods).look()
    assert api.requests == [CLAIMS]


async def test_a_pod_that_waits_for_devices_is_logged_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A gang may have 10,000 pods, and there is a look each second."""
    logged: list[str] = []

    class Recorder:
        def info(self, event: str, *, pod: str, **_: str | int) -> None:
            logged.append(f"{event} {pod}")

    monkeypatch.setattr(device_binder, "log", Recorder())
    state, pod = ClusterCache(nodes=NodeCache(clock=lambda: 0.0)), unbound()
    state.nodes.on_node(None, node_view())
    pool = pool_view()
    pool.spec["devices"] = {"driver": DRIVER, "deviceClassName": DRIVER}
    state.on_pool(None, pool)
    state.on_job(None, job_view(nodes=2, status=assignment("node-0", "node-1")))
    state.on_pod(None, pod)
    pods = [pod]
    async with FakeApi().serving() as credentials, KubeClient(credentials) as client:
        binder = DeviceBinder(client=client, state=state, pods=lambda: pods)
        for _ in range(3):
            await binder.look()
        assert logged == ["devices_awaited team/llama-0-g1"]
        pods.clear()
        await binder.look()
        pods.append(pod)
        await binder.look()
    assert len(logged) == 2


@pytest.mark.parametrize(
    ("devices", "refusal", "words"),
    [
        (0, None, "DevicesAwaited: 0 of 2 devices of node-0 are free"),
        (4, (403, "Forbidden", "exceeded quota: few"), "DevicesNotAllocated: .* exceeded quota"),
    ],
    ids=["too few devices", "quota of claims"],
)
async def test_a_start_says_why_its_pods_have_no_devices(
    devices: int, refusal: tuple[int, str, str] | None, words: str
) -> None:
    """No kubelet knows the pod yet, so nobody else reports it."""
    state, pod = ClusterCache(nodes=NodeCache(clock=lambda: 0.0)), unbound()
    state.nodes.on_node(None, node_view())
    pool = pool_view()
    pool.spec["devices"] = {"driver": DRIVER, "deviceClassName": DRIVER}
    state.on_pool(None, pool)
    state.on_queue(None, queue_view())
    if devices:
        state.nodes.devices.on_slice(None, device_codec.device_slice(four_devices()))
    status = assignment("node-0") | {"phase": "Starting", "generationTime": timestamp(T0)}
    state.on_job(None, job_view(nodes=1, template={"image": "any:1"}, status=status))
    state.on_pod(None, pod)
    api, metrics, nothing = FakeApi(), Metrics(), cast("Any", None)
    api.refusals = {"resourceclaims": refusal} if refusal else {}
    async with api.serving() as credentials, KubeClient(credentials) as client:
        binder = DeviceBinder(client=client, state=state, pods=lambda: [pod])
        async with AgentClient() as agents:
            reconciler = Reconciler(
                writer=nothing,
                executor=nothing,
                watch=AgentWatch(agents=agents, enqueue=lambda _: None, clock=time.monotonic),
                state=state,
                epoch=1,
                progress_seconds=30.0,
                metrics=metrics,
                ledger=IncidentCounters(metrics),
                job_events=JobEvents(EventRecorder(client, instance="test")),
                clock=lambda: T0 + 60,
                why_unbound=binder.why,
            )
            await binder.look()
            job = state.jobs.get("team/llama")
            assert job is not None
            message = reconciler.settled_status(job).message or ""
    assert re.search(words, message), message
