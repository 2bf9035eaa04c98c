from __future__ import annotations

from drumline_scheduler import Policy
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.forecast.accuracy import StartForecast
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_simulator.engine.forecast_recorder import ForecastRecorder
from drumline_simulator.engine.simulation import simulate
from tests.unit.simulator.clusters import PROMPT, a_cluster, a_job

JOBS = [a_job(name, seconds=100, max_runtime_seconds=100) for name in "abc"]


def run(recorder: ForecastRecorder) -> tuple[StartForecast, ...]:
    outcome = simulate(
        cluster=a_cluster(nodes=1),
        arrivals=JOBS,
        policy=Policy(),
        execution=PROMPT,
        recorder=recorder,
    )
    return outcome.forecasts


def in_fifty(cycle: CycleInput) -> list[ExpectedStart]:
    return [
        ExpectedStart(key=gang.key, uid=gang.uid, p50_at=cycle.now + 50, p90_at=None)
        for gang in cycle.pending
    ]


def a_forecast(uid: str, at: float, expected: float, started: float) -> StartForecast:
    return StartForecast(
        uid=uid, made_at=at, expected_at=expected, latest_at=None, started_at=started
    )


def test_forecasts_are_recorded_with_the_actual_starts() -> None:
    assert run(ForecastRecorder(every_seconds=10, forecaster=in_fifty, corrects=False)) == (
        a_forecast("b", 0, 50, 100),
        a_forecast("c", 0, 50, 200),
        a_forecast("c", 100, 150, 200),
    )


def test_it_is_not_asked_again_before_its_time() -> None:
    assert run(ForecastRecorder(every_seconds=101, forecaster=in_fifty, corrects=False)) == (
        a_forecast("b", 0, 50, 100),
        a_forecast("c", 0, 50, 200),
    )


def test_the_scheduler_s_own_forecast_is_about_right() -> None:
    first, second, *_ = run(ForecastRecorder(every_seconds=1000))
    assert (first.uid, second.uid) == ("b", "c")
    assert first.expected_at <= first.started_at == 100
    assert first.expected_at < second.expected_at <= second.started_at
