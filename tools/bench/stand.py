"""What every bench of the control plane stands on: a cluster of fake nodes, and the operator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.kube.client import KubeClient
from drumline.kube.credentials import from_kubeconfig
from tests.kube import Kube
from tests.operator_process import OperatorProcess, prepare
from tools.bench import load
from tools.bench.operator_figures import until_ready
from tools.bench.report import Row
from tools.cluster import Cluster, ClusterSpec, start, stop
from tools.cluster.ports import free_ports
from tools.cluster.process import find

Json = dict[str, Any]


def custom(kind: str, name: str, spec: Json) -> Json:
    """A cluster-wide object of ours."""
    api_version = "drumline.dev/v1alpha1"
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def priority_class(name: str, value: int) -> Json:
    """A PriorityClass."""
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return {**kind, "metadata": {"name": name}, "value": value}


@contextmanager
def furnished(bench: str, objects: list[Json], **spec_fields: Any) -> Generator[Cluster]:
    """A control plane for this bench, with these objects; it is removed at the end.

    Args:
        bench: names the cluster.
        objects: what is created.
        spec_fields: further fields of the `ClusterSpec`.
    """
    spec = ClusterSpec(name=f"drumline-{bench}-{os.getpid()}", nodes=0, kwok=True, **spec_fields)
    try:
        cluster = start(spec, say=print)
        _furnish(cluster, objects)
        yield cluster
    finally:
        stop(spec.name, say=print)


def _furnish(cluster: Cluster, objects: list[Json]) -> None:
    """Install what the chart brings, the bench's namespace and pool, and these objects."""
    kube = Kube(cluster.kubeconfig)
    prepare(kube)
    kube.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": load.NAMESPACE}})
    levels = [{"name": "rack", "nodeLabel": "drumline.dev/rack"}]
    pool = {"nodeSelector": {"type": "kwok"}, "topologyLevels": levels}
    for manifest in (custom("GpuPool", "bench", pool), *objects):
        kube.ensure(manifest)
    kube.close()


@dataclass(slots=True, kw_only=True)
class Stand:
    """The operator beside a control plane, a client and a watch of the bench's pods."""

    client: KubeClient
    bound: load.BoundPods
    operator: OperatorProcess
    servers: dict[str, int]
    """Process ids of the control plane, by role."""

    @property
    def processes(self) -> dict[str, int]:
        """Process ids by name, that of an operator which was started, too."""
        process = self.operator.process
        return self.servers if process is None else {**self.servers, "operator": process.pid}

    def cpu_seconds(self) -> dict[str, float]:
        """What each process has taken so far."""
        return {name: load.cpu_seconds(pid) for name, pid in self.processes.items()}

    async def start_operator(self) -> None:
        """Start it, and return when it leads and its caches are full."""
        self.operator.start()
        await until_ready(self.operator.http_port)


@asynccontextmanager
async def standing(
    cluster: Cluster, folder: Path, *, program: tuple[str, ...] = ("drumline",)
) -> AsyncGenerator[Stand]:
    """All of it but the operator, which `start_operator` starts; it is stopped at the end.

    Args:
        cluster: where.
        folder: takes the operator's log.
        program: the module that runs the operator, and its arguments.
    """
    (port,) = free_ports(1)
    operator = OperatorProcess(
        kubeconfig=cluster.kubeconfig,
        folder=folder,
        http_port=port,
        log_level="info",
        program=program,
    )
    servers = {process.role: process.pid for process in find(cluster.folder)}
    async with (
        KubeClient(from_kubeconfig(cluster.kubeconfig), user_agent="bench") as client,
        load.watching(client) as bound,
    ):
        stand = Stand(client=client, bound=bound, operator=operator, servers=servers)
        try:
            yield stand
        finally:
            if operator.process is not None:
                await asyncio.to_thread(operator.stop)


def cpu_rows(name: str, before: dict[str, float], after: dict[str, float]) -> list[Row]:
    """Processor seconds of every process that took any in between, or was started since."""
    took = {process: after[process] - before.get(process, 0.0) for process in sorted(after)}
    return [
        Row(name=f"  {name}: CPU of {process}", value=seconds, unit="s")
        for process, seconds in took.items()
        if seconds >= 0.005
    ]
