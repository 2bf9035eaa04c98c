"""A schedule's order of work, replayed: which micro-batches it can do and how long ranks idle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from torch.distributed.pipelining import PipelineStage

from drumline_contract.config import Schedule
from drumline_contract.layout import Layout
from drumline_trainer.parallelism.pipeline_parallel.pipeline import build_schedule

FORWARD, BACKWARD = "FORWARD", "FULL_BACKWARD"
INPUT, WEIGHT = "BACKWARD_INPUT", "BACKWARD_WEIGHT"
SECONDS = {FORWARD: 1, BACKWARD: 2, INPUT: 1, WEIGHT: 1}
Work = tuple[str, int, int]
"""What, for which stage, for which micro-batch."""


def layout_of(schedule: Schedule, ranks: int, *, per_rank: int | None = None) -> Layout:
    stages = per_rank or (2 if schedule.interleaves else 1)
    return Layout(pipeline=ranks, schedule=schedule, stages_per_rank=stages)


def pipeline_order(layout: Layout, *, micro_batches: int) -> dict[int, list[Work]]:
    """What each rank does in turn, as torch's schedule says; ValueError where it refuses."""
    rank = 0
    stages = [
        cast(
            "PipelineStage",
            SimpleNamespace(
                stage_index=number,
                num_stages=layout.stages,
                group_size=layout.pipeline,
                group_rank=rank,
                submod=SimpleNamespace(modules=list),
            ),
        )
        for number in layout.stages_of(rank)
    ]
    made = build_schedule(layout.schedule, stages, micro_batches=micro_batches, loss=None)
    if layout.schedule is Schedule.ONE_F_ONE_B:
        return {rank: _one_f_one_b(layout, rank, micro_batches) for rank in range(layout.pipeline)}
    return {rank: list(_work(actions)) for rank, actions in made.pipeline_order.items()}


@dataclass(kw_only=True)
class Replay:
    """All ranks working at once, each in its own order."""

    layout: Layout
    order: dict[int, list[Work]]
    ended: dict[Work, int] = field(default_factory=dict[Work, int])
    """When each piece of work was done."""

    def run(self) -> int:
        """When the last rank is done; RuntimeError where all wait for each other."""
        clocks = dict.fromkeys(self.order, 0)
        left = {rank: list(works) for rank, works in self.order.items()}
        while any(left.values()):
            ready = [r for r, works in left.items() if works and self._ready(works[0])]
            if not ready:
                raise RuntimeError(f"all wait: {[works[:1] for works in left.values()]}")
            for rank in ready:
                work = left[rank].pop(0)
                began = max([clocks[rank], *(self.ended[need] for need in self._needs(work))])
                clocks[rank] = self.ended[work] = began + SECONDS[work[0]]
                if work[0] == BACKWARD:
                    self.ended[INPUT, *work[1:]] = clocks[rank]
        return max(clocks.values())

    def bubble(self) -> float:
        """Idle over busy seconds, on average over the ranks."""
        busy = sum(SECONDS[what] for works in self.order.values() for what, *_ in works)
        return self.run() * len(self.order) / busy - 1

    def _ready(self, work: Work) -> bool:
        return all(need in self.ended for need in self._needs(work))

    def _needs(self, work: Work) -> Iterator[Work]:
        what, stage, number = work
        if what == FORWARD and stage > 0:
            yield (FORWARD, stage - 1, number)
        if what in (BACKWARD, INPUT):
            yield (FORWARD, stage, number)
            if stage < self.layout.stages - 1:
                yield (INPUT, stage + 1, number)
        if what == WEIGHT:
            yield (INPUT, stage, number)


def _work(actions: list[Any]) -> Iterator[Work]:
    for action in actions:
        parts = (getattr(action, "sub_actions", None) or (action,)) if action else ()
        for part in parts:
            if part.computation_type.name in SECONDS:
                yield (part.computation_type.name, part.stage_index, part.microbatch_index)


def _one_f_one_b(layout: Layout, rank: int, micro_batches: int) -> list[Work]:
    """What torch runs; what it draws leaves out the last rank's first forward."""
    ahead = min(micro_batches, layout.pipeline - rank)
    forwards = [(FORWARD, rank, number) for number in range(micro_batches)]
    backwards = [(BACKWARD, rank, number) for number in range(micro_batches)]
    turns = itertools.zip_longest(backwards, forwards[ahead:])
    return forwards[:ahead] + [work for pair in turns for work in pair if work]
