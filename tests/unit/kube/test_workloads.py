"""What Jobs and JobSets ask for, as far as pods can be made of them."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.kube.codec import Undecodable
from drumline.kube.workloads import MAX_PODS, MAX_SHAPES
from tests.unit.controller.workload_bodies import (
    a_job,
    a_job_set,
    job_set_of,
    required,
    template,
    view,
)


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({}, 1),
        ({"parallelism": 3}, 3),
        ({"parallelism": 3, "completions": 2}, 2),
        ({"parallelism": 0}, 0),
    ],
)
def test_a_job_asks_for_the_pods_that_it_runs_at_a_time(spec: dict[str, Any], pods: int) -> None:
    (shape,) = view(a_job(**spec)).shapes
    assert shape.pods == pods


def test_a_template_names_the_claims_of_its_pods() -> None:
    body = a_job()
    pod = body["spec"]["template"]["spec"]
    pod["volumes"] = [
        {"name": "d", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "s", "ephemeral": {}},
    ]
    (shape,) = view(body).shapes
    assert shape.claims == ("data",)


@pytest.mark.parametrize(
    "spec", [{"parallelism": MAX_PODS + 1}, {"parallelism": 2_147_483_647, "completions": 20_000}]
)
def test_a_job_of_more_pods_than_a_training_job_may_have_is_not_looked_at(
    spec: dict[str, Any],
) -> None:
    with pytest.raises(Undecodable, match="at most 10000 are supported"):
        view(a_job(**spec))
    assert view(a_job(parallelism=MAX_PODS)).shapes[0].pods == MAX_PODS


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([{"replicas": 10_001}], "10001 pods"),
        ([{"replicas": 101, "spec": {"parallelism": 100}}], "10100 pods"),
        ([{"replicas": 5_001}, {"replicas": 5_000}], "10001 pods"),
        ([{"replicas": -5, "spec": {"parallelism": -5}}], "-1 pods"),
        ([{}] * (MAX_SHAPES + 1), "kinds of pods"),
        ([{"spec": {"template": template(-4)}}], "a negative amount"),
        ([{"pod": {"tolerations": [{"effect": "Foo"}]}}], "effect"),
        ([{"pod": {"tolerations": [{"operator": "Foo"}]}}], "operator of a toleration"),
        ([{"pod": {"affinity": required({"key": "k", "operator": "Foo"})}}], "node affinity"),
    ],
)
def test_a_job_set_that_no_pods_can_be_made_of_is_not_looked_at(
    parts: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(Undecodable, match=message):
        view(job_set_of(parts))


def test_quantities_of_a_job_set_may_be_integers() -> None:
    container = {"resources": {"limits": {"nvidia.com/gpu": 4}, "requests": {"cpu": 2}}}
    (shape,) = view(job_set_of([{"pod": {"containers": [container]}}])).shapes
    assert shape.requests == {"nvidia.com/gpu": 4, "cpu": 2000}


def test_limits_of_a_pod_become_requests_where_no_container_has_them() -> None:
    pod = {
        "containers": [{"resources": {"requests": {"cpu": 2}}}],
        "resources": {"limits": {"cpu": 8, "memory": 64}},
    }
    (shape,) = view(job_set_of([{"pod": pod}])).shapes
    assert shape.requests == {"cpu": 2000, "memory": 64}


def test_pods_that_have_succeeded_are_none_that_will_run() -> None:
    def pods(body: dict[str, Any], **status: Any) -> list[int]:
        return [shape.pods for shape in view({**body, "status": status}).shapes]

    queue_of_work = a_job(parallelism=4)
    assert pods(queue_of_work) == [4]
    assert pods(queue_of_work, succeeded=3) == [1]
    assert pods(queue_of_work, succeeded=5) == [0]
    assert pods(a_job(parallelism=4, completions=9), succeeded=3) == [4]
    assert pods(a_job(parallelism=4, completions=9), succeeded=7) == [2]
    ended = [{"name": "driver", "succeeded": 0}, {"name": "workers", "succeeded": 2}]
    assert pods(a_job_set(replicas=3)) == [1, 6]
    assert pods(a_job_set(replicas=3), replicatedJobsStatus=ended) == [1, 2]
    assert pods(a_job_set(replicas=1), replicatedJobsStatus=ended) == [1, 0]
