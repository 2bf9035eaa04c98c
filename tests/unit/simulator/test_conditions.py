"""Failures, reclaims and prices follow from the seed, and have the rates that were asked for."""

from __future__ import annotations

from itertools import pairwise

import pytest

from drumline_simulator.cluster import Cluster, PoolTerms
from drumline_simulator.conditions.node_faults import NodeFaults, draw_node_faults
from drumline_simulator.conditions.rates import FailureRates, SpotRates
from drumline_simulator.results.cost import HourlyPrices
from drumline_simulator.results.leases import Lease
from drumline_simulator.workload import Outage
from tests.unit.simulator.clusters import a_cluster

DAY = 86_400.0
FAILURES = FailureRates(gpu_hours=80, process_share=0.3, hang_share=0.2, repair_seconds=1000)
SPOT = {"p": SpotRates(node_hours=10, notice_seconds=120, away_seconds=600)}


def drawn(cluster: Cluster | None = None, *, seed: int = 1, days: float = 100) -> NodeFaults:
    return draw_node_faults(
        cluster or a_cluster(nodes=4),
        failures=FAILURES,
        spot=SPOT,
        seconds=days * DAY,
        seed=seed,
    )


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    assert drawn() == drawn()
    assert drawn() != drawn(seed=2)


def test_one_more_node_changes_nothing_for_the_others() -> None:
    more = drawn(a_cluster(nodes=5))
    assert tuple(each for each in more.outages if each.node != "n4") == drawn().outages


def test_things_fail_as_often_as_asked() -> None:
    events = drawn()
    reclaims = [outage for outage in events.outages if outage.notice_seconds]
    lost = [outage for outage in events.outages if not outage.notice_seconds]
    hangs = [fault for fault in events.faults if fault.hangs]
    ended = [fault for fault in events.faults if not fault.hangs]
    # 4 nodes of 8 GPUs for 2,400 h: 960 failures and as many reclaims, but for times away
    assert len(reclaims) == pytest.approx(960, rel=0.15)
    assert len(lost) == pytest.approx(480, rel=0.2)
    assert len(ended) == pytest.approx(288, rel=0.25)
    assert len(hangs) == pytest.approx(192, rel=0.3)
    away = [outage.seconds for outage in reclaims]
    assert sum(away) / len(away) == pytest.approx(600, rel=0.15)


def test_nothing_happens_to_a_node_that_is_away() -> None:
    events = drawn()
    for node in ("n0", "n1", "n2", "n3"):
        outages = sorted((o for o in events.outages if o.node == node), key=lambda o: o.at)
        for before, after in pairwise(outages):
            assert after.at - after.notice_seconds >= before.at + before.seconds - 1
        faults = [fault.at for fault in events.faults if fault.node == node]
        assert not any(_is_away(outages, at) for at in faults)


def _is_away(outages: list[Outage], at: float) -> bool:
    return any(each.at + 1 < at < each.at + each.seconds - 1 for each in outages)


def test_without_rates_nothing_happens() -> None:
    calm = draw_node_faults(
        a_cluster(nodes=4), failures=FailureRates(), spot={}, seconds=100 * DAY, seed=1
    )
    assert calm == NodeFaults()


def test_impossible_rates_are_rejected() -> None:
    with pytest.raises(ValueError, match="gpu_hours"):
        FailureRates(gpu_hours=0)
    with pytest.raises(ValueError, match="must be at most 1"):
        FailureRates(gpu_hours=1, process_share=0.6, hang_share=0.5)
    with pytest.raises(ValueError, match="node_hours"):
        SpotRates(node_hours=0)
    with pytest.raises(ValueError, match="negative"):
        SpotRates(node_hours=1, notice_seconds=-1)


def test_a_lease_costs_the_price_of_each_of_its_hours() -> None:
    prices = HourlyPrices({"p": PoolTerms(price_per_gpu_hour=2.0, price_swing=0.5)}, seed=1)
    first, second = prices.of("p", hour=0), prices.of("p", hour=1)
    assert first != second
    assert all(1.0 <= price <= 3.0 for price in (first, second))
    lease = Lease(node="n", pool="p", gpus=8, begins_at=1800, ends_at=4500)
    assert prices.cost([lease]) == pytest.approx(8 * (0.5 * first + 0.25 * second))


def test_a_fixed_price_and_a_pool_without_one() -> None:
    prices = HourlyPrices({"p": PoolTerms(price_per_gpu_hour=2.0)}, seed=1)
    paid = Lease(node="n", pool="p", gpus=4, begins_at=0, ends_at=7200)
    free = Lease(node="m", pool="q", gpus=4, begins_at=0, ends_at=7200)
    assert prices.cost([paid, free]) == pytest.approx(16)
    assert paid.gpu_hours == pytest.approx(8)
