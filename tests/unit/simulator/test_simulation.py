from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_scheduler import (
    CycleInput,
    Decisions,
    Policy,
    PreemptionRule,
    Queue,
    WaitingRule,
    WithinQueue,
    decide,
)
from drumline_simulator.engine.simulation import Simulation, SimulationProgress, simulate
from drumline_simulator.results.outcome import Allocation, Outcome
from drumline_simulator.workload import Arrival, Execution, Outage
from tests.unit.simulator.clusters import PROMPT, a_cluster, a_job

RULE = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY)


def run(*jobs: Arrival, nodes: int = 1, **more: Any) -> Outcome:
    given: dict[str, Any] = {
        "cluster": a_cluster(nodes=nodes),
        "policy": Policy(),
        "execution": PROMPT,
        **more,
    }
    return simulate(arrivals=jobs, **given)


def times(outcome: Outcome) -> dict[str, tuple[float | None, float | None]]:
    return {job.uid: (job.started_at, job.ended_at) for job in outcome.jobs}


def test_a_job_without_free_gpus_starts_when_the_job_before_it_ends() -> None:
    outcome = run(a_job("a", seconds=10), a_job("b", at=3, seconds=5))
    assert times(outcome) == {"a": (0, 10), "b": (10, 15)}
    assert [job.waited_seconds(15) for job in outcome.jobs] == [0, 7]
    assert outcome.allocations == (
        Allocation(job=0, begins_at=0, ends_at=10, gpus=8, nodes=("n0",)),
        Allocation(job=1, begins_at=10, ends_at=15, gpus=8, nodes=("n0",)),
    )
    assert (outcome.gpus, outcome.began_at, outcome.ended_at) == (8, 0, 15)


def test_events_of_the_same_time_share_a_cycle() -> None:
    outcome = run(a_job("a"), a_job("b"), a_job("c", at=10, seconds=1), nodes=2)
    assert outcome.cycles == 2


def test_strict_queueing_holds_back_a_job_that_best_effort_starts() -> None:
    jobs = [a_job("a", gpus=6), a_job("big", at=1, gpus=4), a_job("small", at=2, gpus=2)]
    assert times(run(*jobs))["small"] == (2, 12)
    strict = run(*jobs, policy=Policy(waiting=WaitingRule.STRICT))
    assert times(strict)["small"] == (10, 20)


def test_a_branch_has_another_future_and_the_same_past() -> None:
    jobs = [a_job("a", seconds=10), a_job("b", at=1, seconds=5), a_job("c", at=8, seconds=5)]
    whole = Simulation(cluster=a_cluster(nodes=1), arrivals=jobs, policy=Policy(), execution=PROMPT)
    whole.run(until=4)
    assert whole.work_done() == {"a": 4, "b": 0}
    same = whole.branch(seconds={"a": 10, "b": 5}, later=jobs[2:])
    other = whole.branch(seconds={"a": 6, "b": 3}, later=[a_job("d", at=5), a_job("e", at=30)])
    for each in (other, same, whole):
        each.run()
    assert times(same.outcome(None)) == times(whole.outcome(None)) == times(run(*jobs))
    assert times(other.outcome(None)) == {"a": (0, 6), "b": (6, 9), "d": (9, 19), "e": (30, 40)}


def test_a_branch_continues_evictions() -> None:
    """A preempted job that is about to leave starts again with the rest of its other run time."""
    saves = replace(PROMPT, save_seconds=4)
    queue = Queue(name="q", nominal={"p": 8}, preemption=RULE)
    jobs = [a_job("low", seconds=20), a_job("high", at=10, seconds=5, priority=1)]
    whole = Simulation(
        arrivals=jobs,
        cluster=a_cluster(nodes=1, queues=(queue,)),
        policy=Policy(),
        execution=saves,
    )
    whole.run(until=12)
    other = whole.branch(seconds={"low": 11, "high": 2}, later=[])
    other.run()
    assert times(other.outcome(None)) == {"low": (0, 17), "high": (14, 16)}


def test_settling_and_the_period_delay_the_cycles() -> None:
    late = replace(PROMPT, settle_seconds=2, period_seconds=5)
    outcome = run(a_job("a", at=0), a_job("b", at=3), nodes=2, execution=late)
    assert times(outcome) == {"a": (2, 12), "b": (7, 17)}


def test_a_job_is_ended_at_its_maximum_runtime() -> None:
    assert times(run(a_job("a", seconds=10, max_runtime_seconds=4)))["a"] == (0, 4)


def test_a_job_that_can_never_start_has_no_start_and_no_end() -> None:
    outcome = run(a_job("whale", gpus=9), a_job("a", seconds=5))
    assert times(outcome) == {"a": (0, 5), "whale": (None, None)}
    assert {job.uid: job.waited_seconds(outcome.ended_at) for job in outcome.jobs}["whale"] == 5


def preempted(execution: Execution) -> Outcome:
    cluster = a_cluster(nodes=1, queues=(Queue(name="q", nominal={"p": 8}, preemption=RULE),))
    high = a_job("high", at=250, seconds=50, priority=1)
    return run(a_job("low", seconds=400), high, cluster=cluster, execution=execution)


