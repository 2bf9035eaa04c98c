"""The orders are torch's, and walking them gives the bubbles that are known."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed.pipelining.schedules as theirs

from drumline_contract.config import Schedule
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import min_micro_batches
from drumline_contract.shapes.partition import StageCosts, partition
from drumline_planner.pipeline_schedules import Action, Pass, in_flight, order
from drumline_planner.replay import StageSeconds, pipeline_seconds, replayed

PASSES = {
    "FORWARD": Pass.FORWARD,
    "FULL_BACKWARD": Pass.BACKWARD,
    "BACKWARD_INPUT": Pass.INPUT,
    "BACKWARD_WEIGHT": Pass.WEIGHT,
}
CLASSES = {
    Schedule.GPIPE: theirs.ScheduleGPipe,
    Schedule.ONE_F_ONE_B: theirs.Schedule1F1B,
    Schedule.INTERLEAVED: theirs.ScheduleInterleaved1F1B,
    Schedule.ZERO_BUBBLE: theirs.ScheduleInterleavedZeroBubble,
    Schedule.ZBV: theirs.ScheduleZBVZeroBubble,
    Schedule.DUAL_PIPE_V: theirs.ScheduleDualPipeV,
}
EVEN = StageSeconds(forward=1.0, input=1.0, weight=1.0)


def stages_of(schedule: Schedule) -> list[int]:
    if not schedule.interleaves:
        return [1]
    return [2] if schedule.is_v_shaped else [2, 3, 4]


def torch_s(schedule: Schedule, *, ranks: int, stages: int, micro_batches: int) -> Any:
    """Their lists, from an object that has only what makes them: no process group."""
    rounds = max(1, micro_batches // ranks)
    made = SimpleNamespace(
        _n_microbatches=micro_batches,
        pp_group_size=ranks,
        n_local_stages=stages,
        _num_stages=ranks * stages,
        num_stages=ranks * stages,
        number_of_rounds=rounds,
        microbatches_per_round=micro_batches // rounds,
    )
    if schedule.interleaves:
        single: Any = CLASSES[schedule]._calculate_single_rank_operations
        return [plain(single(made, rank)) for rank in range(ranks)]
    whole: Any = CLASSES[schedule]._get_pipeline_order
    lists = whole(made)
    return [plain(lists[rank]) for rank in range(ranks)]


def plain(actions: Any) -> list[Action]:
    return [
        (part.stage_index, PASSES[part.computation_type.name], part.microbatch_index)
        for action in actions
        if action is not None
        for part in (action.sub_actions or (action,))
        if part.computation_type.name in PASSES
    ]


@pytest.mark.parametrize("schedule", Schedule)
def test_the_orders_are_torch_s(schedule: Schedule) -> None:
    compared = 0
    for ranks in (2, 3, 4, 8):
        for stages in stages_of(schedule):
            layout = Layout(pipeline=ranks, schedule=schedule, stages_per_rank=stages)
            for count in range(min_micro_batches(layout), 5 * ranks + 1):
                if count % max(1, count // ranks) and schedule.interleaves:
                    continue  # refused by layout_validation, or not cut into rounds
                want = torch_s(schedule, ranks=ranks, stages=stages, micro_batches=count)
                have = order(schedule, ranks=ranks, stages_per_rank=stages, micro_batches=count)
                if schedule is Schedule.ONE_F_ONE_B:
                    # torch's list (not its step) numbers the last rank's forwards from 1
                    want[-1] = [(s, way, m - (way is Pass.FORWARD)) for s, way, m in want[-1]]
                assert list(map(list, have)) == want
                compared += 1
    assert compared >= 25


@pytest.mark.parametrize(
    ("schedule", "stages", "bubble"),
    [
        (Schedule.GPIPE, 1, lambda p, m: (p - 1) / m),
        (Schedule.ONE_F_ONE_B, 1, lambda p, m: (p - 1) / m),
        (Schedule.INTERLEAVED, 2, lambda p, m: (p - 1) / (2 * m)),
        (Schedule.INTERLEAVED, 4, lambda p, m: (p - 1) / (4 * m)),
        (Schedule.ZBV, 2, lambda p, m: (p - 1) / (6 * m)),
    ],
)
def test_bubbles_of_equal_stages_are_those_of_the_literature(
    schedule: Schedule, stages: int, bubble: Any
) -> None:
    for ranks, count in ((2, 8), (4, 16), (8, 32)):
        costs = [EVEN] * (ranks * stages)
        actions = order(schedule, ranks=ranks, stages_per_rank=stages, micro_batches=count)
        seconds = replayed(actions, costs).seconds
        ideal = 3.0 * stages * count
        assert seconds / ideal - 1 == pytest.approx(bubble(ranks, count))


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize("even", [True, False])
def test_a_long_run_goes_on_as_it_went(schedule: Schedule, *, even: bool) -> None:
    """As the trainer shares layers out, and with stages of any cost."""
    draw = random.Random(3)
    for _ in range(12):
        ranks, stages = draw.choice([2, 4, 6]), draw.choice(stages_of(schedule))
        count, number = ranks * draw.randint(5, 20), ranks * stages
        layers = draw.randint(number, 4 * number)
        head = draw.choice([0.0, 0.5, 2.0])
        shared = partition(StageCosts(layers=(1.0,) * layers, head=head), stages=number)
        sizes = [len(own) if even else draw.choice([3, 4]) for own in shared]
        costs = [StageSeconds(forward=n, input=1.2 * n, weight=n) for n in sizes]
        last = sizes[-1] + head
        costs[-1] = StageSeconds(forward=last, input=1.2 * last, weight=last)
        actions = order(schedule, ranks=ranks, stages_per_rank=stages, micro_batches=count)
        whole = replayed(actions, costs)
        quick = pipeline_seconds(schedule, tuple(costs), ranks=ranks, micro_batches=count)
        assert quick.seconds == pytest.approx(whole.seconds, rel=1e-9 if even else 0.005)
        assert quick.busy == pytest.approx(whole.busy)


def most_alive(actions: tuple[Action, ...]) -> tuple[int, ...]:
    """Micro-batches alive by stage, when all of them are most for the first time."""
    alive = dict.fromkeys(sorted({stage for stage, _, _ in actions}), 0)
    moments = [tuple(alive.values())]
    for stage, way, _ in actions:
        alive[stage] += {Pass.FORWARD: 1, Pass.INPUT: 0}.get(way, -1)
        moments.append(tuple(alive.values()))
    return max(moments, key=sum)


@pytest.mark.parametrize("schedule", Schedule)
def test_micro_batches_in_flight_are_counted_in_the_order(schedule: Schedule) -> None:
    """Where they follow from a formula, too, or from the beginning of a long run."""
    for ranks in (2, 3, 4, 7):
        for stages in stages_of(schedule):
            for count in (2 * ranks, 3 * ranks, 8 * ranks):
                actions = order(schedule, ranks=ranks, stages_per_rank=stages, micro_batches=count)
                have = in_flight(schedule, ranks=ranks, stages_per_rank=stages, micro_batches=count)
                assert have == tuple(map(most_alive, actions))


def test_an_order_that_waits_for_itself_is_refused() -> None:
    never = (((0, Pass.BACKWARD, 0), (0, Pass.FORWARD, 0)),)
    with pytest.raises(ValueError, match="has a cycle"):
        replayed(never, [EVEN])
