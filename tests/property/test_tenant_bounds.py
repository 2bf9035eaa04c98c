"""Steps of a cycle with each field of a job at its largest value, alone and in pairs."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from drumline.controller.state.cluster import ClusterCache
from drumline.kube import codec
from drumline.lifecycle.plan.acceptance import refusal_of
from drumline_api.trainingjob import TrainingJobSpec
from drumline_scheduler import (
    BlockReason,
    CycleCache,
    CycleInput,
    Decisions,
    Policy,
    WaitingRule,
    decide,
)
from drumline_scheduler.queueing.deferral import TRY_BUDGET
from drumline_scheduler.work import Work
from tests.property.hostile_objects import kinds
from tests.property.scale import many
from tests.property.tenant_bounds import (
    AT_BOUNDS,
    GATED_AT_BOUNDS,
    LEAST_IS_WORST,
    NOT_FOR_THE_SCHEDULER,
    NOW,
    ROLE_FIELDS_OF_PODS,
    add_gated_pod,
    add_job,
    bounds_of,
    cluster,
    counted_lines,
    drawn,
    metadata,
    node_view,
    raw,
    spec_of,
)
from tests.seeds import seed_of

MOST_LINES = 100_000
"""Largest number of lines in a cycle with one job on 32 nodes. An ordinary job takes 17,000."""
MOST_STEPS = 2_000_000
"""Largest number of steps of a cycle on 32 nodes that differ, with roles searched exactly."""
PAIRS = list(combinations(AT_BOUNDS, 2))
SOME_PAIRS = Random(seed_of("HOSTILE_SEED")).sample(PAIRS, many(12, len(PAIRS)))


def decided(
    state: ClusterCache,
    work: Work,
    *,
    waiting: WaitingRule = WaitingRule.BEST_EFFORT,
    budget: int | None = None,
    cache: CycleCache | None = None,
) -> Decisions:
    cycle = CycleInput(
        snapshot=state.scheduling.snapshot(now=NOW),
        pending=tuple(state.scheduling.pending()),
        policy=Policy(waiting=waiting),
        now=NOW,
        try_budget=budget,
    )
    return decide(cycle, work=work, cache=cache)


def check(
    fields: tuple[str, ...], *, jobs: int, waiting: WaitingRule = WaitingRule.BEST_EFFORT
) -> None:
    """Hostile jobs, and a modest one of another namespace behind them, which is tried as well.

    The steps of the cycle do not depend on the number of hostile jobs.
    """
    state = cluster(nodes=32)
    for number in range(jobs):
        changes = [AT_BOUNDS[name] for name in fields]
        add_job(state, f"hostile-{number}", *changes, number=number)
    add_job(state, "modest", number=999, namespace="other")
    work = Work()
    decisions = decided(state, work, waiting=waiting, budget=TRY_BUDGET)
    assert not decisions.faults
    assert work.steps <= MOST_STEPS, work.steps
    answered = {each.key for each in (*decisions.placed, *decisions.blocked)}
    first = state.jobs.get("team/hostile-0")
    assert first is not None
    assert refusal_of(first) is not None or "team/hostile-0" in answered
    waits = {each.key for each in decisions.blocked if each.reason is BlockReason.NOT_TRIED}
    assert "other/modest" in answered - waits


@pytest.mark.parametrize("jobs", [1, 10, pytest.param(100, marks=pytest.mark.extended(keep=2))])
@pytest.mark.parametrize("name", AT_BOUNDS)
def test_a_field_at_its_bound_costs_a_bounded_number_of_steps(name: str, jobs: int) -> None:
    check((name,), jobs=jobs)


@pytest.mark.parametrize("jobs", [1, 10, pytest.param(100, marks=pytest.mark.extended(keep=1))])
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
    named = {name.partition(".")[0].partition(",")[0] for name in AT_BOUNDS}
    assert fields <= named | NOT_FOR_THE_SCHEDULER


def test_each_number_list_and_map_that_the_scheduler_reads_is_drawn_at_its_bound() -> None:
    """A new field of the CRD fails here until it is drawn."""
    missing: list[str] = []
    for path, bound in bounds_of(kinds()["TrainingJob"]["properties"]["spec"]):
        field, _, inside = path.replace("[]", "").partition(".")
        if field in NOT_FOR_THE_SCHEDULER or (
            field == "roles" and inside.partition(".")[0] in ROLE_FIELDS_OF_PODS
        ):
            continue
        largest = max(drawn(spec_of(change), path) for change in AT_BOUNDS.values())
        if bound is None or (largest < bound and path not in LEAST_IS_WORST):
            missing.append(f"{path}: drawn up to {largest}, bound {bound}")
    assert not missing


@pytest.mark.parametrize("kind", kinds())
def test_each_list_and_number_of_the_resources_has_a_bound(kind: str) -> None:
    spec = kinds()[kind]["properties"]["spec"]
    assert not [path for path, bound in bounds_of(spec) if bound is None]


def test_each_field_of_a_job_has_a_row_in_the_table_of_bounds() -> None:
    page = Path("docs/security.md").read_text()
    table = page.partition("## Bounds on what a tenant writes")[2]
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
    fields = {field.alias or name for name, field in TrainingJobSpec.model_fields.items()}
    assert fields <= named


def test_another_quota_and_another_class_convert_no_waiting_gang_again() -> None:
    """An event of one object costs the same, however much tenants have written."""
    state = cluster(nodes=4)
    for number in range(20):
        add_gated_pod(state, f"pod-{number}", "tolerations")
        add_job(state, f"job-{number}", AT_BOUNDS["tolerations"], number=number)
    before = state.scheduling.pending()
    quota = {"quotas": [{"gpuPool": "h", "nominalGpus": 1}]}
    state.on_queue(None, codec.custom_object(raw({"metadata": metadata("q"), "spec": quota})))
    other = {"metadata": metadata("other"), "value": 5}
    state.on_priority_class(None, codec.priority_class(raw(other)))
    with counted_lines(6_000):
        after = state.scheduling.pending()
    assert list(map(id, after)) == list(map(id, before))


def test_lost_nodes_cost_the_same_however_many_kinds_were_searched_for_before() -> None:
    """Capacities of earlier cycles are kept. Only those that are used again are counted again."""
    state, cache = cluster(nodes=32), CycleCache()
    jobs = [
        add_job(state, f"job-{number}", AT_BOUNDS["roles, just exact"], number=number)
        for number in range(40)
    ]
    decided(state, Work(), cache=cache)
    for job in jobs[1:]:
        state.on_job(job, None)
    decided(state, Work(), cache=cache)
    for index in range(0, 32, 2):
        ready, lost = (
            node_view(index, nodes=32, pool="h", changes={"ready": is_ready})
            for is_ready in (True, False)
        )
        state.nodes.on_node(ready, lost)
    given = CycleInput(
        snapshot=state.scheduling.snapshot(now=NOW),
        pending=tuple(state.scheduling.pending()),
        policy=Policy(),
        now=NOW,
    )
    with counted_lines(MOST_LINES) as lines:
        decisions = decide(given, cache=cache)
    assert lines.count > 0
    assert decisions == decide(given)
