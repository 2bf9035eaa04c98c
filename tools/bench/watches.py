"""TrainingJobs watched through Kopf and through the operator's informer, side by side.

One control plane, N jobs. Each watcher is a process of its own, and they take turns: the whole list
first, then changes one after the other, then changes in a burst. Kopf has a handler of events and
the operator's settings. An informer also keeps each object. Kopf's index, which would, is not
measured: with fewer workers than objects it waits forever, as each worker waits for all objects.

`make bench WHAT=watches`; `ARGS="--jobs 500"` for a look. Figures: docs/decisions/0014-kopf.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import kopf

from drumline.app import kopf_process
from drumline.kube import codec, writes
from drumline.kube.client import KubeClient
from drumline.kube.credentials import from_kubeconfig
from drumline.kube.informer import Informer
from drumline.kube.kinds import TRAINING_JOBS
from drumline_api.base import GROUP, VERSION
from tools.bench import load
from tools.bench.report import Row, publish
from tools.bench.stand import furnished

WATCHERS: Final = ("informer", "kopf")
ALONE: Final = 100
SLOTS: Final = 32
Json = dict[str, Any]
Hear = Callable[[str], None]


def main() -> None:
    """Start a cluster, measure each watcher in each round, publish; or be one watcher."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.watches", description=__doc__)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--watch", nargs=2, metavar=("WATCHER", "KUBECONFIG"))
    chosen = parser.parse_args()
    if chosen.watch is not None:
        asyncio.run(_watch(*chosen.watch, jobs=chosen.jobs))
        return
    with furnished("watches", []) as cluster:
        rows = asyncio.run(_measure(cluster.kubeconfig, jobs=chosen.jobs, rounds=chosen.rounds))
        publish("watches", rows, command=f"--jobs {chosen.jobs} --rounds {chosen.rounds}")


async def _measure(kubeconfig: Path, *, jobs: int, rounds: int) -> list[Row]:
    figures: dict[str, list[dict[str, float]]] = {watcher: [] for watcher in WATCHERS}
    async with KubeClient(from_kubeconfig(kubeconfig), write_limit=SLOTS) as client:
        manifests = [_job(number) for number in range(jobs)]
        await load.submit_jobs(client, manifests)
        for _ in range(rounds):
            for watcher in WATCHERS:
                figures[watcher].append(await _round(client, kubeconfig, watcher, jobs=jobs))
                print(watcher, figures[watcher][-1], flush=True)
    rows: list[Row] = []
    for name in figures[WATCHERS[0]][0]:
        values = {watcher: median(each[name] for each in figures[watcher]) for watcher in WATCHERS}
        rows += [
            Row(
                name=f"{name}, {watcher}",
                value=value,
                unit=name.rpartition(", ")[2],
                peer=f"{value / values['informer']:.1f} x the informer"
                if values["informer"] > 0
                else "",
            )
            for watcher, value in values.items()
        ]
    return rows


def _job(number: int) -> Json:
    """A job whose spec equals no other's."""
    name = f"job-{number}"
    environment = [{"name": "RUN", "value": name}, {"name": "NCCL_DEBUG", "value": "WARN"}]
    template = load.job_spec(nodes=8, gpus=8)["template"] | {"env": environment}
    return load.job_manifest(name, nodes=8, gpus=8, template=template)


