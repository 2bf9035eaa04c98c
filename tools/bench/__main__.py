"""Apply -> all pods bound, on a real API server with fake nodes, beside the raw limit.

Raw: the same pods, one a node, created already bound by a plain client, in the same run, with the
operator stopped. The peers' figures are from other days on a machine of this size: see
docs/benchmarks.md. `python -m tools.bench SHAPE...` measures only some shapes.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from tools.bench import load
from tools.bench.operator_figures import writes_of_jobs
from tools.bench.report import Row, publish
from tools.bench.shapes import GPUS, HIGH, LOW, MANY_NODES, NODES_PER_RACK, SHAPES, Shape
from tools.bench.stand import Stand, custom, furnished, priority_class, standing
from tools.cluster import Cluster, create_fake_nodes

RAW_ROUNDS = 3
API_SERVER = "kube-apiserver"
SOURCE = "median of the rounds of this run; peers: another day, 2 cores, 24 GiB, or as published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """All rounds of the shapes of one number of nodes."""

    nodes: int
    raw: list[load.Timed]
    ours: dict[str, list[load.Timed]]
    resident_mebibytes: float
    writes_besides_pods: float
    """A job, until it runs."""


@dataclass(slots=True, kw_only=True)
class _Tally:
    """Jobs and pods that were submitted while writes were counted."""

    jobs: int = 0
    pods: int = 0
    rounds: int = 0
    ours: dict[str, list[load.Timed]] = field(default_factory=dict[str, list[load.Timed]])


def main() -> None:
    """Start a cluster, measure, publish, remove it."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    names = [shape.name for shape in SHAPES]
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"default: all: {names}")
    asked = parser.parse_args().shapes or names
    unknown = set(asked) - set(names)
    if unknown:
        parser.error(f"no such shape: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    chosen = [shape for shape in SHAPES if shape.name in asked]
    with furnished("bench", _objects()) as cluster:
        publish("control_plane", _rows(chosen, _measure_all(cluster, chosen)))


def _measure_all(cluster: Cluster, chosen: list[Shape]) -> list[Figures]:
    results: list[Figures] = []
    there = 0
    for nodes, shapes in groupby(chosen, key=lambda shape: shape.nodes):
        print(f"creating {nodes - there} fake nodes", flush=True)
        create_fake_nodes(
            cluster.kubeconfig,
            count=nodes - there,
            gpus=GPUS,
            nodes_per_rack=NODES_PER_RACK,
            first=there,
        )
        there = nodes
        with tempfile.TemporaryDirectory() as folder:
            results.append(asyncio.run(_measure(cluster, nodes, list(shapes), Path(folder))))
    return results


def _objects() -> list[dict[str, Any]]:
    """A queue with all GPUs, and two priorities."""
    quotas = [{"gpuPool": "bench", "nominalGpus": MANY_NODES * GPUS}]
    return [
        custom("TrainingQueue", "bench", {"quotas": quotas}),
        priority_class(LOW, -1000),
        priority_class(HIGH, 1000),
    ]


async def _measure(cluster: Cluster, nodes: int, shapes: list[Shape], folder: Path) -> Figures:
    async with standing(cluster, folder) as stand:
        raw = await _measure_raw(stand, nodes=nodes)
        await stand.start_operator()
        port = stand.operator.http_port
        tally, before = _Tally(), writes_of_jobs(port)
        for shape in shapes:
            await _measure_shape(stand, shape, tally=tally)
        written = writes_of_jobs(port) - before - tally.pods
        resident = load.resident_mebibytes(stand.processes["operator"])
    return Figures(
        nodes=nodes,
        raw=raw,
        ours=tally.ours,
        resident_mebibytes=resident,
        writes_besides_pods=written / tally.jobs,
    )


async def _measure_raw(stand: Stand, *, nodes: int) -> list[load.Timed]:
    client, bound = stand.client, stand.bound
    names = [f"fake-{index}" for index in range(nodes)]
    raw: list[load.Timed] = []
    for number in range(RAW_ROUNDS if nodes < MANY_NODES else 1):
        await load.settled(stand.servers[API_SERVER])
        print(f"raw limit on {nodes} nodes, round {number + 1}", flush=True)
        pods = load.bound_pods(load.raw_name(nodes, number), names, gpus=GPUS)
        timed = await load.timed(
            client,
            bound,
            lambda pods=pods: load.submit_pods(client, pods),
            pods=nodes,
            processes=stand.processes,
        )
        raw.append(timed)
        await load.clear(client, bound)
    return raw


async def _measure_shape(stand: Stand, shape: Shape, *, tally: _Tally) -> None:
    client, bound = stand.client, stand.bound
    rounds = tally.ours[shape.name] = []
    for number in range(shape.rounds):
        tally.rounds += 1
        fillers = load.of_round(shape.before(), tally.rounds)
        jobs = load.of_round(shape.jobs(), tally.rounds)
        if fillers:
            bound.begin(len(fillers))
            await load.submit_jobs(client, fillers)
            await load.all_bound(client, bound, seconds=300)
        await load.settled(stand.servers[API_SERVER])
        print(f"{shape.name}, round {number + 1} of {shape.rounds}", flush=True)
        timed = await load.timed(
            client,
            bound,
            lambda jobs=jobs: load.submit_jobs(client, jobs),
            pods=shape.pods,
            processes=stand.processes,
        )
        rounds.append(timed)
        await asyncio.sleep(2)  # let Running be written before all is deleted
        tally.jobs += len(fillers) + len(jobs)
        tally.pods += len(fillers) + shape.pods
        await load.clear(client, bound)


def _rows(chosen: list[Shape], figures: list[Figures]) -> list[Row]:
    rows: list[Row] = []
    for figure in figures:
        limit = median(run.seconds for run in figure.raw)
        rows.append(
            Row(name=f"raw limit: {figure.nodes} pods x {GPUS} GPUs", value=limit, unit="s")
        )
        rows += _cpu_rows("raw limit", figure.raw)
        for shape in chosen:
            if shape.name in figure.ours:
                template = figure.ours.get(shape.as_template)
                rows += _shape_rows(shape, figure.ours[shape.name], limit=limit, template=template)
        rows += [
            Row(
                name=f"writes per job besides its pods, {figure.nodes} nodes",
                value=figure.writes_besides_pods,
                unit="writes",
                goal="<= 6",
                met=figure.writes_besides_pods <= 6,
            ),
            Row(
                name=f"operator resident memory, {figure.nodes} nodes",
                value=figure.resident_mebibytes,
                unit="MiB",
            ),
        ]
    return rows


def _shape_rows(
    shape: Shape, rounds: list[load.Timed], *, limit: float, template: list[load.Timed] | None
) -> list[Row]:
    seconds = median(run.seconds for run in rounds)
    goal = "" if shape.seconds is None else f"<= {shape.seconds:g} s"
    rows = [
        Row(
            name=shape.title,
            value=seconds,
            unit="s",
            goal=goal,
            met=None if shape.seconds is None else seconds <= shape.seconds,
            peer=shape.peer,
            source=SOURCE,
        )
    ]
    if shape.times_raw is not None:
        rows.append(
            Row(
                name="  as a multiple of raw",
                value=seconds / limit,
                unit="x",
                goal=f"<= {shape.times_raw:g}",
                met=seconds / limit <= shape.times_raw,
                source=SOURCE,
            )
        )
    if template is not None:
        ratio = seconds / median(run.seconds for run in template)
        rows.append(
            Row(
                name="  as a multiple of the same with a template",
                value=ratio,
                unit="x",
                goal="<= 1.1",
                met=ratio <= 1.1,
            )
        )
    return rows + _cpu_rows(shape.name, rounds)


def _cpu_rows(name: str, rounds: list[load.Timed]) -> list[Row]:
    """CPU seconds of every process that took any."""
    taken = {
        process: median(run.cpu_seconds[process] for run in rounds)
        for process in rounds[0].cpu_seconds
    }
    return [
        Row(name=f"  {name}: CPU of {process}", value=seconds, unit="s")
        for process, seconds in sorted(taken.items())
        if seconds >= 0.005
    ]


if __name__ == "__main__":
    main()
