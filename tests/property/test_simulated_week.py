"""What holds in any simulated week, under each side.

GPU-seconds are conserved, nothing that is committed is lost, quotas and nodes are never exceeded,
and the same seed gives the same week. `DRUMLINE_PROPERTIES=all` looks at 60 settings.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from drumline_scheduler import Admitted, CycleInput, Decisions, Snapshot
from drumline_scheduler.model import PriceRule, SpotRule
from drumline_simulator.cluster import Cluster
from drumline_simulator.engine.simulated_job import SimulatedJob, Stall
from drumline_simulator.engine.simulation import Decider, simulate
from drumline_simulator.results.occupancy import occupancy
from drumline_simulator.results.outcome import Outcome
from drumline_simulator.week import sides
from drumline_simulator.week.setting import SPOT, Setting
from drumline_simulator.week.sides import Side
from drumline_simulator.week.study import run_week
from drumline_simulator.week.trace import arrivals
from drumline_simulator.workload import Arrival, Execution
from tests.unit.simulator.clusters import a_job

pytestmark = pytest.mark.extended(keep=25)

SEEDS = range(60 if os.environ.get("DRUMLINE_PROPERTIES") == "all" else 6)
SIDES = {"ours": sides.ours, "peer": sides.peer, "best": sides.best_peer}
_SLACK = 1e-6


def a_setting(seed: int) -> Setting:
    """A rough day: many failures, few nodes."""
    draw = Random(seed)
    return Setting(
        nodes=12,
        reserved_nodes=4,
        seconds=6 * 3600.0,
        seed=seed,
        failures=draw.choice((1.0, 30.0, 200.0)),
        reclaims=draw.choice((1.0, 5.0, 20.0)),
        large_on_spot=draw.random() < 0.7,
    )


class Watched:
    """A decider that checks what each cycle is told: what is held is within quota and nodes."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        self.cycles = 0
        self.mixed = 0
        """Surplus gangs of all cycles."""

    def __call__(self, cycle: CycleInput) -> Decisions:
        """Check, then decide."""
        self.cycles += 1
        self.mixed += _count_mixed(cycle.snapshot)
        _check_quota(cycle.snapshot)
        _check_nodes(cycle.snapshot)
        return self._decider(cycle)


def _count_mixed(snapshot: Snapshot) -> int:
    """Surplus gangs, each beside its other one, on spot nodes."""
    uids = {held.gang.uid for held in snapshot.admitted}
    surplus = [held for held in snapshot.admitted if held.gang.surplus_of]
    assert all(held.gang.surplus_of in uids and held.pool == SPOT for held in surplus)
    return len(surplus)


def _check_quota(snapshot: Snapshot) -> None:
    """All queues of the week are one cohort without limits: it holds no more than its quota."""
    nominal: Counter[str] = Counter()
    for queue in snapshot.queues:
        nominal.update(queue.nominal)
    used: Counter[str] = Counter()
    for held in snapshot.admitted:
        used[held.pool] += held.gpus
        queues = {queue.name: queue for queue in snapshot.queues}
        assert held.pool in queues[held.gang.queue].nominal
    for pool, gpus in used.items():
        assert gpus <= nominal[pool], (pool, gpus)


def _check_nodes(snapshot: Snapshot) -> None:
    used: Counter[str] = Counter()
    for held in snapshot.admitted:
        for position, node in held.survivors.items():
            used[node] += held.gang.request_of(position).gpus
    for node in snapshot.nodes:
        assert used[node.name] <= node.allocatable.gpus, node.name


@pytest.mark.parametrize("name", SIDES)
@pytest.mark.parametrize("seed", SEEDS)
def test_gpu_seconds_are_conserved_and_quotas_kept(seed: int, name: str) -> None:
    setting, side = a_setting(seed), SIDES[name]()
    watched = Watched(side.decider)
    outcome = run_week(setting, side=side, decider=watched)
    assert watched.cycles == outcome.cycles > 0
    _check_accounts(outcome)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_holds_of_jobs_over_two_pools(seed: int) -> None:
    setting, side = replace(a_setting(seed), nodes=24, reserved_nodes=8), sides.ours()
    cluster, faults = _with_surplus_on_spot(setting.cluster()), setting.node_faults()
    watched = Watched(side.decider)
    outcome = simulate(
        cluster=cluster,
        arrivals=[_elastic(job) for job in arrivals(setting)],
        policy=side.policy,
        execution=side.execution,
        outages=faults.outages,
        faults=faults.faults,
        seed=seed,
        until=setting.seconds,
        decider=watched,
    )
    _check_accounts(outcome)
    assert watched.mixed > 0


