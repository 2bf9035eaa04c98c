"""A shape: a snapshot, who waits, and what the figure made of the time is called.

Time is that of this process on its core: a cycle is one thread that waits for nothing, so on an
idle machine it is the time that passes, and on a busy one it still is what the cycle costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from drumline_scheduler import CycleCache, CycleInput, Decisions, Gang, Policy, Snapshot, decide
from tools.bench.report import Row

ROUNDS = 5
MOST_SECONDS = 12.0
"""No figure is measured again once its rounds have taken that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One world, one cycle."""

    name: str
    world: Callable[[], tuple[Snapshot, list[Gang]]]
    figure: Callable[[float], float]
    """From the seconds of one cycle to the value that is shown."""
    unit: str
    goal: float | None = None
    at_least: bool = False
    """The goal is a least value (a rate); else the most."""
    peer: str = ""
    policy: Policy = field(default_factory=Policy)
    already: Callable[[], list[Gang]] | None = None
    """Who waits already: then the cycle is that in which the others arrive, after one without them
    whose cache it has; else it knows nothing but its snapshot."""
    expect: Callable[[Decisions], str] = lambda _: ""
    """What is wrong with the decisions, if anything: a fast wrong answer is no figure."""


def milliseconds(seconds: float) -> float:
    """The whole cycle."""
    return 1000 * seconds


def per_second(count: int) -> Callable[[float], float]:
    """A rate of so many things in one cycle."""
    return lambda seconds: count / seconds


def milliseconds_each(count: int) -> Callable[[float], float]:
    """One cycle's share of each of so many things."""
    return lambda seconds: 1000 * seconds / count


def all_placed(pending: Sequence[Gang] | int) -> Callable[[Decisions], str]:
    """Whether so many gangs were placed."""
    count = pending if isinstance(pending, int) else len(pending)

    def problem(decisions: Decisions) -> str:
        placed = len(decisions.placed)
        return "" if placed == count else f"{placed} of {count} gangs placed"

    return problem


def measure(shape: Shape) -> Row:
    """The median of some cycles on the same world; the best one is told too."""
    snapshot, pending = shape.world()
    took: list[float] = []
    decisions = Decisions()
    already = shape.already() if shape.already else []
    cycle = CycleInput(
        snapshot=snapshot, pending=(*already, *pending), policy=shape.policy, now=0.0
    )
    while len(took) < ROUNDS and sum(took) < MOST_SECONDS:
        cache = None
        if already:
            cache = CycleCache()
            decide(replace(cycle, pending=tuple(already)), cache=cache)
        start = time.process_time()
        decisions = decide(cycle, cache=cache)
        took.append(time.process_time() - start)
    return row(shape, seconds=median(took), best=min(took), problem=shape.expect(decisions))


def row(shape: Shape, *, seconds: float, best: float, problem: str) -> Row:
    """The figure with its goal and whether that was met."""
    value = shape.figure(seconds)
    met = None
    if shape.goal is not None:
        met = not problem and (value >= shape.goal if shape.at_least else value <= shape.goal)
    sign = ">=" if shape.at_least else "<="
    return Row(
        name=shape.name + (f" [WRONG: {problem}]" if problem else ""),
        value=value,
        unit=shape.unit,
        goal="" if shape.goal is None else f"{sign} {shape.goal:g} {shape.unit}",
        met=met,
        peer=shape.peer,
        source=f"median of this run's cycles; best {shape.figure(best):.3g} {shape.unit}",
    )
