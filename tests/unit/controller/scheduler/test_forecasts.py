"""The operator looks ahead for the jobs that wait, from the caches it has."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from drumline.controller.queues.usage_history import QueueUsageHistory
from drumline.controller.scheduler.forecasts import Forecasts
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.views import TrainingJobView
from drumline.lifecycle.model.timestamps import timestamp
from drumline.telemetry.metrics import Metrics
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Blocked, BlockReason, GangFault
from drumline_scheduler.forecast.expected_starts import ExpectedStart, expected_starts
from drumline_scheduler.forecast.forecast import OLDEST_SECONDS
from drumline_scheduler.model import Policy
from tests.builders import T0
from tests.unit.controller.scheduler.full_node import NOW, a_full_node
from tests.unit.controller.views import assignment, job_view
from tests.unit.controller.workload_state import gated


async def test_a_waiting_job_is_expected_to_start_when_running_jobs_end() -> None:
    state, woken = a_full_node(), []
    forecasts = Forecasts(
        state=state,
        usage=QueueUsageHistory(half_life=3600.0),
        policy=Policy(),
        clock=lambda: NOW,
        wake=lambda: woken.append(True),
        caught_up=no_wait,
        metrics=Metrics().forecasts,
    )
    assert forecasts.of("2") is None
    await forecasts.forecast()
    expected = forecasts.of("2")
    assert expected is not None
    assert expected.p50_at is not None
    assert expected.p90_at is not None
    assert NOW < expected.p50_at <= T0 + 3600  # the running job ends by then
    assert expected.p50_at < expected.p90_at
    assert (forecasts.of("1"), woken) == (None, [True])


async def no_wait() -> None:
    """The leader has nothing to catch up with."""


async def test_the_first_forecast_waits_until_the_leader_has_caught_up() -> None:
    caught_up, woken = asyncio.Event(), asyncio.Event()
    order: list[str] = []

    async def catch_up() -> None:
        await caught_up.wait()
        order.append("caught up")

    def forecast(_cycle: CycleInput, **_: object) -> tuple[()]:
        order.append("forecast")
        return ()

    forecasts = Forecasts(
        state=a_full_node(),
        usage=QueueUsageHistory(half_life=3600.0),
        policy=Policy(),
        clock=lambda: NOW,
        wake=woken.set,
        caught_up=catch_up,
        metrics=Metrics().forecasts,
        forecaster=forecast,
    )
    running = asyncio.create_task(forecasts.run())
    await asyncio.sleep(0)  # it has begun to wait
    caught_up.set()
    await woken.wait()
    running.cancel()
    assert order == ["caught up", "forecast"]


async def test_what_was_expected_is_forgotten_when_no_job_waits() -> None:
    state = a_full_node()
    forecasts = Forecasts(
        state=state,
        usage=QueueUsageHistory(half_life=3600.0),
        policy=Policy(),
        clock=lambda: NOW,
        wake=lambda: None,
        caught_up=no_wait,
        metrics=Metrics().forecasts,
    )
    await forecasts.forecast()
    state.on_job(job_view("waits", uid="2"), None)
    await forecasts.forecast()
    assert forecasts.of("2") is None


async def test_a_forecast_gives_up_when_the_operator_ends() -> None:
    began, stopped = threading.Event(), threading.Event()

    def long_forecast(_cycle: CycleInput, *, go_on: Callable[[], bool], **_: object) -> tuple[()]:
        began.set()
        moments = 0
        try:
            while go_on() and moments < 10_000:
                moments += 1
                time.sleep(0.001)
        finally:  # told by `go_on`, or stopped by an exception
            if moments < 10_000:
                stopped.set()
        return ()

    forecasts = Forecasts(
        state=a_full_node(),
        usage=QueueUsageHistory(half_life=3600.0),
        policy=Policy(),
        clock=lambda: NOW,
        wake=lambda: None,
        caught_up=no_wait,
        metrics=Metrics().forecasts,
        forecaster=long_forecast,
    )
    look = asyncio.create_task(forecasts.forecast())
    await asyncio.to_thread(began.wait)
    look.cancel()
    with suppress(asyncio.CancelledError):
        await look
    assert await asyncio.to_thread(stopped.wait, 30.0)


async def test_a_cluster_at_rest_is_forecast_once() -> None:
    state, made = a_full_node(), []
    now = [NOW]

    def count(cycle: CycleInput, **_: object) -> tuple[ExpectedStart, ...]:
        made.append(cycle.now)
        return (ExpectedStart(key="team/waits", uid="2", p50_at=NOW + 900, p90_at=None),)

    woken: list[bool] = []
    forecasts = Forecasts(
        state=state,
        usage=QueueUsageHistory(half_life=3600.0),
        policy=Policy(),
        clock=lambda: now[0],
        wake=lambda: woken.append(True),
        caught_up=no_wait,
        metrics=Metrics().forecasts,
        forecaster=count,
    )
    for minute in range(10):
        now[0] = NOW + 60 * minute
        await forecasts.forecast()
    assert (made, woken) == ([NOW], [True])
    assert forecasts.of("2") is not None
    state.on_job(None, job_view("waits-too", uid="3"))
    await forecasts.forecast()
    assert made == [NOW, NOW + 540]


def counted(metrics: Metrics, name: str) -> float:
    """A sample by its name with labels, as Prometheus reads it."""
    lines = metrics.render().decode().splitlines()
    (value,) = [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]
    return float(value)


def counting(
    state: ClusterCache,
    metrics: Metrics,
    *,
    now: list[float],
    forecaster: Callable[..., Sequence[ExpectedStart]] = expected_starts,
) -> Forecasts:
    """Forecasts by a clock that the test moves, and what is counted of them."""
    return Forecasts(
        state=state,
        usage=QueueUsageHistory(half_life=3600.0),
        policy=Policy(),
        clock=lambda: now[0],
        wake=lambda: None,
        caught_up=no_wait,
        metrics=metrics.forecasts,
        forecaster=forecaster,
    )


async def test_a_first_forecast_is_compared_with_the_start() -> None:
    """Expected 900 s ahead, nine in ten within 1,200; started after 1,000: off by a tenth."""
    state, metrics = a_full_node(), Metrics()
    now = [NOW]

    def expect(cycle: CycleInput, **_: object) -> tuple[ExpectedStart, ...]:
        start = NOW + 900 if cycle.now == NOW else cycle.now + 1.0  # later ones are easy
        return (ExpectedStart(key="team/waits", uid="2", p50_at=start, p90_at=start + 300),)

    forecasts = counting(state, metrics, now=now, forecaster=expect)
    await forecasts.forecast()
    now[0] = NOW + 950
    await forecasts.forecast()
    status = {**assignment("node-0"), "phase": "Running", "admittedAt": timestamp(NOW + 1000)}
    started = job_view("waits", uid="2", status=status, nodes=1, gpusPerNode=8)
    state.on_job(job_view("waits", uid="2", nodes=1, gpusPerNode=8), started)
    for _ in range(2):  # it is counted once
        now[0] += 60
        await forecasts.forecast()
    assert counted(metrics, "drumline_forecast_error_ratio_count") == 1
    assert counted(metrics, "drumline_forecast_error_ratio_sum") == 0.1
    assert counted(metrics, 'drumline_forecasts_total{start="band"}') == 1


async def test_a_forecast_does_not_try_gangs_again_that_the_scheduler_set_aside() -> None:
    asked: list[CycleInput] = []

    def forecast(cycle: CycleInput, **_: object) -> tuple[()]:
        asked.append(cycle)
        return ()

    forecasts = counting(a_full_node(), Metrics(), now=[NOW], forecaster=forecast)
    forecasts.set_aside = (GangFault(key="team/waits", uid="2", stage="admit", error="planted"),)
    await forecasts.forecast()
    assert asked[0].set_aside == forecasts.set_aside


def look(forecasts: Forecasts, state: ClusterCache, *, now: float, reason: BlockReason) -> None:
    """A cycle in which the job that waits is rejected for that reason."""
    rejected = Blocked(key="team/waits", uid="2", reason=reason, message="")
    forecasts.add_rough_forecasts(
        [rejected],
        snapshot=state.scheduling.snapshot(now=now),
        pending=state.scheduling.pending(),
        now=now,
    )


def nothing_in_sight(_cycle: CycleInput, **_: object) -> tuple[ExpectedStart, ...]:
    """A simulated future that is too short."""
    return (ExpectedStart(key="team/waits", uid="2", p50_at=None, p90_at=None),)


async def test_a_new_job_has_a_band_in_the_cycle_that_rejects_it() -> None:
    state = a_full_node()
    forecasts = counting(state, Metrics(), now=[NOW], forecaster=nothing_in_sight)
    look(forecasts, state, now=NOW, reason=BlockReason.INSUFFICIENT_GPUS)
    at_once = forecasts.of("2")
    assert at_once is not None
    assert at_once.p50_at is not None
    assert at_once.p90_at is not None
    assert NOW < at_once.p50_at < at_once.p90_at
    await forecasts.forecast()
    look(forecasts, state, now=NOW, reason=BlockReason.INSUFFICIENT_GPUS)
    assert forecasts.of("2") == at_once  # the simulated future did not see it start


async def test_a_pod_at_the_gate_has_a_start_that_is_kept_while_others_come() -> None:
    state = a_full_node(admits_workloads=True)
    state.on_pod(None, gated("book"))
    forecasts = counting(state, Metrics(), now=[NOW])
    await forecasts.forecast()
    (book,) = (gang for gang in state.scheduling.pending() if gang.is_foreign)
    expected = forecasts.of(book.uid)
    assert expected is not None
    assert expected.p50_at is not None
    look(forecasts, state, now=NOW, reason=BlockReason.INSUFFICIENT_GPUS)
    assert forecasts.of(book.uid) == expected


async def test_a_simulated_start_replaces_a_rough_one() -> None:
    state = a_full_node()

    def expect(_cycle: CycleInput, **_: object) -> tuple[ExpectedStart, ...]:
        return (ExpectedStart(key="team/waits", uid="2", p50_at=NOW + 9000, p90_at=NOW + 99_000),)

    forecasts = counting(state, Metrics(), now=[NOW], forecaster=expect)
    look(forecasts, state, now=NOW, reason=BlockReason.INSUFFICIENT_GPUS)
    await forecasts.forecast()
    look(forecasts, state, now=NOW, reason=BlockReason.INSUFFICIENT_GPUS)
    expected = forecasts.of("2")
    assert expected is not None
    assert (expected.p50_at, expected.p90_at) == (NOW + 9000, NOW + 99_000)


async def test_what_delayed_starts_were_worth_moves_the_next_forecast() -> None:
    """Each time 900 s were expected and 3,000 s passed: the tenth forecast says about that."""
    state, metrics = a_full_node(), Metrics()
    now = [NOW]

    def expect(cycle: CycleInput, **_: object) -> tuple[ExpectedStart, ...]:
        return (
            ExpectedStart(
                key="team/waits", uid="2", p50_at=cycle.now + 900, p90_at=cycle.now + 901
            ),
        )

    forecasts = counting(state, metrics, now=now, forecaster=expect)
    for _ in range(10):
        await forecasts.forecast()
        now[0] += 3000
        before = job_view("waits", uid="2", nodes=1, gpusPerNode=8)
        status = {"phase": "Pending", "admittedAt": timestamp(now[0])}  # preempted at once
        state.on_job(before, job_view("waits", uid="2", status=status, nodes=1, gpusPerNode=8))
        now[0] += 60
    await forecasts.forecast()
    expected = forecasts.of("2")
    assert expected is not None
    assert expected.p50_at is not None
    assert expected.p50_at - now[0] == pytest.approx(3000, rel=0.1)


async def test_a_first_look_without_a_band_is_unknown_whatever_later_forecasts_say() -> None:
    state, metrics = a_full_node(), Metrics()
    now = [NOW]

    def expect(cycle: CycleInput, **_: object) -> tuple[ExpectedStart, ...]:
        at = None if cycle.now == NOW else NOW + 6000
        return (ExpectedStart(key="team/waits", uid="2", p50_at=at, p90_at=at),)

    forecasts = counting(state, metrics, now=now, forecaster=expect)
    look(forecasts, state, now=NOW, reason=BlockReason.WAITING_FOR_JOBS)
    assert forecasts.of("2") is None
    now[0] = NOW + OLDEST_SECONDS
    await forecasts.forecast()
    status = {**assignment("node-0"), "phase": "Running", "admittedAt": timestamp(NOW + 5000)}
    started = job_view("waits", uid="2", status=status, nodes=1, gpusPerNode=8)
    state.on_job(job_view("waits", uid="2", nodes=1, gpusPerNode=8), started)
    now[0] = NOW + 5060
    await forecasts.forecast()
    assert counted(metrics, "drumline_forecast_error_ratio_count") == 0
    assert counted(metrics, 'drumline_forecasts_total{start="unknown"}') == 1


@pytest.mark.parametrize("phase", ["Succeeded", "Pending"])
async def test_a_job_that_ran_and_left_between_two_forecasts_is_counted(phase: str) -> None:
    """It has ended, or was preempted and waits again: either way it started."""
    state, metrics = a_full_node(), Metrics()
    now = [NOW]

    def expect(_cycle: CycleInput, **_: object) -> tuple[ExpectedStart, ...]:
        at = NOW + 900
        return (ExpectedStart(key="team/waits", uid="2", p50_at=at, p90_at=at + 300),)

    forecasts = counting(state, metrics, now=now, forecaster=expect)
    await forecasts.forecast()
    before = job_view("waits", uid="2", nodes=1, gpusPerNode=8)
    status = {"phase": phase, "admittedAt": timestamp(NOW + 1000)}
    state.on_job(before, job_view("waits", uid="2", status=status, nodes=1, gpusPerNode=8))
    now[0] = NOW + 1060
    await forecasts.forecast()
    assert counted(metrics, 'drumline_forecasts_total{start="band"}') == 1


def running(name: str, *, uid: str, since: float) -> TrainingJobView:
    """A job that has the node."""
    status = {**assignment("node-0"), "phase": "Running", "admittedAt": timestamp(since)}
    return job_view(name, uid=uid, status=status, nodes=1, gpusPerNode=8)


@pytest.mark.parametrize("seen", [True, False], ids=["seen running", "between two looks"])
@pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "rough"])
async def test_who_waits_again_has_a_new_band_before_the_next_simulated_future(
    seen: bool, simulated: bool
) -> None:
    """It is rejected in a cycle while the next future is still worked out."""
    state, now = a_full_node(), [NOW]
    at_once: list[ExpectedStart | None] = []

    def expect(_cycle: CycleInput, **_: object) -> tuple[ExpectedStart, ...]:
        if now[0] == NOW:
            at = NOW + 900 if simulated else None
            return (ExpectedStart(key="team/waits", uid="2", p50_at=at, p90_at=at),)
        at_once.append(forecasts.of("2"))
        look(forecasts, state, now=now[0], reason=BlockReason.INSUFFICIENT_GPUS)
        at_once.append(forecasts.of("2"))
        return ()

    forecasts = counting(state, Metrics(), now=now, forecaster=expect)
    await forecasts.forecast()
    look(forecasts, state, now=NOW, reason=BlockReason.INSUFFICIENT_GPUS)
    job = running("waits", uid="2", since=NOW + 1000)
    state.on_job(job_view("runs", uid="1", nodes=1, gpusPerNode=8), None)
    state.on_job(job_view("waits", uid="2", nodes=1, gpusPerNode=8), job)
    now[0] = NOW + 1060
    if seen:
        await forecasts.forecast()
    status = {"phase": "Pending", "admittedAt": timestamp(NOW + 1000)}  # preempted by the next
    state.on_job(job, job_view("waits", uid="2", status=status, nodes=1, gpusPerNode=8))
    state.on_job(None, running("next", uid="3", since=NOW + 1100))
    now[0] = NOW + 20_000
    await forecasts.forecast()
    past, start = at_once
    assert past is None
    assert start is not None
    assert start.p50_at is not None
    assert start.p50_at > now[0]


async def test_a_forecast_of_a_job_that_went_away_is_not_counted() -> None:
    state, metrics = a_full_node(), Metrics()
    forecasts = Forecasts(
        state=state,
        usage=QueueUsageHistory(half_life=3600.0),
        policy=Policy(),
        clock=lambda: NOW,
        wake=lambda: None,
        caught_up=no_wait,
        metrics=metrics.forecasts,
    )
    await forecasts.forecast()
    state.on_job(job_view("waits", uid="2"), None)
    await forecasts.forecast()
    assert counted(metrics, "drumline_forecast_error_ratio_count") == 0