@pytest.mark.parametrize("seed", SEEDS[:3])
def test_occupancy_is_what_was_held_of_what_could_be(seed: int) -> None:
    """Beside a sum over seconds, which is all that the times of this setting need."""
    setting = a_setting(seed)
    cluster, outages = setting.cluster(), setting.node_faults().outages
    outcome = run_week(setting, side=sides.ours())
    gpus = {node.name: node.allocatable.gpus for node in cluster.nodes}
    bound = held = 0.0
    for second in range(int(outcome.began_at), int(outcome.ended_at)):
        at = second + 0.5
        away = sum(gpus[o.node] for o in outages if o.at <= at < o.at + o.seconds)
        wanted = sum(
            job.gpus
            for job in outcome.jobs
            if job.submitted_at <= at and (job.ended_at is None or at < job.ended_at)
        )
        bound += min(sum(gpus.values()) - away, wanted)
    for each in outcome.allocations:
        held += each.gpus * (each.ends_at - each.begins_at)
    computed = occupancy(outcome, cluster=cluster, outages=outages)
    assert computed == pytest.approx(held / bound, rel=1e-3)
    assert 0.5 < computed <= 1.0


def _with_surplus_on_spot(cluster: Cluster) -> Cluster:
    rule = PriceRule(spot=SpotRule.SURPLUS)
    return replace(
        cluster, queues=tuple(replace(queue, price_rule=rule) for queue in cluster.queues)
    )


def _elastic(job: Arrival) -> Arrival:
    nodes = job.gang.nodes
    sizes = tuple(range(nodes // 2, nodes + 1)) if nodes > 1 else ()
    return replace(job, gang=replace(job.gang, sizes=sizes))


def _check_accounts(outcome: Outcome) -> None:
    held: Counter[int] = Counter()
    for each in outcome.allocations:
        held[each.job] += each.gpus * (each.ends_at - each.begins_at)  # type: ignore[assignment]
    for number, job in enumerate(outcome.jobs):
        account = job.account
        assert account.held == pytest.approx(held[number], abs=1e-3 + _SLACK * account.held)
        parts = (account.useful, account.idle, account.saving, account.restarting, account.lost)
        assert all(part >= -1e-3 for part in parts)
        not_useful = account.held - account.useful
        slack = 1e-3 + _SLACK * account.held
        assert sum(job.not_useful.values()) == pytest.approx(not_useful, abs=slack)
        assert job.committed_seconds * job.gpus <= account.useful + 1e-3
        if job.ended_at is not None:
            assert job.committed_seconds == pytest.approx(job.duration_seconds)
    assert sum(held.values()) <= sum(3600 * lease.gpu_hours for lease in outcome.leases) + 1e-3


@pytest.mark.parametrize("name", SIDES)
def test_the_same_seed_gives_the_same_week(name: str) -> None:
    setting = a_setting(1)
    first, second = (run_week(setting, side=SIDES[name]()) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("seed", range(40))
def test_what_is_committed_is_never_lost_and_all_time_is_charged(seed: int) -> None:
    draw = Random(seed)
    execution = Execution(
        checkpoint_seconds=draw.choice((30.0, 100.0)),
        checkpoint_stall_seconds=draw.choice((0.0, 3.0)),
        snapshot_seconds=draw.choice((None, 7.0)),
        snapshot_share=draw.choice((0.0, 0.1)),
    )
    arrival = a_job("a", nodes=2, sizes=(1, 2), seconds=1e6)
    job = SimulatedJob(arrival=arrival, index=0, execution=execution)
    now = held = committed = 0.0
    for _ in range(200):
        seconds = draw.expovariate(1 / 20)
        if job.admitted is not None:
            held += seconds * job.admitted.gpus
        now += seconds
        _change(job, draw=draw, now=now)
        assert job.committed >= committed
        assert job.work >= job.committed
        committed = job.committed
    job.settle(now)
    assert job.account.held == pytest.approx(held)
    assert job.account.useful == pytest.approx(job.work * arrival.gang.gpus)
    assert sum(job.not_useful.values()) == pytest.approx(held - job.account.useful)


def _change(job: SimulatedJob, *, draw: Random, now: float) -> None:
    """Anything that may happen to a job in its present state."""
    if job.admitted is None:
        _start(job, draw=draw, now=now)
        return
    match draw.randrange(7):
        case 0:
            job.save(now)
        case 1 | 2:
            job.roll_back(now=now, to_snapshot=draw.random() < 0.5)
        case 3:
            job.settle(now)
            job.stall([(Stall.RESTARTING, draw.uniform(0, 30))], now=now)
        case 4:
            job.settle(now)
            job.admitted = replace(job.admitted, lost=frozenset({0}))
        case 5:
            _start(job, draw=draw, now=now)
        case _:
            job.roll_back(now=now, to_snapshot=False)
            job.requeue(now)


def _start(job: SimulatedJob, *, draw: Random, now: float) -> None:
    nodes = ("n0", "n1")[: draw.choice((1, 2))]
    stalls = [(Stall.IDLE, draw.uniform(0, 20)), (Stall.RESTARTING, 5.0)]
    admitted = Admitted(gang=job.arrival.gang, pool="p", assignment=nodes)
    job.start(admitted=admitted, now=now, stalls=stalls)


def test_a_watched_side_is_the_side() -> None:
    side: Side = sides.peer()
    setting = a_setting(0)
    assert run_week(setting, side=side, decider=Watched(side.decider)) == run_week(
        setting, side=sides.peer()
    )
