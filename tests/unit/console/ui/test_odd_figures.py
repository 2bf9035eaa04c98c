"""Objects with figures that the API would refuse: an older schema took them, or nobody checks.

The page shows them as they are; none of them breaks it for everybody.
"""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from drumline.overview.objects import ClusterObjects
from drumline.overview.why import why_card
from drumline_console.ui import pages
from tests.unit.overview.objects import (
    a_cluster,
    a_job,
    a_node,
    a_pod,
    a_pool,
    a_priority_class,
    a_queue,
    at,
    running,
)

ODD = (0, -1, -2, 1, 2**31, 2**53, -(2**63), 2**63 - 1)
PARTS = {"partsPerGpu": 7, "resources": [{"resource": "nvidia.com/mig-1g.10gb", "parts": 1}]}
BUDGET = {"gpuHours": 100, "days": 30, "cost": "10.5", "userGpuHours": 3}
USAGE = {"usage": [{"gpuPool": "gpus", "usedGpus": 4, "foreignGpus": 1}]}


def objects() -> list[dict[str, Any]]:
    spot = {"type": "Spot", "pricePerGpuHour": "2.5"}
    partition = {"gpuPool": "gpus", "gpuPartition": "nvidia.com/mig-1g.10gb"}
    waits = {"phase": "Pending", "reason": "QuotaExhausted", "queuedAt": at(-50)}
    return [
        a_queue("root", status=USAGE, budget=BUDGET),
        a_queue("research", status=USAGE, weight=1, parent="root", userLimitGpus=4),
        a_queue("sibling", weight=2, parent="root"),
        a_pool(capacity=spot, partitions=PARTS),
        a_node("n1"),
        a_pod("notebook"),
        a_priority_class("high", 5),
        a_job("runs", spec=partition, status=running(expectedEnd=at(900))),
        a_job("waits", spec={"nodes": 2, "minNodes": 1}, status=waits),
    ]


def changed(value: Any, chance: random.Random, *, share: float) -> Any:
    """The same with some of its figures replaced."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {key: changed(each, chance, share=share) for key, each in fields.items()}
    if isinstance(value, list):
        return [changed(each, chance, share=share) for each in cast("list[Any]", value)]
    odd = isinstance(value, int) and not isinstance(value, bool) and chance.random() < share
    return chance.choice(ODD) if odd else value


def show(cluster: ClusterObjects) -> str:
    for job in cluster.jobs:
        why_card(cluster, job)
    return pages.overview(cluster, archive=True, account=False)


@pytest.mark.parametrize("seed", range(40))
def test_no_figure_breaks_the_page(seed: int) -> None:
    chance = random.Random(seed)
    odd = [changed(each, chance, share=chance.choice((0.1, 0.5))) for each in objects()]
    assert "<h1" in show(a_cluster(*odd))


@pytest.mark.parametrize("weight", [-1, -2, 0])
def test_weights_that_add_up_to_nothing_break_no_share(weight: int) -> None:
    queues = [a_queue("root"), a_queue("a", weight=weight, parent="root")]
    assert "<h1" in show(a_cluster(*queues, a_job("waits", spec={"queue": "a"})))


@pytest.mark.parametrize("parts", [0, -1])
def test_a_gpu_of_no_parts_breaks_nothing(parts: int) -> None:
    pool = a_pool(partitions={**PARTS, "partsPerGpu": parts})
    without_pools = [each for each in objects() if each["kind"] != "GpuPool"]
    assert "<h1" in show(a_cluster(pool, *without_pools))
