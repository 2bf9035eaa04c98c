"""Compute the duration of a pipeline by walking an order with the costs of its stages.

An action begins when its rank is free and its inputs are available. The walk costs O(actions). A
long run of micro-batches repeats itself: once the pipeline is full, every further round takes as
long as the last round, or as long as the busiest rank works. So the duration of a long run follows
from two short runs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from drumline_contract.config import Schedule
from drumline_planner.pipeline_schedules import Order, Pass, order


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Cost of a micro-batch on a stage, in seconds."""

    forward: float
    input: float
    """Gradient of the inputs, including recomputation for it."""
    weight: float
    """Gradient of the weights."""

    def of(self, way: Pass) -> float:
        """Return the seconds of one pass."""
        match way:
            case Pass.FORWARD:
                return self.forward
            case Pass.INPUT:
                return self.input
            case Pass.WEIGHT:
                return self.weight
            case Pass.BACKWARD:
                return self.input + self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Result of walking an order."""

    seconds: float
    """Seconds until the last rank is done."""
    busy: tuple[float, ...]
    """Busy seconds by rank."""


def replayed(actions: Order, stages: Sequence[StageSeconds]) -> Replay:
    """Walk an order.

    Args:
        actions: actions of all ranks.
        stages: cost of each stage.

    Raises:
        ValueError: the order waits for itself.
    """
    return _walked(_program(actions), stages, ranks=len(actions))


@dataclass(frozen=True, slots=True)
class _Program:
    """An order that can be walked with any costs.

    A slot is the index of a cost, by stage and pass.
    """

    ranks: tuple[int, ...]
    """Ranks of all actions, ordered so that each action comes after its dependencies, whatever
    their costs. They are stored as plain numbers, because the garbage collector would visit
    hundreds of thousands of tuples repeatedly."""
    slots: tuple[int, ...]
    sources: tuple[int, ...]
    """Index (from 1) of the action that each one waits for. 0: none."""
    stages_of_rank: tuple[frozenset[int], ...]
    micro_batches: int
    """Number of micro-batches of which each stage runs all passes."""


_SLOTS = (Pass.FORWARD, Pass.BACKWARD, Pass.INPUT, Pass.WEIGHT)
_SLOT = {way: slot for slot, way in enumerate(_SLOTS)}


def _walked(program: _Program, stages: Sequence[StageSeconds], *, ranks: int) -> Replay:
    # Index 4 · stage + pass: a list lookup is faster than a method call in this loop.
    costs = [seconds for stage in stages for seconds in map(stage.of, _SLOTS)]
    free = [0.0] * ranks
    # Entry 0 is the source of actions that wait for nothing.
    done: list[float] = [0.0]
    for rank, slot, source in zip(program.ranks, program.slots, program.sources, strict=True):
        at, ready = free[rank], done[source]
        at = (ready if ready > at else at) + costs[slot]  # noqa: FURB136 - a call of max takes twice as long
        free[rank] = at
        done.append(at)
    whole = [stage.of(Pass.FORWARD) + stage.of(Pass.BACKWARD) for stage in stages]
    busy = (
        program.micro_batches * sum(whole[stage] for stage in own) for own in program.stages_of_rank
    )
    return Replay(seconds=max(free), busy=tuple(busy))


@functools.lru_cache(maxsize=256)
def _program_of(
    schedule: Schedule, *, ranks: int, stages_per_rank: int, micro_batches: int
) -> _Program:
    """Return the program of a schedule.

    The cache key has only the parameters of the order. Hashing the order itself at each call would
    be slow.
    """
    return _program(
        order(schedule, ranks=ranks, stages_per_rank=stages_per_rank, micro_batches=micro_batches)
    )


def _program(actions: Order) -> _Program:
    """Return the program of an order. O(actions).

    Completed actions are kept in lists by stage, then by micro-batch.
    """
    # The arrays need the last stage and the number of micro-batches.
    last = max(stage for own in actions for stage, _, _ in own)
    micros = 1 + max(micro for own in actions for _, _, micro in own)
    forwards, backwards = [0] * ((last + 1) * micros), [0] * ((last + 1) * micros)
    at = [0] * len(actions)
    ranks, slots, sources = list[int](), list[int](), list[int]()
    count, left = 0, sum(map(len, actions))
    forward, weight = Pass.FORWARD, Pass.WEIGHT
    # Rounds over the ranks: each rank advances until an action waits.
    while left > count:
        before = count
        for rank, own in enumerate(actions):
            position, end = at[rank], len(own)
            while position < end:
                stage, way, micro = own[position]
                place = stage * micros + micro
                # The weight pass follows the input pass on the same rank, so it waits for no other
                # rank.
                if way is weight:
                    source = 0
                elif way is forward:
                    source = forwards[place - micros] if stage else 0
                    if stage and not source:
                        break
                    forwards[place] = count + 1
                else:
                    # Backward of the last stage waits for its own forward, others for the next
                    # stage.
                    source = forwards[place] if stage == last else backwards[place + micros]
                    if not source:
                        break
                    backwards[place] = count + 1
                ranks.append(rank)
                slots.append(4 * stage + _SLOT[way])
                sources.append(source)
                count += 1
                position += 1
            at[rank] = position
        # A whole round without progress means a cycle.
        if count == before:
            raise ValueError("the order has a cycle")
    own_stages = tuple(frozenset(stage for stage, _, _ in own) for own in actions)
    return _Program(tuple(ranks), tuple(slots), tuple(sources), own_stages, micros)


_SETTLED = 3
"""Rounds after which each further round takes as long as the last one, or as the busiest rank
works. A rank that had to wait at first may determine the speed only later. This holds for stages
that differ by a layer or by a head. For stages of arbitrary costs the error is at most 0.5 %."""


@functools.lru_cache(maxsize=2048)
def pipeline_seconds(
    schedule: Schedule,
    stages: tuple[StageSeconds, ...],
    *,
    ranks: int,
    micro_batches: int,
) -> Replay:
    """Return the replay of a step. Long steps are extrapolated from two short ones.

    Args:
        schedule: the pipeline schedule.
        stages: seconds of a micro-batch on each stage.
        ranks: number of pipeline ranks.
        micro_batches: micro-batches in a step.
    """

    def replay(count: int) -> Replay:
        program = _program_of(
            schedule, ranks=ranks, stages_per_rank=len(stages) // ranks, micro_batches=count
        )
        return _walked(program, stages, ranks=ranks)

    rounds = (micro_batches - _SETTLED * ranks) // ranks
    looped = schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE)
    # Short steps are walked. Looped schedules repeat only in whole rounds.
    if rounds < 1 or (looped and micro_batches % ranks):
        return replay(micro_batches)
    # The difference of two short runs is the time of one round.
    shorter = replay(micro_batches - (rounds + 1) * ranks)
    short = replay(micro_batches - rounds * ranks)
    works = [long - less for long, less in zip(short.busy, shorter.busy, strict=True)]
    # A rank's own work bounds a round from below.
    more = max(short.seconds - shorter.seconds, *works)
    busy = zip(short.busy, works, strict=True)
    return Replay(
        seconds=short.seconds + rounds * more,
        busy=tuple(own + rounds * work for own, work in busy),
    )
