"""In which order the ranks of a pipeline work: torch's own orders, without torch.

An order is, for every rank, the list of its actions: forward, backward, or the two halves of a
backward, of one stage and one micro-batch. These are the orders of torch.distributed.pipelining
2.15 action for action (a test compares them), not those of the papers: torch's zero-bubble
schedules have bubbles. What DualPipeV runs as a pair is listed one after the other, as nothing of
ours overlaps them.
"""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from drumline_contract.config import Schedule


class Pass(StrEnum):
    """Kind of pass of a micro-batch on a stage."""

    FORWARD = "F"
    BACKWARD = "B"
    """Both gradients."""
    INPUT = "I"
    """The gradient of the inputs."""
    WEIGHT = "W"
    """The gradient of the weights."""


Action = tuple[int, Pass, int]
"""Stage, what, micro-batch."""
Order = tuple[tuple[Action, ...], ...]
"""Order by rank."""

_F, _B, _I, _W = Pass.FORWARD, Pass.BACKWARD, Pass.INPUT, Pass.WEIGHT


@functools.lru_cache(maxsize=8)
def order(schedule: Schedule, *, ranks: int, stages_per_rank: int, micro_batches: int) -> Order:
    """Return the actions of every rank.

    Args:
        schedule: name of the schedule.
        ranks: ranks of the pipeline.
        stages_per_rank: 1 for gpipe and 1f1b, 2 for the V-shaped schedules.
        micro_batches: micro-batches of a step, at least `layout_validation.min_micro_batches`.
    """
    match schedule:
        case Schedule.GPIPE:
            lists = [_gpipe(rank, micro_batches) for rank in range(ranks)]
        case Schedule.ONE_F_ONE_B:
            lists = [_one_f_one_b(rank, ranks, micro_batches) for rank in range(ranks)]
        case Schedule.INTERLEAVED | Schedule.ZERO_BUBBLE:
            zero_bubble = schedule is Schedule.ZERO_BUBBLE
            loop = _Loop(ranks, stages_per_rank, micro_batches, zero_bubble=zero_bubble)
            lists = [loop.actions(rank) for rank in range(ranks)]
        case Schedule.ZBV:
            lists = [_zbv(rank, ranks, micro_batches) for rank in range(ranks)]
        case Schedule.DUAL_PIPE_V:
            lists = [_DualPipe(rank, ranks).actions(micro_batches) for rank in range(ranks)]
    return tuple(map(tuple, lists))


def _gpipe(rank: int, micro_batches: int) -> list[Action]:
    # All forward passes first, so all micro-batches are alive at once.
    return [(rank, way, micro) for way in (_F, _B) for micro in range(micro_batches)]


