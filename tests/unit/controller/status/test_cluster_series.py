"""Which jobs and nodes have series, and when a gang counts as partly bound."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.usage.cluster_series import GRACE_SECONDS, cluster_series
from drumline.lifecycle.model.timestamps import timestamp
from drumline.telemetry.cluster_series import (
    MOST_PLACES,
    ClusterSeries,
    ClusterSeriesCollector,
    JobSeries,
    PartialGang,
)
from tests.builders import T0
from tests.unit.controller.scheduler.full_node import NOW, a_full_node
from tests.unit.controller.views import (
    assignment,
    job_view,
    node_view,
    pod_view,
    pool_view,
    queue_view,
)

PAST_ITS_START = T0 + 600 + GRACE_SECONDS


def series_of(state: ClusterCache, *, most_jobs: int = 100, now: float = NOW) -> ClusterSeries:
    return cluster_series(
        list(state.jobs.all()),
        snapshot=state.scheduling.snapshot(now=now),
        disruptions=state.nodes.disruptions(),
        pods_of=state.pods.of,
        most_jobs=most_jobs,
        now=now,
    )


def test_jobs_that_hold_gpus_and_jobs_that_wait_have_series() -> None:
    state = a_full_node()
    state.on_job(None, job_view("rests", uid="3", suspend=True))
    state.on_job(None, job_view("ended", uid="4", status={"finishedAt": timestamp(T0)}))
    series = series_of(state)
    assert series.jobs == (
        JobSeries(
            namespace="team",
            name="runs",
            queue="research",
            gpu_pool="h100",
            gpus=8,
            nodes=("node-0",),
        ),
        JobSeries(namespace="team", name="waits", queue="research"),
    )
    assert [(node.name, node.gpu_pool) for node in series.nodes] == [("node-0", "h100")]


def test_series_end_with_their_job() -> None:
    state = a_full_node()
    runs = next(job for job in state.jobs.all() if job.name == "runs")
    assert series_of(state).jobs[0].name == runs.name
    before = job_view("runs", uid="1")
    state.on_job(before, None)
    state.on_pod(pod_view("runs", 0, job_uid="1", gpus=8), None)
    assert [job.name for job in series_of(state).jobs] == ["waits"]


@pytest.mark.parametrize(("most", "names", "left_out"), [(1, ["runs"], 1), (0, [], 2)])
def test_beyond_the_limit_those_that_wait_have_none(
    most: int, names: list[str], left_out: int
) -> None:
    series = series_of(a_full_node(), most_jobs=most)
    assert ([job.name for job in series.jobs], series.jobs_left_out) == (names, left_out)


def a_gang(*bound: int, **status: Any) -> ClusterCache:
    """A gang of two that was admitted at T0, with these members' pods."""
    state = ClusterCache(nodes=NodeCache(clock=lambda: T0))
    for name in ("node-0", "node-1"):
        state.nodes.on_node(None, node_view(name))
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view())
    status = {**assignment("node-0", "node-1"), "admittedAt": timestamp(T0), **status}
    state.on_job(None, job_view("gang", uid="g", status=status))
    for index in bound:
        state.on_pod(None, pod_view("gang", index, job_uid="g", node_name=f"node-{index}"))
    return state


def test_a_gang_that_is_partly_bound_past_its_start_is_named() -> None:
    (partial,) = series_of(a_gang(0), now=PAST_ITS_START).partial
    assert partial == PartialGang(namespace="team", name="gang", queue="research", missing=1)
    # Readers who are not restricted see no name of a job.
    (partial,) = series_of(a_gang(0), most_jobs=0, now=PAST_ITS_START).partial
    assert partial == PartialGang(namespace="", name="", queue="research", missing=1)


@pytest.mark.parametrize(
    ("state", "now"),
    [
        pytest.param(a_gang(0), PAST_ITS_START - 1, id="its start may still take"),
        pytest.param(a_gang(0, 1), PAST_ITS_START, id="whole"),
        pytest.param(a_gang(), PAST_ITS_START, id="not bound at all"),
        pytest.param(a_gang(0, finishedAt=timestamp(T0)), PAST_ITS_START, id="ended"),
        pytest.param(
            a_gang(
                0,
                assignment={"gpuPool": "h100", "nodes": ["node-0", "node-1"], "joining": [1]},
            ),
            PAST_ITS_START,
            id="an elastic gang that grows",
        ),
    ],
)
def test_other_gangs_are_not(state: ClusterCache, now: float) -> None:
    assert series_of(state, now=now).partial == ()


def test_places_are_shown_up_to_their_limit_and_never_half_a_job() -> None:
    collector = ClusterSeriesCollector()
    half = MOST_PLACES // 2 + 1
    collector.newest = ClusterSeries(
        jobs=tuple(
            JobSeries(
                namespace="team",
                name=name,
                queue="q",
                nodes=tuple(f"{name}-{number}" for number in range(half)),
            )
            for name in ("first", "second")
        )
    )
    (places,) = [each for each in collector.collect() if each.name == "drumline_job_node"]
    assert {sample.labels["training_job"] for sample in places.samples} == {"first"}
    assert len(places.samples) == half
