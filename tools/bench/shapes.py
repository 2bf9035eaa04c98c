"""What the control-plane bench submits, and how soon it has to be bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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


def _trainer_gangs(prefix: str, count: int, **job: Any) -> list[Json]:
    """The same with the bundled trainer; fake pods have no agents, and none is waited for."""
    return [load.trainer_job_manifest(f"{prefix}-{number}", **job) for number in range(count)]


SHAPES: Final = (
    Shape(
        name="gang",
        title=f"one gang of {NODES} pods x {GPUS} GPUs",
        jobs=lambda: _gangs("gang", 1, nodes=NODES, gpus=GPUS),
        pods=NODES,
        times_raw=1.5,
        peer="Volcano 4.3 s, KAI 8.2 s, Kueue 4.4 s, native gang 3.7 s",
    ),
    Shape(
        name="fours",
        title="125 gangs of 4 x 8 GPUs",
        jobs=lambda: _gangs("four", NODES // 4, nodes=4, gpus=GPUS),
        pods=NODES,
        seconds=2,
        peer="Volcano 3.8 s, KAI 8.6 s, Kueue 7.8 s, native gang 3.9 s",
    ),
    Shape(
        name="racks",
        title="30 gangs of 16 x 8 GPUs, one rack each",
        jobs=lambda: _gangs("rack", 30, nodes=16, gpus=GPUS, topology={"required": "rack"}),
        pods=30 * 16,
        seconds=2,
        peer="none published",
    ),
    Shape(
        name="gang-trainer",
        title=f"one gang of {NODES} pods x {GPUS} GPUs, bundled trainer",
        jobs=lambda: _trainer_gangs("gang", 1, nodes=NODES, gpus=GPUS),
        pods=NODES,
        as_template="gang",
    ),
    Shape(
        name="fours-trainer",
        title="125 gangs of 4 x 8 GPUs, bundled trainer",
        jobs=lambda: _trainer_gangs("four", NODES // 4, nodes=4, gpus=GPUS),
        pods=NODES,
        as_template="fours",
    ),
    Shape(
        name="racks-trainer",
        title="30 gangs of 16 x 8 GPUs, one rack each, bundled trainer",
        jobs=lambda: _trainer_gangs("rack", 30, nodes=16, gpus=GPUS, topology={"required": "rack"}),
        pods=30 * 16,
        as_template="racks",
    ),
    Shape(
        name="singles",
        title="4000 jobs of one GPU",
        jobs=lambda: _gangs("single", 4000, nodes=1, gpus=1),
        pods=4000,
        rounds=1,
        seconds=20,
        peer="KAI publishes 398 s (500 nodes)",
    ),
    Shape(
        name="preempt",
        title="a gang of 64 x 8 GPUs that preempts 64 jobs on a full cluster",
        before=lambda: _gangs("low", NODES, nodes=1, gpus=GPUS, priorityClassName=LOW),
        jobs=lambda: _gangs("high", 1, nodes=64, gpus=GPUS, priorityClassName=HIGH),
        pods=64,
        seconds=2,
        peer="KAI publishes 102 s for 250 x 8 from 4000 jobs of one GPU",
    ),
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
