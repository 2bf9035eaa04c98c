"""Steps of a cycle with each field of a job at its largest value, alone and in pairs."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from drumline.controller.state.cluster import ClusterCache
from drumline.lifecycle.plan.acceptance import refusal_of
from drumline_api.trainingjob import TrainingJobSpec
from drumline_scheduler import CycleInput, Decisions, Policy, WaitingRule, decide
from drumline_scheduler.work import Work
from tests.property.scale import many
from tests.property.tenant_bounds import (
    AT_BOUNDS,
    GATED_AT_BOUNDS,
    NOT_FOR_THE_SCHEDULER,
    NOW,
    add_gated_pod,
    add_job,
    cluster,
    counted_lines,
)
from tests.seeds import seed_of

MOST_LINES = 100_000
"""Of the cycle with one job on 32 nodes; an ordinary job takes 17,000."""
MOST_STEPS = 2_000_000
"""Of each job; 32 nodes of different kinds, and roles that are just searched for exactly."""
PAIRS = list(combinations(AT_BOUNDS, 2))
SOME_PAIRS = Random(seed_of("HOSTILE_SEED")).sample(PAIRS, many(12, len(PAIRS)))


def decided(
    state: ClusterCache, work: Work, *, waiting: WaitingRule = WaitingRule.BEST_EFFORT
) -> Decisions:
    cycle = CycleInput(
        snapshot=state.scheduling.snapshot(now=NOW),
        pending=tuple(state.scheduling.pending()),
        policy=Policy(waiting=waiting),
        now=NOW,
    )
    return decide(cycle, work=work)


def check(
    fields: tuple[str, ...], *, jobs: int, waiting: WaitingRule = WaitingRule.BEST_EFFORT
) -> None:
    """Hostile jobs, and a modest one behind them, which is decided in the same cycle."""
    state = cluster(nodes=32)
    for number in range(jobs):
        changes = [AT_BOUNDS[name] for name in fields]
        add_job(state, f"hostile-{number}", *changes, number=number)
    add_job(state, "modest", number=999)
    work = Work()
    decisions = decided(state, work, waiting=waiting)
    assert not decisions.faults
    assert work.steps <= MOST_STEPS * (jobs + 1), work.steps
    answered = {each.key for each in (*decisions.placed, *decisions.blocked)}
    first = state.jobs.get("team/hostile-0")
    assert first is not None
    assert refusal_of(first) is not None or "team/hostile-0" in answered
    assert "team/modest" in answered


@pytest.mark.parametrize("jobs", [1, 10, pytest.param(100, marks=pytest.mark.extended(keep=2))])
@pytest.mark.parametrize("name", AT_BOUNDS)
def test_a_field_at_its_bound_costs_a_bounded_number_of_steps(name: str, jobs: int) -> None:
    check((name,), jobs=jobs)


@pytest.mark.parametrize("jobs", [1, 10])
@pytest.mark.parametrize("pair", SOME_PAIRS, ids=" and ".join)
def test_two_fields_at_their_bounds_cost_a_bounded_number_of_steps(
    pair: tuple[str, str], jobs: int
) -> None:
    check(pair, jobs=jobs, waiting=WaitingRule.BACKFILL)


@pytest.mark.parametrize("name", AT_BOUNDS)
def test_a_field_at_its_bound_executes_a_bounded_number_of_lines(name: str) -> None:
    """Work that reports no steps is counted as well."""
    state = cluster(nodes=32)
    add_job(state, "hostile", AT_BOUNDS[name])
    with counted_lines(MOST_LINES) as lines:
        decided(state, Work())
    assert lines.count > 0


@pytest.mark.parametrize("name", GATED_AT_BOUNDS)
def test_a_gated_pod_at_its_bounds_executes_a_bounded_number_of_lines(name: str) -> None:
    state = cluster(nodes=32)
    add_gated_pod(state, "hostile", name)
    with counted_lines(MOST_LINES) as lines:
        decisions = decided(state, Work())
    assert lines.count > 0
    assert len(decisions.placed) + len(decisions.blocked) == 1


def test_each_field_that_the_scheduler_reads_is_drawn() -> None:
    fields = {field.alias or name for name, field in TrainingJobSpec.model_fields.items()}
    drawn = {name.partition(".")[0].partition(",")[0] for name in AT_BOUNDS}
    assert fields <= drawn | NOT_FOR_THE_SCHEDULER
