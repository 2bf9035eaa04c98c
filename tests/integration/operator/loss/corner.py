"""A corner of the cluster for one life after another: namespace, nodes, pool, queue, kubelets.

The corner plays the kubelets and the agents of its pods, at once and in the tests' own loop, so
that a life takes as long as its writes.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from drumline.lifecycle.manifests.children import job_token
from drumline.lifecycle.manifests.shared_objects import SHARED_NAME
from drumline_contract import FinalReport, Progress
from tests.integration.operator.conftest import a_claim, a_volume_for
from tests.integration.operator.loss.agents import AgentHost, Gang, fresh_address
from tests.integration.operator.loss.api import AsyncKube, Mirror, Version
from tests.kube import Json
from tests.operator_process import SIGNING_KEY
from tests.patience import HANG_SECONDS
from tools.cluster.kwok import fake_node

CHILDREN = ("secrets", "networkpolicies", "poddisruptionbudgets")
SHARED = ("networkpolicies", "poddisruptionbudgets")
PLURALS = ("trainingjobs", "pods", *CHILDREN)
GPUS = 8
_numbers = itertools.count()
_first_node = itertools.count(start=500_000 + os.getpid() % 10_000 * 1000, step=10)


@dataclass(kw_only=True)
class Corner:
    """See the module."""

    kube: AsyncKube
    host: AgentHost
    name: str
    nodes: list[str]
    mirror: Mirror
    tasks: asyncio.TaskGroup
    skip: Callable[[float], None] = lambda _: None
    """Lets so many seconds pass on the operators' clocks."""
    gangs: dict[str, Gang] = field(default_factory=dict[str, Gang])
    """By the job's uid."""
    saves: Progress | None = None
    """What the agents of new gangs answer notices with."""
    defaults: Json = field(default_factory=dict[str, Any])
    """Of every job's spec."""
    dead: set[str] = field(default_factory=set[str])
    """Nodes whose kubelets do nothing."""
    refusing: set[str] = field(default_factory=set[str])
    """Pods that their kubelets refuse."""
    refused: bool = False
    """A kubelet did: an operator that saw it avoids that node in lives to come."""
    lost: list[str] = field(default_factory=list[str])
    """Nodes that were removed."""
    tainted: list[str] = field(default_factory=list[str])
    _addresses: dict[str, str] = field(default_factory=dict[str, str])
    """Of pods, by uid."""
    _seen: set[tuple[str, bool]] = field(default_factory=set[tuple[str, bool]])

    # --- what there is ------------------------------------------------------------------------

    @property
    def quota(self) -> int:
        """GPUs of the queue."""
        return GPUS * (len(self.nodes) + len(self.lost))

    @property
    def jobs(self) -> dict[str, Json]:
        return self.mirror.objects["trainingjobs"]

    def status(self, job: str) -> Json:
        return self.jobs.get(job, {}).get("status", {})

    def pods(self, job: str) -> dict[str, Json]:
        return {
            name: pod
            for name, pod in self.mirror.objects["pods"].items()
            if pod["metadata"]["labels"].get("drumline.dev/job") == job
        }

    def gang(self, job: str) -> Gang:
        """The agents of a job that exists."""
        return self._gang(self.jobs[job]["metadata"]["uid"])

    async def until(self, job: str, **fields: Any) -> None:
        """Return once the job's status has these fields, in their Kubernetes names."""

        def holds() -> bool:
            status = self.status(job)
            return job in self.jobs and all(
                status.get(key) == value for key, value in fields.items()
            )

        await self.mirror.wait(holds, what=lambda: (fields, self.status(job), [*self.pods(job)]))

    async def until_running(self, job: str, generation: int) -> None:
        """All members of this generation are there and train."""

        def holds() -> bool:
            status = self.status(job)
            running = (status.get("phase"), status.get("generation")) == ("Running", generation)
            places = status.get("assignment", {})
            ready = status.get("ready", "").partition("/")
            return running and "joining" not in places and ready[0] == ready[2]

        await self.mirror.wait(
            holds, what=lambda: (f"{job} runs in {generation}", self.status(job), [*self.pods(job)])
        )

    # --- what users do ------------------------------------------------------------------------

    async def submit(self, name: str, **spec: Any) -> None:
        """Create a job: of one's own template, if no trainer is asked for."""
        body = {"queue": self.name, "gpuPool": self.name, "gpusPerNode": GPUS}
        body |= {**self.defaults, **spec}
        if "trainer" not in body:
            body.setdefault("template", {"image": "any:1", "command": ["true"]})
        metadata = {"name": name, "namespace": self.name}
        kind = {"apiVersion": "drumline.dev/v1alpha1", "kind": "TrainingJob"}
        await self.kube.create({**kind, "metadata": metadata, "spec": body}, "trainingjobs")
        await self.mirror.wait(lambda: name in self.jobs)

    async def change(self, job: str, **spec: Any) -> None:
        await self.kube.patch("trainingjobs", job, {"spec": spec}, self.name)

    async def delete(self, job: str) -> None:
        await self.kube.delete("trainingjobs", job, self.name)

    # --- what kubelets and nodes do -----------------------------------------------------------

    async def end(self, job: str, *, code: int = 0, only: str = "") -> None:
        """The main containers of the job's pods exit."""
        for name, pod in self.pods(job).items():
            if name.endswith(only) and pod["status"].get("phase") == "Running":
                await self._exit(pod, code=code)

    async def lose(self, pod: str) -> None:
        """A pod vanishes at once."""
        await self.kube.delete("pods", pod, self.name, grace=0)

    async def lose_node(self, node: str) -> None:
        """A node is removed; the garbage collector removes its pods when the operator gave them up.

        It waits 40 s for a node to come back, so an operator learns of the node first.
        """
        self.nodes.remove(node)
        self.lost.append(node)
        await self.kube.delete("nodes", node)

        def there() -> dict[str, Json]:
            pods = self.mirror.objects["pods"].items()
            return {name: pod for name, pod in pods if pod["spec"].get("nodeName") == node}

        await self.mirror.wait(
            lambda: all("deletionTimestamp" in pod["metadata"] for pod in there().values()),
            what=lambda: f"pods stay on {node}, which is gone: {[*there()]}",
        )
        for name in there():
            await self.lose(name)

    async def add_node(self, name: str) -> None:
        """A node that was lost comes back."""
        self.lost.remove(name)
        await self._create_node(int(name.rpartition("-")[2]))
        self.nodes.append(name)

    def revive(self) -> None:
        """All kubelets work again, and see what they missed."""
        self.dead.clear()
        for pod in self.mirror.objects["pods"].values():
            self._look(pod)

    async def taint(self, node: str, *keys: str) -> None:
        self.tainted.append(node)
        taints = [{"key": key, "value": "", "effect": "NoSchedule"} for key in keys]
        await self.kube.patch("nodes", node, {"spec": {"taints": taints}})

    def node_of(self, pod: str) -> str:
        return self.mirror.objects["pods"][pod]["spec"]["nodeName"]

    def on_version(self, version: Version) -> None:
        """The kubelets see a pod."""
        pod = version.value
        if version.plural != "pods" or not pod["spec"].get("nodeName"):
            return
        if version.deleted:
            self._background(self._forget(pod["metadata"]["uid"]))
        else:
            self._look(pod)

    def _look(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        going = "deletionTimestamp" in pod["metadata"]
        node = pod["spec"]["nodeName"]
        if (uid, going) in self._seen or node in self.dead or node in self.lost:
            return
        self._seen.add((uid, going))
        self._background(self._stop(pod) if going else self._run(pod))

    def _background(self, work: Any) -> None:
        self.tasks.create_task(work)

    async def _run(self, pod: Json) -> None:
        metadata = pod["metadata"]
        if metadata["name"] in self.refusing:
            self.refusing.discard(metadata["name"])
            self.refused = True
            words = {"phase": "Failed", "reason": "OutOfnvidia.com/gpu", "message": "no room"}
            await self._patch(metadata["name"], words)
            return
        address = fresh_address()
        labels = metadata["labels"]
        job_uid = labels["drumline.dev/job-uid"]
        self._addresses[metadata["uid"]] = address
        job = self.jobs.get(labels["drumline.dev/job"])
        if job is not None and "trainer" in job["spec"]:
            await self.host.start(
                self._gang(job_uid),
                address=address,
                token=job_token(SIGNING_KEY.encode(), job_uid),
                pod=metadata["name"],
                uid=metadata["uid"],
                index=int(labels["drumline.dev/index"]),
            )
        conditions = [
            {"type": kind, "status": "True"} for kind in ("Initialized", "Ready", "ContainersReady")
        ]
        state = {"running": {"startedAt": _now()}}
        containers = [_container(pod, state=state, ready=True)]
        addresses = {"podIP": address, "podIPs": [{"ip": address}]}
        await self._patch(
            metadata["name"],
            {
                "phase": "Running",
                "conditions": conditions,
                "containerStatuses": containers,
                **addresses,
            },
        )

    async def _exit(self, pod: Json, *, code: int) -> None:
        ended: Json = {"exitCode": code, "reason": "Error" if code else "Completed"}
        if code == 0:
            report = FinalReport(progress=Progress(step=100, total_steps=100))
            ended["message"] = report.encode().decode()
        state = {"terminated": {**ended, "finishedAt": _now()}}
        body = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [_container(pod, state=state, ready=False)],
        }
        await self._patch(pod["metadata"]["name"], body)

    async def _stop(self, pod: Json) -> None:
        metadata = pod["metadata"]
        await self._forget(metadata["uid"])
        await self.kube.delete("pods", metadata["name"], self.name, uid=metadata["uid"], grace=0)

    async def _forget(self, uid: str) -> None:
        address = self._addresses.pop(uid, None)
        if address is not None:
            await self.host.stop(address)

    async def _patch(self, pod: str, status: Json) -> None:
        await self.kube.patch("pods", pod, status, self.name, status=True)

    def _gang(self, uid: str) -> Gang:
        return self.gangs.setdefault(uid, Gang(uid=uid, saves=self.saves))

    # --- from one life to the next ------------------------------------------------------------

    async def _create_node(self, number: int) -> str:
        node = fake_node(number, gpus=GPUS, nodes_per_rack=2)
        node["metadata"]["labels"]["drumline.test/site"] = self.name
        del node["metadata"]["annotations"]["kwok.x-k8s.io/node"]
        await self.kube.create(node, "nodes")
        return node["metadata"]["name"]

    async def clear(self) -> None:
        """Delete all jobs and wait until nothing of theirs is left."""
        self.revive()
        for job in list(self.jobs):
            await self.delete(job)
        await self.empty(seconds=HANG_SECONDS)
        for plural in SHARED:
            await self.kube.delete(plural, SHARED_NAME, self.name)
        await self.mirror.wait(lambda: not any(self.mirror.objects.values()))

    async def empty(self, *, seconds: float | None = None) -> None:
        """Return once nothing is left of any job."""
        objects = self.mirror.objects
        await self.mirror.wait(
            lambda: not any(kept.keys() - {SHARED_NAME} for kept in objects.values()),
            seconds=seconds,
            what=lambda: {plural: [*kept] for plural, kept in objects.items()},
        )

    async def sweep(self) -> None:
        """Remove by force what no operator and no garbage collector removed."""
        for plural, objects in self.mirror.objects.items():
            for name in list(objects):
                await self.kube.delete(plural, name, self.name, grace=0)
        await self.empty(seconds=HANG_SECONDS)

    async def forget(self) -> None:
        """What the last life left in the tests' memory, and of its nodes."""
        for node in list(self.lost):
            await self.add_node(node)
        for node in self.tainted:
            await self.kube.patch("nodes", node, {"spec": {"taints": []}})
        self.tainted.clear()
        self.mirror.forget()
        self.gangs.clear()
        self._seen.clear()
        self.dead.clear()
        self.refusing.clear()
        self.refused = False
        self.saves = None

    async def open(self, *, nodes: int) -> None:
        first = next(_first_node)
        for number in range(first, first + nodes):
            self.nodes.append(await self._create_node(number))
        metadata = {"metadata": {"name": self.name}}
        await self.kube.create({"apiVersion": "v1", "kind": "Namespace", **metadata}, "namespaces")
        claim = a_claim("checkpoints", namespace=self.name)
        await self.kube.create(a_volume_for(claim), "persistentvolumes")
        await self.kube.create(claim, "persistentvolumeclaims")
        ours = {"apiVersion": "drumline.dev/v1alpha1", **metadata}
        levels = [{"name": "rack", "nodeLabel": "drumline.dev/rack"}]
        pool = {"nodeSelector": {"drumline.test/site": self.name}, "topologyLevels": levels}
        quota = {"quotas": [{"gpuPool": self.name, "nominalGpus": nodes * GPUS}]}
        await self.kube.create({**ours, "kind": "GpuPool", "spec": pool}, "gpupools")
        await self.kube.create({**ours, "kind": "TrainingQueue", "spec": quota}, "trainingqueues")

        ready = asyncio.Event()
        self._watching = self.tasks.create_task(self.mirror.run(ready.set))
        await ready.wait()

    async def close(self) -> None:
        self._watching.cancel()
        for job in list(self.jobs):
            await self.delete(job)
        for node in self.nodes:
            await self.kube.delete("nodes", node)
        await self.kube.delete("gpupools", self.name)
        await self.kube.delete("trainingqueues", self.name)


async def open_corner(
    kube: AsyncKube, host: AgentHost, tasks: asyncio.TaskGroup, *, nodes: int = 4
) -> Corner:
    """Nodes of 8 GPUs in racks of two, and a queue of all their GPUs; `close` it."""
    name = f"corner-{os.getpid()}-{next(_numbers)}"
    mirror = Mirror(kube=kube, namespace=name, plurals=PLURALS)
    corner = Corner(kube=kube, host=host, name=name, nodes=[], mirror=mirror, tasks=tasks)
    mirror.on_version = corner.on_version
    await corner.open(nodes=nodes)
    return corner


def _container(pod: Json, *, state: Json, ready: bool) -> Json:
    container = pod["spec"]["containers"][0]
    fixed = {"name": container["name"], "image": container["image"], "imageID": ""}
    return {**fixed, "restartCount": 0, "ready": ready, "state": state}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
