"""A large cluster at rest: what the operator takes, and how soon a new one decides.

5,000 nodes of 8 GPUs carry 4,999 gangs of 8 pods with one GPU each: 8 GPUs are free. Jobs up
to 10,000 wait for 16 to 64. All of this is written into etcd (`full_cluster`), and nothing but
the API server and the operator runs. Once the operator has nothing left to do, its memory and a
minute of its rest are measured. Then it is stopped, a gang is submitted that fits the free GPUs,
and another operator is started.

`make bench WHAT=scale`; `ARGS="--nodes 96 --jobs 200"` for a look.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Final

from tools.bench import load
from tools.bench.full_cluster import GANG, Agents, Size, fill
from tools.bench.operator_figures import writes_of_jobs
from tools.bench.report import Row, publish
from tools.bench.shapes import GPUS
from tools.bench.stand import Stand, cpu_rows, custom, furnished, standing
from tools.cluster import Cluster
from tools.cluster.process import kill

MOVERS: Final = ("kube-controller-manager", "kube-scheduler", "kwok")
"""What would move the objects; they are stopped once the cluster is furnished."""
SETTLE_SECONDS: Final = 900
"""A new operator writes to each waiting job why it waits, and forecasts once."""
QUIET_SECONDS: Final = 20
"""It writes at a steady pace meanwhile, and is nearly idle between two writes."""
REST_SECONDS: Final = 60
DECISION_SECONDS: Final = 300


def main() -> None:
    """Start a cluster, measure, publish, remove it."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=10_000, help="running and waiting ones")
    sizes = parser.parse_args()
    nodes = max(1, sizes.nodes // GANG) * GANG
    size = Size(nodes=nodes, running=nodes - 1, waiting=max(0, sizes.jobs - nodes + 1))
    quota = [{"gpuPool": "bench", "nominalGpus": nodes * GPUS}]
    queue = custom("TrainingQueue", "bench", {"quotas": quota})
    with (
        furnished("scale", [queue]) as cluster,
        tempfile.TemporaryDirectory() as folder,
        Agents(),
    ):
        for role in MOVERS:
            kill(cluster.folder, role_prefix=role)
        began = time.perf_counter()
        fill(cluster, size)
        print(f"filled in {time.perf_counter() - began:.0f} s", flush=True)
        rows = asyncio.run(_measure(cluster, Path(folder), size))
        publish("scale", rows, command=f"--nodes {nodes} --jobs {size.running + size.waiting}")


async def _measure(cluster: Cluster, folder: Path, size: Size) -> list[Row]:
    async with standing(cluster, folder) as stand:
        began = stand.cpu_seconds()
        await stand.start_operator()
        await load.settled(stand.processes["operator"], within_seconds=SETTLE_SECONDS)
        await _until_nothing_is_written(stand)
        settled = stand.cpu_seconds()
        rows = [
            Row(name="nodes", value=size.nodes, unit=""),
            Row(name="running gangs of 8 pods", value=size.running, unit="jobs"),
            Row(name="waiting jobs", value=size.waiting, unit="jobs"),
            *cpu_rows("until a first operator has nothing to do", began, settled),
            *await _at_rest(stand),
        ]
        return [*rows, *await _restart(stand)]


async def _until_nothing_is_written(stand: Stand) -> None:
    """Return once the operator has written about no job for a while, or took too long."""
    port, deadline = stand.operator.http_port, time.monotonic() + SETTLE_SECONDS
    writes, since = -1, time.monotonic()
    while time.monotonic() < min(deadline, since + QUIET_SECONDS):
        await asyncio.sleep(1)
        before, writes = writes, await asyncio.to_thread(writes_of_jobs, port)
        since = time.monotonic() if writes != before else since


async def _at_rest(stand: Stand) -> list[Row]:
    before = stand.cpu_seconds()
    await asyncio.sleep(REST_SECONDS)
    after = stand.cpu_seconds()
    share = (after["operator"] - before["operator"]) / REST_SECONDS
    resident = load.resident_mebibytes(stand.processes["operator"])
    return [
        Row(
            name="operator resident memory",
            value=resident,
            unit="MiB",
            goal="<= 450",
            met=resident <= 450,
            peer="Kueue 679 MB",
        ),
        Row(
            name="operator at rest, of one core",
            value=100 * share,
            unit="%",
            goal="<= 2",
            met=share <= 0.02,
        ),
        *cpu_rows(f"{REST_SECONDS} s of rest", before, after),
    ]


async def _restart(stand: Stand) -> list[Row]:
    """From the start of a process until the first pod it placed is seen bound."""
    await asyncio.to_thread(stand.operator.stop)
    stand.bound.begin(1)
    await load.submit_jobs(stand.client, [load.job_manifest("after-restart", nodes=GANG, gpus=1)])
    before = stand.cpu_seconds()
    began = time.perf_counter()
    stand.operator.start()
    await load.all_bound(stand.client, stand.bound, seconds=DECISION_SECONDS)
    seconds = time.perf_counter() - began
    row = Row(
        name="restart of the operator to its first decision",
        value=seconds,
        unit="s",
        goal="<= 15",
        met=seconds <= 15,
    )
    return [row, *cpu_rows("restart", before, stand.cpu_seconds())]


if __name__ == "__main__":
    main()
