"""A forecast is current until something but the time changes, or time shows it wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import Budget, CycleInput, Gang, Policy, Snapshot
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.forecast.forecast import OLDEST_SECONDS, Forecast
from tests.unit.scheduler.builders import admitted, cluster, gang, node, queue

NOW = 1000.0
WAITS = gang("waits", gpus=2)


def at_rest() -> Snapshot:
    return cluster(node("n0", "rack-0"), running=[admitted(gang("runs", gpus=2), "n0")])


def inputs(snapshot: Snapshot | None = None, *pending: Gang, now: float = NOW + 60) -> CycleInput:
    return CycleInput(
        snapshot=snapshot or at_rest(), pending=pending or (WAITS,), policy=Policy(), now=now
    )


def forecast(*, p50_in: float | None = 600.0, repeats: int = 0) -> Forecast:
    p50_at = None if p50_in is None else NOW + p50_in
    start = ExpectedStart(key=WAITS.key, uid=WAITS.uid, p50_at=p50_at, p90_at=None)
    return Forecast(cycle=inputs(now=NOW), starts=(start,), repeats=repeats)


def test_equal_objects_and_a_later_hour_are_no_change() -> None:
    assert forecast().is_current(inputs(now=NOW + 599))


@pytest.mark.parametrize("p50_in", [3600.0, None])
def test_it_is_made_again_when_it_is_old(p50_in: float | None) -> None:
    assert forecast(p50_in=p50_in).is_current(inputs(now=NOW + OLDEST_SECONDS - 1))
    assert not forecast(p50_in=p50_in).is_current(inputs(now=NOW + OLDEST_SECONDS))


def test_a_clock_that_was_set_back_ends_it() -> None:
    assert not forecast().is_current(inputs(now=NOW - 1))


def test_it_is_wrong_when_an_expected_start_has_passed() -> None:
    assert not forecast(p50_in=600).is_current(inputs(now=NOW + 600))


def test_where_nothing_ends_each_one_has_twice_the_time_of_the_last() -> None:
    soon = [forecast(p50_in=5, repeats=repeats) for repeats in range(4)]
    for pause, each in zip((60, 120, 240, 480), soon, strict=True):
        assert each.is_current(inputs(now=NOW + pause - 1))
        assert not each.is_current(inputs(now=NOW + pause))
    assert [each.repeats_for(inputs()) for each in soon] == [1, 2, 3, 4]
    assert soon[3].repeats_for(inputs(None, gang("other"))) == 0


def test_work_at_risk_and_usage_history_grow_by_themselves() -> None:
    snapshot = at_rest()
    held = replace(snapshot.admitted[0], gpu_seconds_at_risk=7200.0)
    later = replace(snapshot, admitted=(held,), history={"research": 5.0})
    assert forecast().is_current(inputs(later))


def test_a_budget_grows_by_itself_and_once_it_is_spent_the_forecast_ends() -> None:
    limited = queue("research", 8, budget=Budget(gpu_hours=2, window_days=1))
    rest = replace(at_rest(), queues=(limited,))
    known = replace(forecast(), cycle=inputs(rest, now=NOW))
    for hours, current in ((0, True), (1, True), (2, False)):
        later = replace(rest, spent={"research": {0: hours * 3600}})
        assert known.is_current(inputs(later)) is current


def test_any_other_change_ends_it() -> None:
    rest = at_rest()
    (held,) = rest.admitted
    changes = [
        inputs(None, WAITS, gang("new")),
        inputs(None, replace(WAITS, priority=1)),
        inputs(replace(rest, admitted=())),
        inputs(replace(rest, admitted=(replace(held, leaving=True),))),
        inputs(replace(rest, admitted=(replace(held, admitted_at=5.0),))),
        inputs(replace(rest, nodes=(replace(rest.nodes[0], unschedulable=True),))),
        inputs(replace(rest, nodes=())),
        inputs(replace(rest, pools=())),
        inputs(replace(rest, queues=(queue("research", 8),))),
    ]
    assert [forecast().is_current(change) for change in changes] == [False] * 9
