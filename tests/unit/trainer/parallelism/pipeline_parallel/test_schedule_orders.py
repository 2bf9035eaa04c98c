"""What is known of schedules before a run agrees with the orders torch makes."""

from __future__ import annotations

from fractions import Fraction

import pytest

from drumline_contract.config import Schedule
from drumline_contract.layout_validation import violations
from tests.unit.trainer.layout_matrix import config
from tests.unit.trainer.parallelism.pipeline_parallel.schedule_orders import (
    FORWARD,
    Replay,
    layout_of,
    pipeline_order,
)

SCHEDULES = [
    (schedule, ranks, per_rank)
    for schedule in Schedule
    for ranks in (2, 4)
    for per_rank in ((1,) if not schedule.interleaves else (2,) if schedule.is_v_shaped else (2, 3))
]
EVERY = pytest.mark.parametrize(("schedule", "ranks", "per_rank"), SCHEDULES)


def possible(schedule: Schedule, ranks: int, per_rank: int) -> list[int]:
    """Numbers of micro-batches that torch takes, and all ranks come to an end with."""
    layout = layout_of(schedule, ranks, per_rank=per_rank)
    results: list[int] = []
    for number in range(1, 13):
        try:
            order = pipeline_order(layout, micro_batches=number)
        except ValueError:
            continue
        Replay(layout=layout, order=order).run()
        forwards = sum(what == FORWARD for works in order.values() for what, *_ in works)
        assert forwards == number * layout.stages
        results.append(number)
    return results


def legal(schedule: Schedule, ranks: int, per_rank: int) -> list[int]:
    """Numbers of micro-batches that nothing speaks against."""
    parallelism = {"pipeline": ranks, "schedule": schedule, "stages_per_rank": per_rank}
    return [
        number
        for number in range(1, 13)
        if not violations(
            config(
                parallelism=parallelism,
                model={"layers": 12},
                global_batch_size=number,
                micro_batch_size=1,
            ),
            world_size=ranks,
        )
    ]


@EVERY
def test_legal_numbers_of_micro_batches_are_those_that_torch_takes(
    schedule: Schedule, ranks: int, per_rank: int
) -> None:
    assert possible(schedule, ranks, per_rank) == legal(schedule, ranks, per_rank)


@EVERY
def test_idle_time_is_that_of_the_formula(schedule: Schedule, ranks: int, per_rank: int) -> None:
    micro_batches = 2 * ranks
    layout = layout_of(schedule, ranks, per_rank=per_rank)
    share = {
        Schedule.GPIPE: Fraction(1),
        Schedule.ONE_F_ONE_B: Fraction(1),
        Schedule.INTERLEAVED: Fraction(1, per_rank),
        Schedule.ZERO_BUBBLE: Fraction(1, 3 * per_rank),
        Schedule.ZBV: Fraction(1, 6),
        Schedule.DUAL_PIPE_V: Fraction(1, 6),
    }[schedule]
    order = pipeline_order(layout, micro_batches=micro_batches)
    bubble = Replay(layout=layout, order=order).bubble()
    assert bubble == pytest.approx(float((ranks - 1) * share / micro_batches))
