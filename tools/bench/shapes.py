"""What the control-plane bench submits, and how soon it has to be bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from tools.bench import load

NODES: Final = 500
MANY_NODES: Final = 5000
NODES_PER_RACK: Final = 16
GPUS: Final = 8
LOW, HIGH = "bench-low", "bench-high"
"""Priority classes."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Jobs that are submitted at once.

    Attributes:
        name: As it is asked for on the command line.
        title: As it is printed.
        jobs: What is submitted; the clock starts before.
        pods: How many pods of these jobs have to be bound for the clock to stop.
        nodes: How many nodes the cluster has.
        before: What runs already.
        rounds: How often it is measured; the median counts.
        seconds: At most so many, if that is the goal.
        times_raw: At most so many times the raw limit of the same nodes, if that is the goal.
        peer: What peers publish, or what was measured of them another day.
        as_template: The shape of the same jobs with a template, where these have the trainer.
    """

    name: str
    title: str
    jobs: Callable[[], list[Json]]
    pods: int
    nodes: int = NODES
    before: Callable[[], list[Json]] = list
    rounds: int = 3
    seconds: float | None = None
    times_raw: float | None = None
    peer: str = ""
    as_template: str = ""

    @property
    def limit_pods(self) -> int:
        """How many pods the raw limit of these nodes has: one a node."""
        return self.nodes


def _gangs(prefix: str, count: int, **job: Any) -> list[Json]:
    return [load.job_manifest(f"{prefix}-{number}", **job) for number in range(count)]


def shapes_of(nodes: int, *, singles: int) -> tuple[Shape, ...]:
    """Return the shapes that every peer is given, scaled to this number of nodes."""
    racks = max(1, nodes // NODES_PER_RACK - 1)
    preempting = max(1, nodes * 64 // 500)
    return (
        Shape(
            name="gang",
            title=f"one gang of {nodes} pods x {GPUS} GPUs",
            jobs=lambda: _gangs("gang", 1, nodes=nodes, gpus=GPUS),
            pods=nodes,
            nodes=nodes,
            times_raw=1.5,
            peer="Volcano 4.3 s, KAI 8.2 s, Kueue 4.4 s, native gang 3.7 s",
        ),
        Shape(
            name="fours",
            title=f"{nodes // 4} gangs of 4 x {GPUS} GPUs",
            jobs=lambda: _gangs("four", nodes // 4, nodes=4, gpus=GPUS),
            pods=nodes // 4 * 4,
            nodes=nodes,
            seconds=2,
            peer="Volcano 3.8 s, KAI 8.6 s, Kueue 7.8 s, native gang 3.9 s",
        ),
        Shape(
            name="racks",
            title=f"{racks} gangs of {NODES_PER_RACK} x {GPUS} GPUs, one rack each",
            jobs=lambda: _gangs(
                "rack", racks, nodes=NODES_PER_RACK, gpus=GPUS, topology={"required": "rack"}
            ),
            pods=racks * NODES_PER_RACK,
            nodes=nodes,
            seconds=2,
            peer="none published",
        ),
        Shape(
            name="singles",
            title=f"{singles} jobs of one GPU",
            jobs=lambda: _gangs("single", singles, nodes=1, gpus=1),
            pods=singles,
            nodes=nodes,
            rounds=1,
            seconds=20,
            peer="KAI publishes 398 s (500 nodes)",
        ),
        Shape(
            name="preempt",
            title=f"a gang of {preempting} x {GPUS} GPUs that preempts {preempting} jobs"
            " on a full cluster",
            before=lambda: _gangs("low", nodes, nodes=1, gpus=GPUS, priorityClassName=LOW),
            jobs=lambda: _gangs("high", 1, nodes=preempting, gpus=GPUS, priorityClassName=HIGH),
            pods=preempting,
            nodes=nodes,
            seconds=2,
            peer="KAI publishes 102 s for 250 x 8 from 4000 jobs of one GPU",
        ),
    )


def peers_shapes(nodes: int) -> tuple[Shape, ...]:
    """Return what peers measure themselves, on nodes of 8 GPUs.

    Kubernetes' scheduler_perf has gangs of 3 pods, Volcano's benchmark 10 gangs of 100, and KAI's
    a gang of 250 x 8 GPUs on 500 nodes that are full of jobs of one GPU.
    """
    hundreds = max(1, nodes // 50)
    half = nodes // 2
    return (
        Shape(
            name="threes",
            title=f"{2 * nodes} gangs of 3 x 1 GPU (scheduler_perf)",
            jobs=lambda: _gangs("three", 2 * nodes, nodes=3, gpus=1),
            pods=6 * nodes,
            nodes=nodes,
        ),
        Shape(
            name="hundreds",
            title=f"{hundreds} gangs of 100 x 1 GPU (Volcano)",
            jobs=lambda: _gangs("hundred", hundreds, nodes=100, gpus=1),
            pods=hundreds * 100,
            nodes=nodes,
        ),
        Shape(
            name="reclaim",
            title=f"a gang of {half} x {GPUS} GPUs that preempts {half * GPUS} jobs of one GPU"
            " (KAI)",
            before=lambda: _gangs("low", nodes * GPUS, nodes=1, gpus=1, priorityClassName=LOW),
            jobs=lambda: _gangs("high", 1, nodes=half, gpus=GPUS, priorityClassName=HIGH),
            pods=half,
            nodes=nodes,
        ),
    )


_GANG, _FOURS, _RACKS, _SINGLES, _PREEMPT = shapes_of(NODES, singles=4000)

SHAPES: Final = (
    _GANG,
    _FOURS,
    _RACKS,
    *(
        replace(
            shape,
            name=f"{shape.name}-trainer",
            title=f"{shape.title}, bundled trainer",
            jobs=lambda shape=shape: [load.with_trainer(job) for job in shape.jobs()],
            seconds=None,
            times_raw=None,
            peer="",
            as_template=shape.name,
        )
        for shape in (_GANG, _FOURS, _RACKS)
    ),
    _SINGLES,
    _PREEMPT,
    Shape(
        name="wide",
        title=f"one gang of {MANY_NODES} pods x {GPUS} GPUs",
        jobs=lambda: _gangs("wide", 1, nodes=MANY_NODES, gpus=GPUS),
        pods=MANY_NODES,
        nodes=MANY_NODES,
        rounds=1,
        times_raw=1.5,
        peer="none published",
    ),
)
"""In the order in which they are measured; nodes are only ever added."""
