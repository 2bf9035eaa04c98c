"""The simulated week in small: its trace, its sides, its figures."""

from __future__ import annotations

from collections import Counter

import pytest

from drumline_simulator.week import sides
from drumline_simulator.week.setting import (
    INTERACTIVE,
    NODE_GPUS,
    PRETRAINING,
    RESERVED,
    SPOT,
    WEEK_SECONDS,
    Setting,
)
from drumline_simulator.week.study import WeekResult, result, run_week
from drumline_simulator.week.trace import arrivals

DAY = 86_400.0
SMALL = Setting(nodes=16, reserved_nodes=4, seconds=DAY / 2, failures=20.0)


def test_the_trace_has_as_much_work_as_asked_by_the_teams_parts() -> None:
    jobs = arrivals(Setting())
    work: Counter[str] = Counter()
    for job in jobs:
        work[job.gang.queue] += int(job.gang.gpus * job.duration_seconds)
    whole = 64 * NODE_GPUS * WEEK_SECONDS * 1.1
    assert work.total() == pytest.approx(whole, rel=0.05)
    assert work[PRETRAINING] / work.total() == pytest.approx(0.4, abs=0.03)
    small = sum(job.gang.nodes == 1 for job in jobs)
    assert small / len(jobs) > 0.8
    assert [job.gang.queued_at for job in jobs] == sorted(job.gang.queued_at for job in jobs)


def test_people_submit_by_day_and_less_on_weekends() -> None:
    jobs = [job for job in arrivals(Setting()) if job.gang.queue == INTERACTIVE]
    hours = Counter(int(job.gang.queued_at % DAY // 3600) for job in jobs)
    days = Counter(int(job.gang.queued_at // DAY) for job in jobs)
    assert sum(hours[h] for h in range(8, 20)) > 2 * sum(hours[h] for h in (*range(8), 20, 21))
    assert min(days[d] for d in range(5)) > 1.3 * max(days[5], days[6])


def test_the_same_seed_gives_the_same_trace() -> None:
    assert arrivals(SMALL) == arrivals(SMALL)
    assert arrivals(SMALL) != arrivals(Setting(nodes=16, reserved_nodes=4, seed=2))


def test_a_setting_has_both_kinds_of_nodes() -> None:
    assert SMALL.cluster().gpus_by_pool() == {RESERVED: 32, SPOT: 96}
    kept = Setting(nodes=16, reserved_nodes=4, large_on_spot=False).cluster()
    quotas = {queue.name: set(queue.nominal) for queue in kept.queues}
    assert quotas[PRETRAINING] == {RESERVED}
    with pytest.raises(ValueError, match="at least 4"):
        Setting(nodes=16, reserved_nodes=2)


@pytest.mark.parametrize("large_on_spot", [True, False])
def test_every_gpu_belongs_to_a_queue_or_its_cohort(large_on_spot: bool) -> None:
    cluster = Setting(large_on_spot=large_on_spot).cluster()
    nominal: Counter[str] = Counter()
    for queue in cluster.queues:
        nominal.update(queue.nominal)
    assert nominal == cluster.gpus_by_pool()


@pytest.fixture(scope="module")
def results() -> dict[str, WeekResult]:
    jobs = arrivals(SMALL)
    return {
        side.name: result(run_week(SMALL, side=side, jobs=jobs), setting=SMALL, side=side.name)
        for side in (sides.ours(), sides.peer(), sides.best_peer())
    }


def test_every_side_gets_work_done_and_pays_for_it(results: dict[str, WeekResult]) -> None:
    assert len(results) == 3
    for each in results.values():
        assert each.committed_tokens > 0
        assert each.jobs_ended > 0
        assert each.account.held <= 3600 * each.gpu_hours * (1 + 1e-9)
        assert 3.44 * 0.8 <= each.dollars / each.gpu_hours <= 6.88
        assert 0 < each.goodput <= 1
        assert each.tokens_per_gpu_hour == each.committed_tokens / each.gpu_hours


def test_what_is_saved_in_time_is_not_lost(results: dict[str, WeekResult]) -> None:
    lost = {name: each.account.lost / each.account.held for name, each in results.items()}
    assert lost[sides.OURS] < lost[sides.PEER]
    assert lost[sides.BEST] < lost[sides.PEER]
