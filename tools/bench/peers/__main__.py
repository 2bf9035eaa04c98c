"""Drumline and its peers in turns: `make bench WHAT=peers PEERS=FOLDER`.

Each turn starts the programs of one side on the same control plane and the same fake nodes, gives
them the same gangs, waits until the pods are bound, and stops the programs. FOLDER has clones of
Volcano (`volcano`) and KAI (`kai`), built once for each commit. kube-scheduler and Kueue come from
Go modules. A side that cannot be built or installed is named with its error. Kueue's own baseline
follows, with pods on both sides and without.

`ARGS="--nodes 60 --singles 200 --rounds 1 --part 2"` is a small run.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from drumline.kube.kinds import Resource
from tools.bench import load
from tools.bench.peers import baseline, programs
from tools.bench.peers.objects import PRIORITIES, Json
from tools.bench.peers.programs import FAILURES, Field, Side
from tools.bench.peers.ratios import Failed, Round, rows
from tools.bench.report import Row, publish
from tools.bench.shapes import (
    GPUS,
    NODES,
    NODES_PER_RACK,
    Shape,
    peers_shapes,
    shapes_of,
)
from tools.bench.stand import custom, furnished, priority_class, standing
from tools.cluster import Cluster, create_fake_nodes
from tools.cluster.cache import MissingToolError

SINGLES: Final = 4000


def main() -> None:
    """Build the sides, measure, publish."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster is removed then, too
    arguments = _parser().parse_args()
    builders: dict[str, Callable[[], Side]] = {
        "native": programs.native,
        "kueue": programs.kueue,
        "volcano": lambda: programs.volcano(arguments.peers),
        "kai": lambda: programs.kai(arguments.peers),
    }
    chosen = arguments.only.split(",") if arguments.only else [*builders]
    sides, notes = [programs.drumline()], list[str]()
    for name in chosen:
        try:
            sides.append(builders[name]())
        except MissingToolError as error:
            notes.append(f"{name} does not run: {error}")
            print(notes[-1], flush=True)
    shapes = [
        shape
        for shape in (
            *shapes_of(arguments.nodes, singles=arguments.singles),
            *peers_shapes(arguments.nodes),
        )
        if not arguments.shapes or shape.name in arguments.shapes.split(",")
    ]
    result: list[Row] = []
    if not arguments.only_baseline:
        result += _shapes_rows(
            sides,
            shapes,
            nodes=arguments.nodes,
            rounds=arguments.rounds,
            limit=arguments.limit,
            notes=notes,
        )
    has_kueue = any(side.name == "Kueue" for side in sides)
    if arguments.part and has_kueue:
        result += baseline.measure_all(arguments.modes.split(","), part=arguments.part)
    publish("peers", result, command=_command(arguments))
    for note in notes:
        print(note)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.peers", description=__doc__)
    add = parser.add_argument
    add("--peers", type=Path, default=Path("peers"), metavar="FOLDER", help="clones of peers")
    add("--only", metavar="PEERS", help="of native,kueue,volcano,kai; default: all")
    add("--shapes", metavar="SHAPES", help="gang,fours,racks,...; default: all")
    add("--nodes", type=int, default=NODES, help=f"fake nodes; default: {NODES}")
    add("--singles", type=int, default=SINGLES, help=f"jobs of one GPU; default: {SINGLES}")
    add("--rounds", type=int, default=3, help="turns of each side; default: 3")
    add("--limit", type=float, default=600.0, help="longest round, in seconds; default: 600")
    add("--part", type=int, default=100, help="percent of Kueue's baseline; 0: leave it out")
    add("--modes", default="pods,admission", help="of the baseline; default: pods,admission")
    add("--only-baseline", action="store_true", help="leave the shapes out")
    return parser


def _command(arguments: argparse.Namespace) -> str:
    return (
        f"--nodes {arguments.nodes} --singles {arguments.singles} --rounds {arguments.rounds}"
        f" --part {arguments.part}"
    )


