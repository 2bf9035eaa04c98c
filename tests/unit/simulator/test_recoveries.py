"""What faults, reclaims, checkpoints and boots cost, to the second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline_scheduler import Policy, Queue
from drumline_simulator.cluster import Autoscaling, PoolTerms
from drumline_simulator.engine.node_leases import NodeLeases
from drumline_simulator.engine.simulation import simulate
from drumline_simulator.results.leases import Lease
from drumline_simulator.results.outcome import Outcome
from drumline_simulator.results.time_account import Cause, TimeAccount
from drumline_simulator.workload import Arrival, Execution, Outage, ProcessFault
from tests.unit.simulator.clusters import PROMPT, a_cluster, a_job

GPUS = 8


def run(*jobs: Arrival, execution: Execution = PROMPT, nodes: int = 1, **more: Any) -> Outcome:
    given: dict[str, Any] = {"cluster": a_cluster(nodes=nodes), "policy": Policy(), **more}
    return simulate(arrivals=jobs, execution=execution, **given)


def of_gpus(**seconds: float) -> TimeAccount:
    return TimeAccount(**{kind: GPUS * value for kind, value in seconds.items()})


def test_the_first_start_takes_its_time() -> None:
    outcome = run(a_job("a", seconds=50), execution=replace(PROMPT, start_seconds=7))
    assert outcome.jobs[0].ended_at == 57
    assert outcome.jobs[0].account == of_gpus(useful=50, restarting=7)
    assert outcome.jobs[0].not_useful == {Cause.START: GPUS * 7}


def test_checkpoints_and_snapshots_stop_training() -> None:
    slow = replace(PROMPT, checkpoint_stall_seconds=25, snapshot_seconds=10, snapshot_share=0.5)
    outcome = run(a_job("a", seconds=200), execution=slow)
    assert outcome.jobs[0].ended_at == pytest.approx(200 * 1.25 / 0.5)
    assert outcome.jobs[0].account.useful == pytest.approx(GPUS * 200)
    assert outcome.jobs[0].account.saving == pytest.approx(GPUS * 300)


def test_a_job_has_checkpoints_of_its_own() -> None:
    often = replace(a_job("a", seconds=200), checkpoint_seconds=30)
    outcome = run(often, outages=[Outage(node="n0", at=100, seconds=10)])
    assert outcome.jobs[0].account == of_gpus(useful=200, lost=10, idle=10)


@pytest.mark.parametrize(
    ("snapshot_seconds", "lost"), [(None, 50), (20, 10)], ids=["checkpoint", "snapshot"]
)
def test_a_process_that_ends_costs_what_is_not_kept(
    snapshot_seconds: float | None, lost: float
) -> None:
    execution = replace(PROMPT, process_seconds=5, snapshot_seconds=snapshot_seconds)
    fault = ProcessFault(node="n0", at=150, part=0.5)
    outcome = run(a_job("a", seconds=200), execution=execution, faults=[fault])
    assert outcome.jobs[0].account == of_gpus(useful=200, lost=lost, restarting=5)
    assert outcome.jobs[0].not_useful == {Cause.PROCESS: GPUS * (lost + 5)}
    assert outcome.jobs[0].ended_at == 205 + lost


def test_a_hang_is_idle_until_it_is_noticed() -> None:
    execution = replace(PROMPT, process_seconds=5, hang_seconds=40)
    fault = ProcessFault(node="n0", at=150, part=0.0, hangs=True)
    outcome = run(a_job("a", seconds=200), execution=execution, faults=[fault])
    assert outcome.jobs[0].account == of_gpus(useful=200, lost=50, idle=40, restarting=5)
    assert outcome.jobs[0].not_useful == {Cause.HANG: GPUS * 95}


def test_a_fault_hits_the_job_on_its_gpu() -> None:
    jobs = [a_job("a", seconds=200, gpus=6), a_job("b", seconds=200, gpus=2)]
    for part, hit in ((0.0, "a"), (0.74, "a"), (0.75, "b"), (0.99, "b")):
        fault = ProcessFault(node="n0", at=150, part=part)
        outcome = run(*jobs, faults=[fault])
        assert [job.uid for job in outcome.jobs if job.account.lost] == [hit]


def test_a_fault_where_nothing_runs_costs_nothing() -> None:
    fault = ProcessFault(node="n1", at=150, part=0.5)
    outcome = run(a_job("a", seconds=200), nodes=2, faults=[fault])
    assert outcome.jobs[0].account == of_gpus(useful=200)


def test_a_reclaim_that_is_announced_in_time_costs_no_work() -> None:
    saving = replace(PROMPT, save_seconds=20, repair_seconds=3)
    reclaim = Outage(node="n0", at=150, seconds=100, notice_seconds=60)
    outcome = run(a_job("a", seconds=200), execution=saving, nodes=2, outages=[reclaim])
    assert [allocation.nodes for allocation in outcome.allocations] == [("n0",), ("n1",)]
    assert outcome.allocations[0].ends_at == 90  # it moves at the notice
    assert outcome.jobs[0].account == of_gpus(useful=200, saving=20, restarting=3)
    assert outcome.jobs[0].not_useful == {Cause.RECLAIM: GPUS * 23}


@pytest.mark.parametrize(
    ("save_seconds", "lost", "saving"),
    [(0, 50, 0), (20, 0, 20), (90, 50, 0)],
    ids=["kills", "saves", "too slow"],
)
def test_without_another_node_a_reclaim_costs_the_save_or_what_is_not_saved(
    save_seconds: float, lost: float, saving: float
) -> None:
    execution = replace(PROMPT, save_seconds=save_seconds)
    reclaim = Outage(node="n0", at=150, seconds=100, notice_seconds=60)
    outcome = run(a_job("a", seconds=200), execution=execution, outages=[reclaim])
    account = of_gpus(useful=200, lost=lost, saving=saving, idle=100)
    assert outcome.jobs[0].account == account
    assert outcome.jobs[0].not_useful == {Cause.RECLAIM: GPUS * (lost + saving + 100)}


def test_a_node_that_is_about_to_go_takes_no_new_job() -> None:
    reclaim = Outage(node="n0", at=150, seconds=100, notice_seconds=60)
    outcome = run(a_job("a", at=0, seconds=10), a_job("b", at=100), outages=[reclaim])
    assert [job.started_at for job in outcome.jobs] == [0, 250]


def test_a_broken_job_gives_up_the_rest_of_its_nodes() -> None:
    execution = replace(PROMPT, broken_seconds=30, snapshot_seconds=20)
    outage = Outage(node="n1", at=150, seconds=1000)
    pair, other = a_job("pair", seconds=200, nodes=2), a_job("other", at=160, seconds=500)
    outcome = run(pair, other, execution=execution, nodes=2, outages=[outage])
    assert outcome.jobs[1].started_at == 180
    assert outcome.jobs[0].account.idle == 30 * 2 * GPUS
    assert outcome.jobs[0].account.lost == 50 * 2 * GPUS  # its snapshots went with its pods
    assert outcome.jobs[0].not_useful == {Cause.NODE: 80 * 2 * GPUS}
    assert outcome.jobs[0].ended_at == 1150 + 100


SCALED = {
    "p": PoolTerms(
        price_per_gpu_hour=2.0, autoscaling=Autoscaling(boot_seconds=30, idle_seconds=60)
    )
}


def scaled(*, nodes: int = 2, terms: dict[str, PoolTerms] | None = None) -> Any:
    queue = Queue(name="q", nominal={"p": nodes * GPUS})
    return replace(a_cluster(nodes=nodes, queues=(queue,)), terms=terms or SCALED)


def test_a_job_runs_on_until_its_node_goes_if_no_other_node_is_there() -> None:
    saving = replace(PROMPT, save_seconds=20, repair_seconds=3)
    reclaim = Outage(node="n0", at=150, seconds=1000, notice_seconds=60)
    job = a_job("a", seconds=200)
    outcome = run(job, execution=saving, cluster=scaled(), outages=[reclaim])
    assert [each.nodes for each in outcome.allocations] == [("n0",), ("n1",)]
    assert outcome.allocations[0].ends_at == 150
    # Both nodes boot for 30 s, the second one from the loss on.
    assert outcome.jobs[0].account == of_gpus(useful=200, saving=20, idle=60, restarting=3)


def test_a_node_is_ready_once_it_has_booted() -> None:
    leases = NodeLeases(cluster=scaled(), seed=0, on_idle=lambda *_: None)
    assert not leases.are_ready(("n0",), now=0)
    leases.take(("n0",), now=0)
    assert [leases.are_ready(("n0",), now=now) for now in (20, 40)] == [False, True]
    assert not leases.are_ready(("n0", "n1"), now=40)


def test_an_autoscaled_node_boots_for_a_job_and_goes_when_it_is_idle() -> None:
    jobs = [a_job("a", seconds=100), a_job("b", at=150, seconds=10), a_job("c", at=300)]
    outcome = run(*jobs, cluster=scaled())
    assert [job.ended_at for job in outcome.jobs] == pytest.approx([130, 160, 340])
    assert outcome.jobs[0].account.idle == pytest.approx(30 * GPUS)
    assert outcome.jobs[0].not_useful == pytest.approx({Cause.BOOT: 30 * GPUS})
    ends = [(lease.node, lease.begins_at, round(lease.ends_at)) for lease in outcome.leases]
    assert ends == [("n0", 0, 220), ("n0", 300, 340)]


def test_a_node_that_is_there_is_taken_before_one_that_has_to_boot() -> None:
    jobs = [a_job("a", seconds=10), a_job("b", seconds=100), a_job("c", at=150, seconds=5)]
    outcome = run(*jobs, cluster=scaled())
    assert [allocation.nodes for allocation in outcome.allocations] == [("n0",), ("n1",), ("n1",)]
    assert outcome.jobs[2].ended_at == 155


def test_asks_that_bring_no_node_are_made_again() -> None:
    always = Autoscaling(boot_seconds=30, missing_share=0.9, retry_seconds=1000, idle_seconds=60)
    cluster = scaled(terms={"p": PoolTerms(autoscaling=always)})
    outcome = run(a_job("a", seconds=10), cluster=cluster, seed=1)
    again = outcome.jobs[0].ended_at
    assert again is not None
    assert again > 1000
    assert again == run(a_job("a", seconds=10), cluster=cluster, seed=1).jobs[0].ended_at


def test_a_lost_node_is_no_longer_paid_for() -> None:
    outage = Outage(node="n0", at=100, seconds=50)
    outcome = run(a_job("a", seconds=80), cluster=scaled(nodes=1), outages=[outage])
    assert outcome.leases[0] == Lease(node="n0", pool="p", gpus=8, begins_at=0, ends_at=100)


def test_a_simulation_stops_in_time_and_says_what_is_committed() -> None:
    outcome = run(a_job("a", seconds=500), until=250)
    assert outcome.ended_at == 250
    assert outcome.jobs[0].committed_seconds == 200
    assert outcome.jobs[0].account == of_gpus(useful=250)
