"""No bound of the search is above the time of what lies below it, whatever is drawn."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from drumline_contract import StepPart
from drumline_contract.config import MODEL_PRESETS, LoraConfig, ModelConfig, Schedule
from drumline_contract.hardware import GPU_MODELS, LINKS
from drumline_planner.bounds import OuterBounds, of_kind
from drumline_planner.calibration import calibrated
from drumline_planner.constants import CALIBRATED
from drumline_planner.network import Topology, Wiring, cluster_of
from drumline_planner.search import Planned, evaluate, search
from drumline_planner.space import (
    Choice,
    Goal,
    Outer,
    Scheduled,
    inner_choices,
    outer_choices,
    scheduled_choices,
    sparing,
)
from drumline_planner.step_time import PipelineOrder

from .clusters import SMALL, goal

EVERYTHING = 1 << 62
MODELS = (
    SMALL,
    replace(SMALL, layers=12, tied_embeddings=True),
    replace(SMALL, layers=20, vocab_size=256_000),
    MODEL_PRESETS["toy-moe"],
    MODEL_PRESETS["llama-8b"],
)


def drawn_goal(draw: random.Random, *, most_gpus: int = 64) -> Goal:
    """Of a random model on a random cluster, with constants as a pool may have measured them."""
    gpus = draw.choice([n for n in (2, 4, 6, 8, 16, 24, 64) if n <= most_gpus])
    model: ModelConfig = draw.choice(MODELS)
    of = goal(gpus, batch=gpus * draw.choice([1, 2, 4]), model=model, sequence=4096)
    lora = LoraConfig() if draw.random() < 0.2 and not model.experts else None
    config = replace(of.config, fp8=lora is None and draw.random() < 0.2, lora=lora)
    factors = {part: draw.choice([0.25, 0.5, 1.0, 2.0, 4.0]) for part in StepPart}
    on = cluster_of(
        draw.choice([GPU_MODELS["A100-40GB"], GPU_MODELS["H100"]]),
        gpus=gpus,
        network=draw.choice(list(LINKS.values())),
        wiring=Wiring(topology=draw.choice(list(Topology)), group=8, oversubscription=3),
    )
    return replace(
        of,
        config=config,
        cluster=on,
        constants=draw.choice([CALIBRATED, calibrated(CALIBRATED, factors)]),
        host_activations=draw.random() < 0.5,
        max_micro_batch=draw.choice([1, 2, 4]),
    )


def drawn_choice(draw: random.Random, of: Goal) -> Choice:
    outer = draw.choice(list(outer_choices(of)))
    while draw.random() < 0.3 and (less := list(sparing(of, outer))):
        outer = draw.choice(less)
    scheduled = draw.choice(list(scheduled_choices(of, outer)))
    return draw.choice(list(inner_choices(of, scheduled)))


@pytest.mark.parametrize("seed", range(10))
def test_no_bound_is_above_the_time_of_what_lies_below_it(seed: int) -> None:
    draw, compared = random.Random(seed), 0
    for _ in range(5):
        of = drawn_goal(draw)
        bounds = OuterBounds(goal=of, allowed=EVERYTHING)
        for choice in (drawn_choice(draw, of) for _ in range(12)):
            planned = evaluate(of, choice, capacity=EVERYTHING)
            if not isinstance(planned, Planned):
                continue
            compared += 1
            scheduled = Scheduled(
                outer=choice.outer,
                schedule=choice.schedule,
                stages_per_rank=choice.stages_per_rank,
            )
            order = PipelineOrder.of(planned.setup, of.cluster, constants=of.constants)
            rest = order.seconds_after(of_kind(planned.setup, choice))
            outer = bounds.of(choice.outer)
            assert outer is not None
            seconds = planned.time.seconds * (1 + 1e-12)
            assert outer <= seconds
            assert bounds.ramp(scheduled) <= seconds
            assert order.least_seconds() <= order.seconds() * (1 + 1e-12)
            assert order.seconds() + rest <= seconds
            if not planned.setup.sharded and of.constants is CALIBRATED:  # no gathers: exact
                assert order.seconds() + rest == pytest.approx(seconds)
    assert compared > 10


@pytest.mark.parametrize("seed", range(3))
def test_drawn_searches_find_what_trying_everything_finds(seed: int) -> None:
    """Small cases of all kinds: the best six times of the search are those of all choices."""
    draw = random.Random(seed)
    of = replace(drawn_goal(draw, most_gpus=4), max_micro_batch=2)
    everything: set[tuple[float, float, Outer, Schedule, int]] = set()
    waiting = [
        choice
        for outer in outer_choices(of)
        for scheduled in scheduled_choices(of, outer)
        for choice in inner_choices(of, scheduled)
    ]
    while waiting:
        choice = waiting.pop()
        result = evaluate(of, choice)
        if isinstance(result, Planned):
            order = (choice.outer, choice.schedule, choice.stages_per_rank)
            everything.add((result.time.seconds, result.bill.total, *order))
        elif result.reason.startswith("memory"):
            waiting += [replace(choice, outer=outer) for outer in sparing(of, choice.outer)]
    best = sorted(seconds for seconds, *_ in everything)[:6]
    assert [each.time.seconds for each in search(of, best=6).planned] == pytest.approx(best)
