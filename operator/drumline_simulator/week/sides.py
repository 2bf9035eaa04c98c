"""Define the sides of the week: Drumline, and Kueue with JobSet and torchrun."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from drumline_scheduler import (
    CycleCache,
    CycleInput,
    Decisions,
    MoveBudget,
    Ordering,
    Policy,
    decide,
)
from drumline_simulator.engine.simulation import Decider
from drumline_simulator.parameters import recovery
from drumline_simulator.peers.kueue import decide_as_kueue
from drumline_simulator.workload import Execution

OURS: Final = "Drumline"
PEER: Final = "Kueue, JobSet, torchrun"
BEST: Final = "the same at its best"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A scheduler, its policy, and its recovery times."""

    name: str
    policy: Policy
    execution: Execution
    decider: Decider = field(default_factory=lambda: _Unexplained().decide)


@dataclass(frozen=True, slots=True)
class _Unexplained:
    """Drumline's scheduler without the texts of rejections, which no result contains."""

    cache: CycleCache = field(default_factory=CycleCache)

    def decide(self, cycle: CycleInput) -> Decisions:
        return decide(replace(cycle, explain=False), cache=self.cache)


def ours(execution: Execution | None = None, *, name: str = OURS) -> Side:
    """Return Drumline with fair shares, elastic jobs, repairs by preemption, and moves."""
    return Side(
        name=name,
        policy=Policy(
            order=Ordering.FAIR_SHARE, surplus=True, repairs_preempt=True, moves=MoveBudget()
        ),
        execution=execution or recovery.ours(),
    )


def peer(execution: Execution | None = None, *, name: str = PEER) -> Side:
    """Return Kueue, JobSet and torchrun."""
    return Side(
        name=name,
        policy=Policy(history_weight=0.0),
        execution=execution or recovery.peer(),
        decider=decide_as_kueue,
    )


def best_peer(execution: Execution | None = None, *, name: str = BEST) -> Side:
    """Return Kueue, JobSet and torchrun at their best.

    The script saves at SIGTERM and every ten minutes, and failures are detected faster.
    """
    return peer(execution or recovery.best_peer(), name=name)