def _shapes_rows(
    sides: list[Side],
    shapes: Sequence[Shape],
    *,
    nodes: int,
    rounds: int,
    limit: float,
    notes: list[str],
) -> list[Row]:
    with (
        furnished(
            "peers",
            _objects(nodes),
            completes_jobs=False,
            api_server_flags=programs.API_SERVER_FLAGS,
        ) as cluster,
        tempfile.TemporaryDirectory() as folder,
    ):
        print(f"creating {nodes} fake nodes", flush=True)
        create_fake_nodes(cluster.kubeconfig, count=nodes, gpus=GPUS, nodes_per_rack=NODES_PER_RACK)
        measured = asyncio.run(
            _measure(
                cluster,
                Path(folder),
                sides,
                shapes,
                nodes=nodes,
                rounds=rounds,
                limit=limit,
                notes=notes,
            )
        )
    versions = {side.name: side.version for side in sides}
    return [
        row
        for shape in shapes
        for row in rows(
            shape.name,
            shape.title,
            measured[shape.name],
            versions=versions,
            whole=nodes == NODES,
        )
    ]


def _objects(nodes: int) -> list[Json]:
    """A queue with all GPUs, and two priorities."""
    quotas = [{"gpuPool": "bench", "nominalGpus": nodes * GPUS}]
    classes = [priority_class(name, value) for name, value in PRIORITIES.items()]
    return [custom("TrainingQueue", "bench", {"quotas": quotas}), *classes]


async def _measure(
    cluster: Cluster,
    folder: Path,
    sides: list[Side],
    shapes: Sequence[Shape],
    *,
    nodes: int,
    rounds: int,
    limit: float,
    notes: list[str],
) -> dict[str, dict[str, list[Round]]]:
    results: dict[str, dict[str, list[Round]]] = {shape.name: {} for shape in shapes}
    async with standing(cluster, folder) as stand:
        field = Field(cluster=cluster, stand=stand, nodes=nodes, folder=folder)
        able: list[Side] = []
        for side in sides:
            try:
                await asyncio.to_thread(side.install, field)
                able.append(side)
            except FAILURES as error:
                notes.append(f"{side.name} does not run: {error}")
        turn = 0
        for number in range(rounds):
            for shape in shapes:
                for side in able:
                    turn += 1
                    said = f"{shape.name}, round {number + 1} of {rounds}, {side.name}: "
                    try:
                        result: Round = await _turn(field, side, shape, turn=turn, limit=limit)
                        said += f"{result.seconds:.2f} s"
                    except FAILURES as error:
                        result = Failed(why=f"{type(error).__name__}: {error}"[:400])
                        said += result.why
                    print(said, flush=True)
                    results[shape.name].setdefault(side.name, []).append(result)
    return results


async def _turn(field: Field, side: Side, shape: Shape, *, turn: int, limit: float) -> load.Timed:
    """Measure one side once; every turn has names of its own."""
    stand, kind = field.stand, side.kinds[0]
    try:
        async with side.running(field, shape), programs.watched(field.cluster.folder):
            fillers = load.of_round(shape.before(), turn)
            if fillers:
                stand.bound.begin(sum(job["spec"]["nodes"] for job in fillers))
                await _submit(field, side, fillers)
                await load.all_bound(stand.client, stand.bound, seconds=limit, kind=kind)
            await programs.settled(field)
            jobs = load.of_round(shape.jobs(), turn)
            timed = await load.timed(
                stand.client,
                stand.bound,
                lambda: _submit(field, side, jobs),
                pods=shape.pods,
                processes=field.processes,
                kind=kind,
                seconds=limit,
            )
            await asyncio.sleep(2)  # let Running be written before all is deleted
            await load.clear(stand.client, stand.bound, side.kinds)
            return timed
    except FAILURES:
        with suppress(*FAILURES):  # the next turn begins without the remains of this one
            await load.clear(stand.client, stand.bound, side.kinds)
        raise


async def _submit(field: Field, side: Side, jobs: list[Json]) -> None:
    """Create the objects of all jobs at once, kind after kind."""
    by_kind: dict[str, list[Json]] = {}
    kinds: dict[str, Resource] = {}
    for job in jobs:
        for kind, body in side.objects(job):
            kinds[kind.plural] = kind
            by_kind.setdefault(kind.plural, []).append(body)
    for plural, bodies in by_kind.items():
        await load.submit(field.stand.client, kinds[plural], bodies)


if __name__ == "__main__":
    main()