def _one_f_one_b(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    # Warm-up: later stages start backward earlier, so earlier ones run ahead.
    ahead = min(ranks - 1 - rank, micro_batches)
    actions: list[Action] = [(rank, _F, micro) for micro in range(ahead)]
    for micro in range(micro_batches):
        if micro + ahead < micro_batches:
            actions.append((rank, _F, micro + ahead))
        actions.append((rank, _B, micro))
    return actions


@dataclass(frozen=True, slots=True)
class _Loop:
    """Stages rank, rank + ranks, ... on each rank, in rounds of micro-batches."""

    ranks: int
    stages_per_rank: int
    micro_batches: int
    zero_bubble: bool

    @property
    def per_round(self) -> int:
        """Micro-batches that a stage runs before the next stage has its turn."""
        # Micro-batches are divided into as many rounds as ranks fit.
        return self.micro_batches // max(1, self.micro_batches // self.ranks)

    def ahead(self, rank: int) -> int:
        """Forward passes of all stages before the first backward pass."""
        # Zero-bubble fills the wait with weight gradients, so it warms up with one hop per rank.
        hops = (1 if self.zero_bubble else 2) * (self.ranks - 1 - rank)
        total = self.micro_batches * self.stages_per_rank
        return min((self.stages_per_rank - 1) * self.per_round + hops, total)

    def most_alive(self, rank: int) -> tuple[int, ...]:
        """Micro-batches alive by stage when the rank has most: before it first frees one.

        From then on every forward pass follows on one that frees as much. Gradients of weights,
        which free them, come `rank` steps late.
        """
        # Weight gradients come `rank` steps late and free the micro-batch only then.
        delay = rank if self.zero_bubble else 0
        total = self.micro_batches * self.stages_per_rank
        held = min(self.ahead(rank) + delay + 1, total)
        rounds, rest = divmod(held, self.per_round * self.stages_per_rank)
        return tuple(
            rounds * self.per_round + min(max(rest - local * self.per_round, 0), self.per_round)
            for local in range(self.stages_per_rank)
        )

    def actions(self, rank: int) -> list[Action]:
        """Return the actions of one rank: warm up, alternate forward and backward, then drain."""
        # Phase 1: the order of the local stages, equal for forward and backward in reverse.
        per_round, ahead = self.per_round, self.ahead(rank)
        total = self.micro_batches * self.stages_per_rank
        forwards, backwards, weighted = ([0] * self.stages_per_rank for _ in range(3))
        order_of_stages = [(step // per_round) % self.stages_per_rank for step in range(total)]
        stages = [local * self.ranks + rank for local in range(self.stages_per_rank)]
        last = self.stages_per_rank - 1
        actions: list[Action] = []
        weights = 0
        back = _I if self.zero_bubble else _B
        # Phase 2: one loop for warm-up, steady state and drain.
        for step in range(total + ahead):
            if step < total:
                local = order_of_stages[step]
                actions.append((stages[local], _F, forwards[local]))
                forwards[local] += 1
            if step < ahead:
                continue
            # Backward visits the local stages from the last to the first.
            local = last - order_of_stages[step - ahead]
            actions.append((stages[local], back, backwards[local]))
            backwards[local] += 1
            if self.zero_bubble and step - ahead >= rank:
                local = last - order_of_stages[weights]
                actions.append((stages[local], _W, weighted[local]))
                weighted[local] += 1
                weights += 1
        for step in range(weights, total if self.zero_bubble else 0):
            local = last - order_of_stages[step]
            actions.append((stages[local], _W, weighted[local]))
            weighted[local] += 1
        return actions


def _zbv(rank: int, ranks: int, micro_batches: int) -> list[Action]:
    enough = max(2 * ranks - 1, micro_batches)
    down, up = rank, 2 * ranks - 1 - rank
    counts = dict.fromkeys(((stage, way) for stage in (down, up) for way in (_F, _I, _W)), 0)
    actions: list[Action] = []

    def add(stage: int, *ways: Pass) -> None:
        for way in ways:
            micro = counts[stage, way]
            counts[stage, way] += 1
            if micro < micro_batches:
                actions.append((stage, way, micro))

    def repeat(times: int, *parts: tuple[int, tuple[Pass, ...]]) -> None:
        for _ in range(times):
            for stage, ways in parts:
                add(stage, *ways)

    # warm-up: the V fills from its one end to the other
    repeat(2 * (ranks - rank) - 1, (down, (_F,)))
    repeat(rank, (up, (_F,)), (down, (_F,)))
    repeat(ranks - rank, (up, (_F, _I, _W)))
    # steady: both stages in turn
    while counts[up, _F] < counts[down, _F] or counts[down, _F] < enough:
        if counts[down, _F] < enough:
            add(down, _F)
        add(down, _I, _W)
        add(up, _F, _I, _W)
    # what is left, weights last
    repeat(rank, (down, (_I,)), (up, (_I,)))
    repeat(ranks - rank, (down, (_I, _W)))
    for stage in (up, down):
        repeat(counts[stage, _I] - counts[stage, _W], (stage, (_W,)))
    return actions


class _DualPipe:
    """Builds one rank's list of DualPipeV."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.down, self.up = rank, 2 * ranks - 1 - rank
        self.counts: dict[tuple[int, Pass], int] = {}
        self.waiting: deque[tuple[int, int]] = deque()
        self.list: list[Action] = []

    def actions(self, micro_batches: int) -> list[Action]:
        """Return the actions in the eight steps of DeepSeek-AI 2024."""
        rank, ranks, down, up = self.rank, self.ranks, self.down, self.up
        for _ in range(2 * (ranks - rank - 1)):
            self._add(down, _F)
        for _ in range(rank + 1):
            self._add(down, _F)
            self._add(up, _F)
        for _ in range(ranks - rank - 1):
            self._add(up, _I)
            self._weight()
            self._add(up, _F)
        for _ in range(micro_batches - 2 * ranks + rank + 1):
            self._pair(down, up)
            self._pair(up, down)
        for _ in range(ranks - rank - 1):
            self._add(up, _B)
            self._pair(up, down)
        way = self._last_backwards()
        for _ in range(ranks - rank - 1):
            self._weight()
            self._add(down, way)
        for _ in range(rank + 1):
            self._weight()
        return self.list

    def _last_backwards(self) -> Pass:
        """Split the backward passes of the last halves. Return how the later passes are done."""
        way, half = _B, (self.rank + 1) // 2
        for step in range(self.rank + 1):
            if step == half and self.rank % 2 == 1:
                way = _I
            self._add(self.up, way)
            if step == half and self.rank % 2 == 0:
                way = _I
            self._add(self.down, way)
        return way

    def _pair(self, forward: int, backward: int) -> None:
        self._add(forward, _F)
        self._add(backward, _B)

    def _add(self, stage: int, way: Pass) -> None:
        key = (stage, _F if way is _F else _I)
        micro = self.counts.get(key, 0)
        self.counts[key] = micro + 1
        self.list.append((stage, way, micro))
        if way is _I:
            self.waiting.append((stage, micro))

    def _weight(self) -> None:
        if self.waiting:
            stage, micro = self.waiting.popleft()
            self.list.append((stage, _W, micro))


@functools.lru_cache(maxsize=4096)
def in_flight(
    schedule: Schedule, *, ranks: int, stages_per_rank: int, micro_batches: int
) -> tuple[tuple[int, ...], ...]:
    """Return the number of micro-batches with live activations, by rank and its stages.

    Activations live from a forward pass until the weights' gradients exist. The result is for the
    time at which the rank has the most of them.

    Args:
        schedule: the pipeline schedule.
        ranks: number of pipeline ranks.
        stages_per_rank: stages on each rank.
        micro_batches: micro-batches in a step.
    """
    match schedule:
        case Schedule.GPIPE:
            return ((micro_batches,),) * ranks
        case Schedule.ONE_F_ONE_B:
            return tuple((min(micro_batches, ranks - rank),) for rank in range(ranks))
        case Schedule.INTERLEAVED | Schedule.ZERO_BUBBLE:
            zero_bubble = schedule is Schedule.ZERO_BUBBLE
            loop = _Loop(ranks, stages_per_rank, micro_batches, zero_bubble=zero_bubble)
            return tuple(map(loop.most_alive, range(ranks)))
        case _:
            pass
    # of a long run the beginning has them all
    count = micro_batches
    if count > 3 * ranks:
        count = 2 * ranks + count % ranks if count % ranks else 2 * ranks
    if schedule is Schedule.DUAL_PIPE_V:
        count = max(count, 2 * ranks)
    actions = order(schedule, ranks=ranks, stages_per_rank=stages_per_rank, micro_batches=count)
    result: list[tuple[int, ...]] = []
    for own in actions:
        alive = dict.fromkeys(sorted({stage for stage, _, _ in own}), 0)
        most, total, held = tuple(alive.values()), 0, 0
        for stage, way, _ in own:
            if way is _F:
                alive[stage] += 1
                held += 1
                if held > total:
                    most, total = tuple(alive.values()), held
            elif way is not _I:
                alive[stage] -= 1
                held -= 1
        result.append(most)
    return tuple(result)
