"""Apply -> all pods bound, on a real API server with fake nodes, beside the raw limit.

Raw: the same pods created already bound by a plain client, in the same run, with the operator
stopped. The peers' figures are from other days on a machine of this size: see docs/benchmarks.md.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from drumline.kube.client import KubeClient
from drumline.kube.credentials import from_kubeconfig
from tests.bench import load
from tests.bench.report import Row, publish
from tests.cluster import Cluster, ClusterSpec, create_fake_nodes, start, stop
from tests.cluster.control_plane import free_ports
from tests.cluster.process import find
from tests.kube import Kube
from tests.operator_process import OperatorProcess, prepare

NODES = 500
GPUS = 8
ROUNDS = 3
PEERS_BIG = "Volcano 4.3 s, KAI 8.2 s, Kueue 4.4 s, native gang 3.7 s"
PEERS_MANY = "Volcano 3.8 s, KAI 8.6 s, Kueue 7.8 s, native gang 3.9 s"
PEERS_CPU = "kube-scheduler 4 ms, native 6, Volcano 7, Kueue 9, KAI 16"
PEER_SOURCE = "peers: measured on another day on 2 cores, 24 GiB (docs/benchmarks.md)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All rounds of one shape."""

    raw: list[load.Timed]
    ours: list[load.Timed]


def main() -> None:
    """Start a cluster, measure, publish, remove it."""
    spec = ClusterSpec(name=f"drumline-bench-{os.getpid()}", nodes=0, kwok=True)
    try:
        cluster = start(spec, say=print)
        print(f"creating {NODES} fake nodes", flush=True)
        create_fake_nodes(cluster.kubeconfig, count=NODES, gpus=GPUS)
        _prepare(cluster)
        with tempfile.TemporaryDirectory() as folder:
            publish("control_plane", asyncio.run(_measure(cluster, Path(folder))))
    finally:
        stop(spec.name, say=print)


def _prepare(cluster: Cluster) -> None:
    kube = Kube(cluster.kubeconfig)
    prepare(kube)
    kube.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": load.NAMESPACE}})
    api_version = "drumline.dev/v1alpha1"
    pool = {"nodeSelector": {"type": "kwok"}}
    pool["topologyLevels"] = [{"name": "rack", "nodeLabel": "drumline.dev/rack"}]  # type: ignore[assignment]
    metadata = {"name": "bench"}
    kube.ensure({"apiVersion": api_version, "kind": "GpuPool", "metadata": metadata, "spec": pool})
    queue = {"quotas": [{"gpuPool": "bench", "nominalGpus": NODES * GPUS}]}
    kube.ensure(
        {"apiVersion": api_version, "kind": "TrainingQueue", "metadata": metadata, "spec": queue}
    )
    kube.close()


