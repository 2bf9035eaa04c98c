"""Test the least error of a forecaster, and a forecaster that knows every run time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_simulator.input import cluster_file
from drumline_simulator.input.conversion import to_arrivals
from drumline_simulator.input.trace import TraceJob
from tools.bench.forecast_bound import knowing, least_error, median_error

CLUSTER = """
pools: [{name: gpus, nodes: [{count: 1, gpus: 8}]}]
queues: [{name: team, quota: {gpus: 8}}]
"""


@pytest.mark.parametrize(
    ("waits", "error"),
    [
        ([[600.0, 660.0, 900.0, 2400.0, 7200.0]], 0.2),  # 720 s is within 20 % of three
        ([[60.0, 60.0, 900.0]], 0.0),
        ([[60.0, 180.0], [60.0, 60.0]], 0.0),  # three of four are met
        ([[100.0, 300.0, 900.0, 2700.0]], 0.5),
        ([[100.0, None, None]], 0.0),
    ],
)
def test_the_least_error_meets_half_of_all_waits(
    waits: list[list[float | None]], error: float
) -> None:
    assert least_error(waits) == pytest.approx(error, abs=0.002)


@pytest.mark.parametrize(("later", "error"), [((), 0.0), ((500.0,), 0.5)])
def test_known_run_times_err_only_because_of_later_jobs(
    later: tuple[float, ...], error: float
) -> None:
    """Job 2 waits for 1,000 s. A later job of higher priority doubles its wait."""
    setup = cluster_file.parse(CLUSTER, file="cluster")
    first = TraceJob(
        line=None,
        name="first",
        user="ann",
        queue="team",
        gpus=8,
        submit_seconds=0.0,
        duration_seconds=1000.0,
        max_runtime_seconds=3000.0,
    )
    jobs = [first, replace(first, name="waits", submit_seconds=10.0)]
    jobs += [replace(first, name="later", submit_seconds=at, priority=9) for at in later]
    arrivals = to_arrivals(jobs, cluster=setup.cluster, default_queue="", file="jobs")
    actual = median_error(setup, arrivals, every=1e9, forecaster=knowing(arrivals))
    assert actual == pytest.approx(error, abs=0.01)
