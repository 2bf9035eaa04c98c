"""What foreign pods hold: by what made them, charged to whom, and added up."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.overview.usage import usage_rows
from drumline.overview.workloads import workload_of, workload_uses
from tests.unit.overview.objects import (
    NOW,
    a_cluster,
    a_job,
    a_pod,
    a_pool,
    a_queue,
    at,
    running,
)

PARTS = {"partsPerGpu": 7, "resources": [{"resource": "nvidia.com/mig-3g.40gb", "parts": 3}]}


def owned(kind: str, name: str, **labels: str) -> dict[str, Any]:
    owner = {"kind": kind, "name": name, "uid": "o", "apiVersion": "v1", "controller": True}
    return {"ownerReferences": [owner], "labels": labels}


@pytest.mark.parametrize(
    ("metadata", "workload"),
    [
        ({}, "team/pods/a"),
        (
            owned("ReplicaSet", "chat-7d9f", **{"pod-template-hash": "7d9f"}),
            "team/deployments/chat",
        ),
        (owned("ReplicaSet", "by-hand"), "team/replicasets/by-hand"),
        (owned("StatefulSet", "book"), "team/statefulsets/book"),
        (owned("Job", "set-w-0", **{"jobset.sigs.k8s.io/jobset-name": "set"}), "team/jobsets/set"),
    ],
)
def test_a_pod_belongs_to_what_made_it(metadata: dict[str, Any], workload: str) -> None:
    (pod,) = a_cluster(a_pod("a", metadata=metadata)).pods
    assert workload_of(pod) == workload


def test_pods_of_one_workload_are_one_and_those_that_ended_hold_nothing() -> None:
    owner = owned("StatefulSet", "book")
    ended = {
        "phase": "Succeeded",
        "startTime": at(-500),
        "containerStatuses": [
            {"name": "main", "state": {"terminated": {"exitCode": 0, "finishedAt": at(-400)}}}
        ],
    }
    cluster = a_cluster(
        a_queue("research"),
        a_pool(),
        a_pod("book-0", gpus=2, metadata=owner),
        a_pod("book-1", gpus=2, metadata=owner, status={"phase": "Running", "startTime": at(-60)}),
        a_pod("book-2", gpus=2, metadata=owner, status=ended),
        a_pod("waits", status={"phase": "Pending"}),
        a_pod("of-a-job", metadata={"labels": {"drumline.dev/job": "llama"}}),
        a_pod("small", gpus=0),
    )
    (use,) = workload_uses(cluster)
    assert (use.workload, use.queue, use.gpus, use.pods) == (
        "team/statefulsets/book",
        "research",
        4,
        2,
    )
    assert use.since == NOW - 300
    assert sorted(stay.gpu_seconds() for stay in use.stays) == [120, 200, 600]


def test_parts_of_gpus_count_as_what_they_are_of_one() -> None:
    part = {"containers": [{"resources": {"limits": {"nvidia.com/mig-3g.40gb": 2}}}]}
    first = {"initContainers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    cluster = a_cluster(
        a_pool(partitions=PARTS), a_pod("part", spec=part), a_pod("init", spec=first)
    )
    assert [(use.workload, use.gpus) for use in workload_uses(cluster)] == [
        ("team/pods/init", 1),
        ("team/pods/part", pytest.approx(6 / 7)),
    ]


@pytest.mark.parametrize(
    ("named", "pays"),
    [
        ({"namespaces": ["team"]}, "research"),
        ({"namespaces": ["else"], "namespaceSelector": {"matchLabels": {"a": "b"}}}, "research"),
        ({"namespaces": ["else"]}, "rest"),
    ],
)
def test_a_queue_that_is_closed_does_not_pay_and_the_one_for_the_rest_does(
    named: dict[str, Any], pays: str
) -> None:
    rest = a_queue("rest", paysForUnclaimedPods=True)
    pods = a_pod("closed"), a_pod("nowhere", queue="none")
    uses = workload_uses(a_cluster(a_queue("research", **named), rest, *pods))
    assert {use.workload: use.queue for use in uses} == {
        "team/pods/closed": pays,
        "team/pods/nowhere": "rest",
    }
    assert workload_uses(a_cluster(a_queue("research", namespaces=["else"]), *pods)) == ()


def test_use_by_queue_and_user_counts_foreign_pods_beside_jobs() -> None:
    held = running(gpuSeconds={"until": at(0), "productive": 800})
    cluster = a_cluster(
        a_job("llama", spec={"user": "ada"}, status={**held, "finishedAt": at(0)}),
        a_pod("chat", gpus=4),
    )
    uses = workload_uses(cluster)

    def rows(*by: str, since: float | None = None) -> list[tuple[Any, ...]]:
        made = usage_rows(cluster.jobs, workloads=uses, by=by, since=since, now=NOW)
        return [(row.by, row.jobs, row.workloads, row.gpu_seconds, row.foreign) for row in made]

    assert rows("queue") == [(("research",), 1, 1, 2000, 1200)]
    assert rows("user") == [(("foreign pods",), 0, 1, 1200, 1200), (("ada",), 1, 0, 800, 0)]
    assert rows("job", "phase")[0] == (("team/pods/chat", "Foreign"), 0, 1, 1200, 1200)
    assert rows("namespace", since=NOW - 100)[0][4] == 400