async def _measure(cluster: Cluster, folder: Path) -> list[Row]:
    (port,) = free_ports(1)
    operator = OperatorProcess(
        kubeconfig=cluster.kubeconfig, folder=folder, http_port=port, log_level="info"
    )
    servers = {p.role: p.pid for p in find(cluster.folder) if p.role == "kube-apiserver"}
    nodes = [f"fake-{index}" for index in range(NODES)]
    big = [load.job_manifest("big", nodes=NODES, gpus=GPUS)]
    many = [load.job_manifest(f"gang-{i}", nodes=4, gpus=GPUS) for i in range(NODES // 4)]
    raw: list[load.Timed] = []
    async with (
        KubeClient(from_kubeconfig(cluster.kubeconfig), user_agent="bench") as client,
        load.watching(client) as bound,
    ):
        for round_number in range(ROUNDS):
            print(f"raw limit, round {round_number + 1} of {ROUNDS}", flush=True)
            pods = load.bound_pods("big", nodes, gpus=GPUS)
            await load.settled(servers["kube-apiserver"])
            raw.append(
                await load.timed(
                    bound,
                    lambda pods=pods: load.submit_pods(client, pods),
                    pods=NODES,
                    processes=servers,
                )
            )
            await load.clear(client, bound)
        operator.start()
        try:
            await _until_ready(port)
            assert operator.process is not None
            processes = {**servers, "operator": operator.process.pid}
            ours: dict[str, list[load.Timed]] = {"big": [], "many": []}
            writes_before = _writes(port)
            for shape, manifests in (("big", big), ("many", many)):
                for round_number in range(ROUNDS):
                    await load.settled(servers["kube-apiserver"])
                    print(f"{shape}, round {round_number + 1} of {ROUNDS}", flush=True)
                    ours[shape].append(
                        await load.timed(
                            bound,
                            lambda manifests=manifests: load.submit_jobs(client, manifests),
                            pods=NODES,
                            processes=processes,
                        )
                    )
                    await asyncio.sleep(2)  # let Running be written before all is deleted
                    if (shape, round_number) == ("many", ROUNDS - 1):
                        written = _writes(port) - writes_before
                    await load.clear(client, bound)
            resident = load.resident_mebibytes(operator.process.pid)
        finally:
            operator.stop()
    jobs = ROUNDS * (1 + len(many))
    per_job = (written - 2 * ROUNDS * NODES) / jobs
    return _rows(raw, ours, resident=resident, writes_besides_pods=per_job)


def _rows(
    raw: list[load.Timed],
    ours: dict[str, list[load.Timed]],
    *,
    resident: float,
    writes_besides_pods: float,
) -> list[Row]:
    limit = median(run.seconds for run in raw)
    big = median(run.seconds for run in ours["big"])
    many = median(run.seconds for run in ours["many"])

    def cpu(runs: list[load.Timed], process: str) -> float:
        return median(run.cpu_seconds[process] for run in runs)

    server_ms = cpu(ours["big"], "kube-apiserver") / NODES * 1000
    source = f"median of {ROUNDS} rounds in this run; {PEER_SOURCE}"
    shape = f"{NODES} pods x {GPUS} GPUs on {NODES} nodes"
    return [
        Row(name=f"raw limit: {shape}, bound by a plain client", value=limit, unit="s"),
        Row(
            name=f"one gang of {shape}, apply to all bound",
            value=big,
            unit="s",
            peer=PEERS_BIG,
            source=source,
        ),
        Row(
            name="the same as a multiple of raw",
            value=big / limit,
            unit="x",
            goal="<= 2",
            met=big / limit <= 2,
            source=source,
        ),
        Row(
            name=f"{NODES // 4} gangs of 4 x {GPUS} GPUs, apply to all bound",
            value=many,
            unit="s",
            goal="<= 3 s",
            met=many <= 3,
            peer=PEERS_MANY,
            source=source,
        ),
        Row(
            name="API server CPU per pod, one gang",
            value=server_ms,
            unit="ms",
            goal="<= 3 ms",
            met=server_ms <= 3,
            peer=PEERS_CPU,
            source=source,
        ),
        Row(
            name="API server CPU per pod, raw",
            value=cpu(raw, "kube-apiserver") / NODES * 1000,
            unit="ms",
        ),
        Row(
            name="API server CPU per pod, gangs of 4",
            value=cpu(ours["many"], "kube-apiserver") / NODES * 1000,
            unit="ms",
        ),
        Row(
            name="writes per job besides its pods (until Running)",
            value=writes_besides_pods,
            unit="writes",
            goal="<= 6",
            met=writes_besides_pods <= 6,
        ),
        Row(name="operator CPU, one gang", value=cpu(ours["big"], "operator"), unit="s"),
        Row(name="operator CPU, gangs of 4", value=cpu(ours["many"], "operator"), unit="s"),
        Row(name="operator resident memory at the end", value=resident, unit="MiB"),
    ]


async def _until_ready(port: int) -> None:
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(_leads, port):  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.2)


def _leads(port: int) -> bool:
    try:
        return "drumline_leader 1.0" in _metrics(port) and _ready(port)
    except OSError:
        return False


def _ready(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
        return answer.status == 200


def _metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def _writes(port: int) -> int:
    """Writes about jobs: no lease, no deletes, no status of queues and pools."""
    total = 0.0
    for line in _metrics(port).splitlines():
        if not line.startswith("drumline_api_requests_total{"):
            continue
        labels, _, value = line.rpartition(" ")
        writing = 'verb="create"' in labels or 'verb="patch"' in labels
        others = ("leases", "trainingqueues", "gpupools")
        if writing and not any(f'resource="{other}"' in labels for other in others):
            total += float(value)
    return int(total)


if __name__ == "__main__":
    main()
