"""A large cluster at rest: what the operator takes, and how soon a new one decides.

5,000 nodes of 8 GPUs carry gangs of 8 pods of one GPU on all but one of them; jobs up to 10,000
wait for a quota that their queue does not have. Then nothing happens for a minute; then the
operator is stopped, a gang is submitted that fits the free node, and another operator is started.

`make bench WHAT=scale`; `ARGS="--nodes 100 --jobs 200"` for a look.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.bench import load
from tests.bench.report import Row, publish
from tests.bench.shapes import GPUS, NODES_PER_RACK
from tests.bench.stand import Stand, cpu_rows, custom, furnished, standing
from tests.cluster import Cluster, create_fake_nodes

BATCH: Final = 100
"""Jobs that are submitted at once."""
REST_SECONDS: Final = 60
BATCH_SECONDS: Final = 300
Json = dict[str, Any]


def main() -> None:
    """Start a cluster, measure, publish, remove it."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--jobs", type=int, default=10_000, help="running and waiting ones")
    sizes = parser.parse_args()
    quota = [{"gpuPool": "bench", "nominalGpus": sizes.nodes * GPUS}]
    nothing = [{"gpuPool": "bench", "nominalGpus": 0}]
    queues = [
        custom("TrainingQueue", "bench", {"quotas": quota}),
        custom("TrainingQueue", "waiting", {"quotas": nothing}),
    ]
    with furnished("scale", queues) as cluster, tempfile.TemporaryDirectory() as folder:
        create_fake_nodes(
            cluster.kubeconfig, count=sizes.nodes, gpus=GPUS, nodes_per_rack=NODES_PER_RACK
        )
        rows = asyncio.run(_measure(cluster, Path(folder), nodes=sizes.nodes, jobs=sizes.jobs))
        publish("scale", rows, command=f"--nodes {sizes.nodes} --jobs {sizes.jobs}")


async def _measure(cluster: Cluster, folder: Path, *, nodes: int, jobs: int) -> list[Row]:
    running = nodes - 1
    async with standing(cluster, folder) as stand:
        await stand.start_operator()
        began = stand.cpu_seconds()
        for first in range(0, running, BATCH):
            count = min(BATCH, running - first)
            gangs = [_gang(f"run-{first + number}") for number in range(count)]
            stand.bound.begin(count * GPUS)
            await load.submit_jobs(stand.client, gangs)
            async with asyncio.timeout(BATCH_SECONDS):
                await stand.bound.reached.wait()
            print(f"{first + count} of {running} gangs are bound", flush=True)
        for first in range(0, jobs - running, BATCH):
            count = min(BATCH, jobs - running - first)
            waiting = [_gang(f"wait-{first + n}", queue="waiting") for n in range(count)]
            await load.submit_jobs(stand.client, waiting)
        await load.settled(stand.processes["operator"])
        filled = stand.cpu_seconds()
        rows = [
            Row(name="running gangs of 8 pods", value=running, unit="jobs"),
            Row(name="waiting jobs", value=max(0, jobs - running), unit="jobs"),
            *cpu_rows("until all of this stands", began, filled),
            *await _at_rest(stand),
        ]
        return [*rows, await _restart(stand)]


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


async def _restart(stand: Stand) -> Row:
    """From the start of a process until the first pod it placed is seen bound."""
    await asyncio.to_thread(stand.operator.stop)
    stand.bound.begin(1)
    await load.submit_jobs(stand.client, [_gang("after-restart")])
    began = time.perf_counter()
    stand.operator.start()
    async with asyncio.timeout(BATCH_SECONDS):
        await stand.bound.reached.wait()
    seconds = time.perf_counter() - began
    return Row(
        name="restart of the operator to its first decision",
        value=seconds,
        unit="s",
        goal="<= 15",
        met=seconds <= 15,
    )


def _gang(name: str, *, queue: str = "bench") -> Json:
    return load.job_manifest(name, nodes=GPUS, gpus=1, queue=queue)


if __name__ == "__main__":
    main()
