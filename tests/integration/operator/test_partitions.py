"""Whole GPUs and MIG devices of one node: placed by kind, charged by their parts of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.integration.operator.conftest import Site, next_nodes
from tests.kube import Json, phase_is, reason_is
from tools.cluster.kwok import fake_node

pytestmark = [
    pytest.mark.usefixtures("operator"),
    pytest.mark.extended(keep=5, of="corners of a cluster"),
]

SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


@pytest.fixture
def mixed(site: Site) -> Iterator[Site]:
    """One node with 2 whole GPUs, 7 small and 2 large MIG devices; a quota of 4 GPUs, 28 parts."""
    name = f"{site.pool}-mixed"
    node = fake_node(next_nodes(), gpus=2, nodes_per_rack=1)
    node["metadata"]["labels"]["drumline.test/site"] = name
    for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
        amounts |= {SMALL: "7", LARGE: "2"}
    site.kube.create(node)
    site.kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "GpuPool",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"drumline.test/site": name},
                "partitions": {
                    "partsPerGpu": 7,
                    "resources": [
                        {"resource": SMALL, "parts": 1},
                        {"resource": LARGE, "parts": 3},
                    ],
                },
            },
        }
    )
    quotas = [{"gpuPool": name, "nominalGpus": 28}]
    site.kube.patch("trainingqueues", site.queue, {"spec": {"quotas": quotas}})
    yield replace(site, pool=name)
    for job in site.kube.list("trainingjobs", site.namespace):
        site.kube.delete("trainingjobs", job["metadata"]["name"], site.namespace)
    site.kube.delete("nodes", node["metadata"]["name"])
    site.kube.delete("gpupools", name)


def uses(parts: int) -> Callable[[Json | None], bool]:
    """Whether a queue's status says that so many parts are used."""
    return lambda queue: any(
        each["usedGpus"] == parts for each in (queue or {}).get("status", {}).get("usage") or ()
    )


def test_each_kind_has_places_of_its_own_and_the_queue_pays_parts(mixed: Site) -> None:
    mixed.submit("whole")
    mixed.submit("small", nodes=7, gpuPartition=SMALL)
    mixed.submit("large", nodes=2, gpuPartition=LARGE)
    for name in ("whole", "small", "large"):
        mixed.wait(name, phase_is("Running"))
    for name, resource in (("whole", "nvidia.com/gpu"), ("small", SMALL), ("large", LARGE)):
        (limits, *_) = [
            pod["spec"]["containers"][0]["resources"]["limits"] for pod in mixed.pods(name)
        ]
        assert [each for each in limits if "/" in each] == [resource]
    # 1 x 7 + 7 x 1 + 2 x 3 = 20 of 28 parts; a whole GPU is free, and is no small one
    mixed.kube.wait("trainingqueues", mixed.queue, None, uses(20))
    mixed.submit("one-more", gpuPartition=SMALL)
    job = mixed.wait("one-more", reason_is("InsufficientResources"))
    assert SMALL in job["status"]["message"]


def test_a_partition_that_the_pool_does_not_offer_is_named(mixed: Site) -> None:
    mixed.submit("unknown", gpuPartition="nvidia.com/mig-2g.20gb")
    job = mixed.wait("unknown", reason_is("PoolNotFound"))
    assert (
        f"no partition nvidia.com/mig-2g.20gb; it has {SMALL}, {LARGE}" in job["status"]["message"]
    )