def test_a_killed_job_does_again_what_it_did_since_its_last_checkpoint() -> None:
    outcome = preempted(PROMPT)
    assert times(outcome) == {"low": (0, 500), "high": (250, 300)}
    low = outcome.jobs[0]
    assert (low.preempted, low.lost_gpu_seconds, low.held_seconds) == (1, 50 * 8, 450)
    assert [(gone.at, gone.key, gone.victims, gone.gpus) for gone in outcome.evictions] == [
        (250, "team/high", ("team/low",), 8)
    ]


def test_a_job_that_may_save_loses_nothing_but_holds_its_slots_meanwhile() -> None:
    outcome = preempted(Execution(save_seconds=30, checkpoint_seconds=100, restart_seconds=20))
    assert times(outcome) == {"low": (0, 330 + 20 + 150), "high": (280, 330)}
    assert outcome.jobs[0].lost_gpu_seconds == 0


def test_a_killed_job_holds_its_slots_until_it_is_gone_and_saves_nothing() -> None:
    outcome = preempted(replace(PROMPT, leave_seconds=7))
    assert times(outcome) == {"low": (0, 507), "high": (257, 307)}
    assert (outcome.jobs[0].lost_gpu_seconds, outcome.jobs[0].held_seconds) == (50 * 8, 457)


def test_a_job_that_leaves_is_charged_until_it_is_gone_though_a_node_is_free() -> None:
    cluster = a_cluster(nodes=2, queues=(Queue(name="q", nominal={"p": 8}, preemption=RULE),))
    high = a_job("high", at=250, seconds=50, priority=1)
    slow = Execution(save_seconds=30, checkpoint_seconds=100, restart_seconds=20)
    outcome = run(a_job("low", seconds=400), high, cluster=cluster, execution=slow)
    assert times(outcome)["high"] == (280, 330)


def test_a_resumed_job_has_the_rest_of_its_maximum_runtime() -> None:
    cluster = a_cluster(nodes=1, queues=(Queue(name="q", nominal={"p": 8}, preemption=RULE),))
    low = a_job("low", seconds=400, max_runtime_seconds=300)
    high = a_job("high", at=200, seconds=50, priority=1)
    assert times(run(low, high, cluster=cluster))["low"] == (0, 350)


def test_an_elastic_job_runs_slower_with_fewer_pods_and_grows_when_it_can() -> None:
    elastic = a_job("elastic", seconds=100, nodes=2, sizes=(1, 2))
    outcome = run(a_job("a", seconds=40), elastic, nodes=2)
    assert times(outcome)["elastic"] == (0, 40 + 80)
    assert outcome.resized == 1


def test_a_job_on_a_node_that_fails_goes_on_elsewhere_from_its_checkpoint() -> None:
    failing = Outage(node="n0", at=150, seconds=1000)
    outcome = run(a_job("a", seconds=200), nodes=2, outages=[failing])
    assert times(outcome)["a"] == (0, 250)
    assert [allocation.nodes for allocation in outcome.allocations] == [("n0",), ("n1",)]
    assert outcome.jobs[0].lost_gpu_seconds == 50 * 8


def test_a_broken_job_without_a_spare_waits_until_its_node_is_back() -> None:
    outcome = run(a_job("a", seconds=200), outages=[Outage(node="n0", at=150, seconds=70)])
    assert times(outcome)["a"] == (0, 320)


def test_progress_is_reported_after_every_cycle() -> None:
    reports: list[SimulationProgress] = []
    outcome = run(a_job("a"), a_job("b", at=3), watch=reports.append)
    assert len(reports) == outcome.cycles
    assert reports[1] == SimulationProgress(
        now=3, submitted=2, ended=0, waiting=1, running=1, jobs=2
    )


def test_the_order_of_the_jobs_changes_nothing() -> None:
    jobs = [a_job(f"j{i}", at=i % 3, seconds=5 + i % 4, gpus=1 + i % 8) for i in range(30)]
    assert run(*jobs, nodes=2) == run(*reversed(jobs), nodes=2)


def test_inconsistent_input_is_rejected() -> None:
    with pytest.raises(ValueError, match="the same uid"):
        run(a_job("a"), a_job("a"))
    with pytest.raises(ValueError, match="node n7"):
        run(a_job("a"), outages=[Outage(node="n7", at=0, seconds=1)])
    with pytest.raises(ValueError, match="duration"):
        a_job("a", seconds=float("inf"))


def test_the_work_at_risk_is_updated_with_each_minute_of_the_clock() -> None:
    """A gang that has just started looks free of cost until then, as in the operator."""
    at_risk: dict[float, float] = {}

    def watched(cycle: CycleInput) -> Decisions:
        held = {each.gang.uid: each.gpu_seconds_at_risk for each in cycle.snapshot.admitted}
        at_risk[cycle.now] = held.get("a", 0.0)
        return decide(cycle)

    queue = Queue(name="q", nominal={"p": 8}, preemption=RULE)
    marks = [a_job(f"at-{at}", at=at, seconds=1) for at in (55, 65, 70, 125)]
    run(
        a_job("a", at=50, seconds=100),
        *marks,
        cluster=a_cluster(nodes=1, queues=(queue,)),
        decider=watched,
        execution=replace(PROMPT, checkpoint_seconds=1000),
    )
    assert {at: at_risk[at] for at in (55, 65, 70, 125)} == {
        55: 0.0,
        65: 8 * 15.0,
        70: 8 * 15.0,
        125: 8 * 75.0,
    }