@dataclass(slots=True, kw_only=True)
class Watcher:
    """One watcher's process; it prints a line when it heard of the number of changes asked for."""

    process: asyncio.subprocess.Process

    async def line(self) -> Json:
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(600):
                return json.loads(await self.process.stdout.readline())
        except TimeoutError:
            raise load.StalledError("the watcher said nothing for 600 s") from None

    def expect(self, changes: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{changes}\n".encode())

    def cpu_seconds(self) -> float:
        return load.cpu_seconds(self.process.pid)

    def mebibytes(self, field: str) -> float:
        """`VmRSS` or `VmHWM`."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise LookupError(field)


async def _round(client: KubeClient, kubeconfig: Path, name: str, *, jobs: int) -> dict[str, float]:
    command = ("-m", "tools.bench.watches", "--jobs", str(jobs), "--watch", name, str(kubeconfig))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=-1, stdout=-1, limit=2**26
    )
    watcher = Watcher(process=process)
    try:
        await watcher.line()  # all is imported
        cpu, empty = watcher.cpu_seconds(), watcher.mebibytes("VmRSS")
        began = time.monotonic()
        watcher.expect(jobs)
        heard = max((await watcher.line()).values())
        listed = watcher.cpu_seconds() - cpu
        await asyncio.sleep(3)  # what Kopf keeps for a while is gone
        memory = watcher.mebibytes("VmRSS") - empty
        peak = watcher.mebibytes("VmHWM") - empty
        alone, _ = await _change(client, watcher, range(ALONE), slots=1)
        burst, took = await _change(client, watcher, range(jobs // 2), slots=SLOTS)
    finally:
        process.kill()
        await process.wait()
    return {
        "list, s": heard - began,
        "list, CPU s": listed,
        "after the list, MiB": memory,
        "peak, MiB": peak,
        "one change, ms": 1000 * median(alone),
        "burst, median ms": 1000 * median(burst),
        "burst, CPU ms a change": 1000 * took / (jobs // 2),
    }


async def _change(
    client: KubeClient, watcher: Watcher, numbers: range, *, slots: int
) -> tuple[list[float], float]:
    """Seconds from each answered write to the watcher, and the watcher's CPU seconds for all."""
    before, answered = watcher.cpu_seconds(), dict[str, float]()
    watcher.expect(len(numbers))
    free = asyncio.Semaphore(slots)

    async def change(number: int) -> None:
        async with free:
            written = await writes.merge_patch(
                client,
                TRAINING_JOBS,
                name=f"job-{number}",
                body={"metadata": {"annotations": {"bench": str(time.monotonic())}}},
                namespace=load.NAMESPACE,
            )
            answered[written.resource_version] = time.monotonic()

    await asyncio.gather(*map(change, numbers))
    heard = await watcher.line()
    late = [heard[version] - moment for version, moment in answered.items() if version in heard]
    return late, watcher.cpu_seconds() - before


async def _watch(name: str, kubeconfig: str, *, jobs: int) -> None:
    """Be a watcher: say when a number of changes, read from stdin, has been heard of."""
    logging.disable(logging.WARNING)
    heard: dict[str, float] = {}
    wanted, complete = jobs, asyncio.Event()

    def hear(version: str) -> None:
        heard[version] = time.monotonic()
        if len(heard) >= wanted:
            complete.set()

    print("{}", flush=True)
    running: asyncio.Task[None] | None = None
    while line := await asyncio.to_thread(sys.stdin.readline):
        wanted = int(line)
        if running is None:
            run = _informer if name == "informer" else _kopf
            running = asyncio.ensure_future(run(Path(kubeconfig), hear))
        await complete.wait()
        print(json.dumps(heard), flush=True)
        heard.clear()
        complete.clear()


async def _informer(kubeconfig: Path, hear: Hear) -> None:
    async with KubeClient(from_kubeconfig(kubeconfig)) as client:
        informer = Informer(client, TRAINING_JOBS, decode=codec.training_job)
        informer.subscribe(lambda event: hear(event.view.resource_version))
        await informer.run()


async def _kopf(kubeconfig: Path, hear: Hear) -> None:
    registry = kopf.OperatorRegistry()
    credentials = from_kubeconfig(kubeconfig)

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return kopf.ConnectionInfo(**await credentials.connection_fields())

    @kopf.on.event(GROUP, VERSION, TRAINING_JOBS.plural, registry=registry)
    async def on_event(meta: kopf.Meta, **_: Any) -> None:
        hear(str(meta["resourceVersion"]))

    await kopf.operator(
        registry=registry, settings=kopf_process.settings_of(), clusterwide=True, standalone=True
    )


if __name__ == "__main__":
    main()
