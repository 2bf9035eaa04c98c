"""`bench-collectives`: how long each collective takes by size, over every axis of a layout.

All sets of ranks along an axis are measured at once, as training uses them. A repeat counts with
its slowest rank's time; the ranks meet before each one.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from drumline_trainer.collectives.measurements import (
    MeasuredAxis,
    Measurement,
    measured_axes,
    nodes_of,
)
from drumline_trainer.collectives.operations import MeasuredGroups, Operation, even_size, operations
from drumline_trainer.collectives.options import BenchOptions
from drumline_trainer.collectives.report import as_json, table
from drumline_trainer.contract import ExitCode
from drumline_trainer.host.cpus import threads_per_rank
from drumline_trainer.preflight import environment_facts
from drumline_trainer.rank_protocol.placement import Placement
from drumline_trainer.recovery.rendezvous import backend_of, join
from drumline_trainer.sharding.device import device_of_rank
from drumline_trainer.sharding.world import World

WARM_UPS = 2
SMALL = 64 * 1024
CALLS_OF_SMALL = 8
"""Calls that are timed together up to `SMALL` bytes: a single call is too short for the clock."""


def bench_rank(placement: Placement, *, options: BenchOptions) -> int:
    """Run the benchmark as a rank; rank 0 prints the table. Returns an exit code."""
    torch.set_num_threads(threads_per_rank(placement.local_world_size))
    device = device_of_rank(placement.local_rank, of=placement.local_world_size)
    layout = options.layout(world_size=placement.world_size)
    facts = environment_facts(asdict(options), layout, backend=backend_of(device))
    join(placement, device=device, facts=facts)
    world = World.join(layout, device=device)
    rows = list(_measured(world, options=options, per_node=placement.local_world_size))
    if placement.rank == 0:
        _write(rows, world=world, json_file=options.json_file)
    dist.destroy_process_group()
    return ExitCode.OK


def _measured(world: World, *, options: BenchOptions, per_node: int) -> Iterator[Measurement]:
    for axis in measured_axes(world.layout):
        groups = _groups(axis, world=world, per_node=per_node)
        for size in options.sizes:
            even = even_size(size, axis.ranks)
            for operation in operations(even, groups=groups, device=world.device):
                _progress(f"{axis.name}: {operation.collective} by {operation.by}, {even} bytes")
                yield Measurement(
                    axis=axis.name,
                    ranks=axis.ranks,
                    collective=operation.collective,
                    by=operation.by,
                    bytes=even,
                    seconds=_seconds(operation, size=even, repeats=options.repeats, world=world),
                )
    _progress("")


def _seconds(operation: Operation, *, size: int, repeats: int, world: World) -> float:
    """Seconds of one call: the median over the repeats of the slowest rank's time."""
    calls = CALLS_OF_SMALL if size <= SMALL else 1
    for _ in range(WARM_UPS):
        operation.run()
    times = torch.zeros(repeats, dtype=torch.float64, device=world.device)
    for repeat in range(repeats):
        dist.barrier()
        _finish(world.device)
        start = time.perf_counter()
        for _ in range(calls):
            operation.run()
        _finish(world.device)
        times[repeat] = (time.perf_counter() - start) / calls
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return statistics.median(map(float, times.cpu().numpy()))


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _groups(axis: MeasuredAxis, *, world: World, per_node: int) -> MeasuredGroups:
    """Make the groups, all of them on every rank in the same order. Collective."""
    whole = world.group(axis.axes[0])
    assert whole is not None  # noqa: S101 - the axis has several ranks
    cuts = [nodes_of(ranks, per_node=per_node) for ranks in axis.sets]
    if not all(cuts):
        return MeasuredGroups(whole=whole)
    inside = _mine([node for nodes in cuts for node in nodes], rank=world.rank)
    across = [place for nodes in cuts for place in zip(*nodes, strict=True)]
    return MeasuredGroups(whole=whole, inside=inside, between=_mine(across, rank=world.rank))


def _mine(sets: Sequence[Sequence[int]], *, rank: int) -> ProcessGroup:
    made = [dist.new_group(list(ranks)) for ranks in sets]
    mine = next(group for ranks, group in zip(sets, made, strict=True) if rank in ranks)
    assert isinstance(mine, ProcessGroup)  # noqa: S101 - this rank is in it
    return mine


def _progress(text: str) -> None:
    """Print a line that the next replaces, on a terminal of rank 0."""
    if dist.get_rank() == 0 and sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _write(rows: Sequence[Measurement], *, world: World, json_file: Path | None) -> None:
    backend = dist.get_backend()
    title = f"{world.layout}, {world.layout.world_size} ranks, {backend}, torch {torch.__version__}"
    sys.stdout.write(table(rows, title=title))
    sys.stdout.flush()
    if json_file is not None:
        json_file.write_text(
            as_json(
                rows,
                layout=str(world.layout),
                world_size=world.layout.world_size,
                backend=backend,
                torch=torch.__version__,
            )
        )
