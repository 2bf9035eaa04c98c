"""Requests of running gangs are withdrawn before their new pods are bound."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from drumline.controller.informers.specs import SpecCache
from drumline.controller.informers.volumes import attachable
from drumline.controller.nodes.pods import JobPods
from drumline.controller.pools.demand_objects import ObjectSettings
from drumline.controller.pools.keeping_pods import KeepingPods
from drumline.controller.pools.node_requests import NodeRequests
from drumline.controller.pools.placeholders import Placeholders
from drumline.kube import errors
from drumline.kube.request import Request, Verb
from drumline.kube.views import ObjectView
from drumline.telemetry.metrics import Metrics
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.model import Gang, Snapshot
from drumline_scheduler.resources import Resources
from tests.property.tiny_autoscaler import NAMESPACE, TinyAutoscaler
from tests.unit.controller.views import pod_view
from tests.unit.scheduler.builders import admitted, cluster, gang, node, run

NOW = 1000.0
TURNS = 100
"""More turns of the event loop than it takes to write the placeholders."""
SETTINGS = ObjectSettings(namespace=NAMESPACE, image="any:1")


class Requests:
    """The node requests of a leader, with one pool and the pods of one job that runs."""

    def __init__(self, *, pods: int, autoscaler: TinyAutoscaler | None = None) -> None:
        self.autoscaler = autoscaler or TinyAutoscaler(most=9)
        pools, known = SpecCache(GpuPoolSpec), JobPods()
        spec = {"nodeSelector": {"pool": "h100"}, "autoscaling": self.autoscaler.spec}
        pools.on_object(
            None, ObjectView(namespace="", name="h100", uid="u", resource_version="1", spec=spec)
        )
        for index in range(pods):
            known.on_pod(None, pod_view(index=index))
        self.read = asyncio.Event()
        self.ours = NodeRequests(
            pools=pools,
            pods=known,
            modes={
                "Placeholders": Placeholders(
                    client=self.autoscaler, settings=SETTINGS, clock=lambda: NOW
                )
            },
            keeping=KeepingPods(client=self.autoscaler, settings=SETTINGS, clock=lambda: NOW),
            metrics=Metrics().autoscaling,
            clock=lambda: NOW,
            wake_scheduler=self.read.set,
            limited=lambda: ["disks"],
        )

    async def cycle(self, snapshot: Snapshot, *pending: Gang) -> None:
        """Decide, and ask for nodes."""
        offered = self.ours.offered(snapshot, now=NOW)
        decisions = run(offered, *pending, now=NOW)
        await self.ours.take(decisions, snapshot=offered, pending=pending, now=NOW)

    async def until_asked(self, snapshot: Snapshot, *pending: Gang) -> None:
        """Decide as a leader that has just begun, write the placeholders, and write no more."""
        running = asyncio.ensure_future(self.ours.run())
        await self.read.wait()
        await self.cycle(snapshot, *pending)
        for _ in range(TURNS):
            await asyncio.sleep(0)
        running.cancel()


async def test_what_a_noticed_gang_asked_for_is_gone_when_it_moves() -> None:
    """Its other pods are there all the time, so they do not say that the new one is bound."""
    llama = replace(gang("llama", nodes=2, gpus=8), key="team/llama", uid="job-1")
    held = admitted(llama, "n0", "n1", displaced=frozenset({1}), must_move=True)
    nodes = [node("n0", gpus=8), node("n1", gpus=8, unschedulable=True)]
    requests = Requests(pods=2)
    await requests.until_asked(cluster(*nodes, levels=(), running=[held]))
    assert len(requests.autoscaler.asked_for("job-1")) == 1
    await requests.cycle(cluster(*nodes, node("n2", gpus=8), levels=(), running=[held]))
    assert requests.autoscaler.pods == {}


async def test_a_demand_without_an_answer_stops_no_other_one() -> None:
    class Failing(TinyAutoscaler):
        async def send(self, request: Request) -> bytes:
            if request.verb is Verb.CREATE and b'"first"' in (request.body or b""):
                raise errors.from_answer(code=500, body=b"{}", retry_after=None)
            return await super().send(request)

    waiting = [
        replace(gang(name, nodes=1, gpus=8), key=f"team/{name}", uid=name)
        for name in ("first", "second", "third")
    ]
    requests = Requests(pods=0, autoscaler=Failing(most=9))
    await requests.until_asked(cluster(node("n0", gpus=4), levels=()), *waiting)
    asked = [len(requests.autoscaler.asked_for(each.uid)) for each in waiting]
    assert asked == [0, 1, 1]


async def test_a_gang_whose_pods_have_volumes_of_their_own_asks_for_nodes() -> None:
    """Their CSI driver has a limit somewhere, and that of a new node is not known."""
    plain = replace(gang("llama", nodes=2, gpus=8), key="team/llama", uid="job-1")
    volumes = Resources(extended=((attachable("disks"), 1),))
    waiting, requests = replace(plain, per_pod=plain.per_pod + volumes), Requests(pods=0)
    await requests.until_asked(cluster(node("n0", gpus=4), levels=()), waiting)
    assert len(requests.autoscaler.asked_for("job-1")) == 2
