"""How long a pipeline takes: an order walked with the costs of its stages.

An action begins when its rank is free and what it waits for is there. O(actions); and a long run of
micro-batches repeats itself: after the pipeline is full every further round takes as long as the
last, so that two short runs say what a long one takes.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from drumline_trainer.config import Schedule
from drumline_trainer.planner.schedules import Order, Pass, order


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """What a micro-batch costs on a stage."""

    forward: float
    input: float
    """Gradient of the inputs, with what is computed again for it."""
    weight: float
    """Gradient of the weights."""

    def of(self, way: Pass) -> float:
        """Seconds of one pass."""
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
    """What came out of walking an order."""

    seconds: float
    """Until the last rank is done."""
    busy: tuple[float, ...]
    """By rank, of these."""


def replayed(actions: Order, stages: Sequence[StageSeconds]) -> Replay:
    """Walk an order.

    Args:
        actions: of all ranks.
        stages: what each costs.

    Raises:
        ValueError: the order waits for itself.
    """
    return _walked(_program(actions), stages, ranks=len(actions))


_Program = tuple[tuple[int, int, int], ...]
"""All actions such that each comes after what it waits for, whatever they cost: of each the rank,
the place of its cost (stage and pass), and which step of this list, counted from 1, it waits for; 0
is nothing."""
_SLOTS = (Pass.FORWARD, Pass.BACKWARD, Pass.INPUT, Pass.WEIGHT)


def _walked(program: _Program, stages: Sequence[StageSeconds], *, ranks: int) -> Replay:
    costs = [seconds for stage in stages for seconds in map(stage.of, _SLOTS)]
    free, busy = [0.0] * ranks, [0.0] * ranks
    done: list[float] = [0.0]
    for rank, slot, source in program:
        begins, ready = free[rank], done[source]
        begins = ready if ready > begins else begins  # noqa: FURB136 - a call of max takes twice as long
        seconds = costs[slot]
        busy[rank] += seconds
        free[rank] = begins + seconds
        done.append(free[rank])
    return Replay(seconds=max(free), busy=tuple(busy))


@functools.lru_cache(maxsize=256)
def _program_of(
    schedule: Schedule, *, ranks: int, stages_per_rank: int, micro_batches: int
) -> _Program:
    """Kept by what the order follows from: of the order itself every look would hash all of it."""
    return _program(
        order(schedule, ranks=ranks, stages_per_rank=stages_per_rank, micro_batches=micro_batches)
    )


def _program(actions: Order) -> _Program:
    """O(actions), with lists for what is done: by stage, then by micro-batch."""
    last = max(stage for own in actions for stage, _, _ in own)
    micros = 1 + max(micro for own in actions for _, _, micro in own)
    forwards, backwards = [0] * ((last + 1) * micros), [0] * ((last + 1) * micros)
    at = [0] * len(actions)
    program: list[tuple[int, int, int]] = []
    left = sum(map(len, actions))
    while left > len(program):
        before = len(program)
        for rank, own in enumerate(actions):
            for stage, way, micro in own[at[rank] :]:
                place = stage * micros + micro
                if way is Pass.WEIGHT:
                    program.append((rank, 4 * stage + 3, 0))
                elif way is Pass.FORWARD:
                    source = forwards[place - micros] if stage else 0
                    if stage and not source:
                        break
                    program.append((rank, 4 * stage, source))
                    forwards[place] = len(program)
                else:
                    source = forwards[place] if stage == last else backwards[place + micros]
                    if not source:
                        break
                    slot = 1 if way is Pass.BACKWARD else 2
                    program.append((rank, 4 * stage + slot, source))
                    backwards[place] = len(program)
                at[rank] += 1
        if len(program) == before:
            raise ValueError("the order waits for itself")
    return tuple(program)


_SETTLED = 3
"""Rounds after which every further one takes as long as the last, where only the ends differ; with
stages of all kinds of cost it is off by up to a hundredth."""


@functools.lru_cache(maxsize=2048)
def pipeline_seconds(
    schedule: Schedule,
    stages: tuple[StageSeconds, ...],
    *,
    ranks: int,
    micro_batches: int,
) -> Replay:
    """The replay of a step; of long ones two short ones and what a round more takes."""

    def replay(count: int) -> Replay:
        program = _program_of(
            schedule, ranks=ranks, stages_per_rank=len(stages) // ranks, micro_batches=count
        )
        return _walked(program, stages, ranks=ranks)

    rounds = (micro_batches - _SETTLED * ranks) // ranks
    looped = schedule in (Schedule.INTERLEAVED, Schedule.ZERO_BUBBLE)
    if rounds < 1 or (looped and micro_batches % ranks):
        return replay(micro_batches)
    shorter = replay(micro_batches - (rounds + 1) * ranks)
    short = replay(micro_batches - rounds * ranks)
    more = short.seconds - shorter.seconds
    busy = zip(short.busy, shorter.busy, strict=True)
    return Replay(
        seconds=short.seconds + rounds * more,
        busy=tuple(long + rounds * (long - less) for long, less in busy),
    )
