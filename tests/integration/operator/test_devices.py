"""GPUs that exist as devices alone: counted, allocated and bound by us, with the chart's rights.

API server and controller manager are real, and so is what they make of claims; drivers and kubelets
are played: the test publishes the slices, KWOK runs what is bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.operator.conftest import Site, next_nodes
from tests.integration.operator.dra import allocating_operator
from tests.kube import Json, Kube, phase_is, reason_is
from tools.cluster.kwok import fake_node

pytestmark = [pytest.mark.usefixtures("no_operator"), pytest.mark.extended(keep=1)]

DRIVER = "gpu.example.com"
TAINT = {"key": "gpu.example.com/xid", "value": "79", "effect": "NoSchedule"}


@pytest.fixture
def devices(site: Site, api: Kube, tmp_path: Path) -> Iterator[Site]:
    """A pool of one node with four devices of which one is tainted, and a queue for them."""
    name = f"{site.pool}-dra"
    node = fake_node(next_nodes(), gpus=0, nodes_per_rack=1)
    node["metadata"]["labels"]["drumline.test/site"] = name
    for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
        amounts.pop("nvidia.com/gpu", None)
    host = node["metadata"]["name"]
    made: list[Json] = [
        node,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": DRIVER},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
        },
        a_slice(host),
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "GpuPool",
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"drumline.test/site": name},
                "devices": {"driver": DRIVER, "deviceClassName": DRIVER},
            },
        },
    ]
    for manifest in made:
        api.ensure(manifest)
    quotas = [{"gpuPool": name, "nominalGpus": 8}]
    api.patch("trainingqueues", site.queue, {"spec": {"quotas": quotas}})
    with allocating_operator(api, tmp_path):
        try:
            yield replace(site, pool=name, nodes=(host,))
        finally:
            for job in api.list("trainingjobs", site.namespace):
                api.delete("trainingjobs", job["metadata"]["name"], site.namespace)
            for plural, gone in (
                ("resourceslices", f"{host}-slice"),
                ("nodes", host),
                ("gpupools", name),
                ("deviceclasses", DRIVER),
            ):
                api.delete(plural, gone)


def a_slice(host: str) -> Json:
    """What a driver publishes."""
    gpus = [{"name": f"gpu-{i}", "attributes": {"type": {"string": "gpu"}}} for i in range(4)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{host}-slice"},
        "spec": {
            "driver": DRIVER,
            "nodeName": host,
            "pool": {"name": host, "generation": 1, "resourceSliceCount": 1},
            "devices": [*gpus[:3], {**gpus[3], "taints": [TAINT]}],
        },
    }


def claim_of(site: Site, job: str) -> Json:
    """The claim that the status of the job's only pod names."""
    (pod,) = site.pods(job)
    status = pod["status"]["extendedResourceClaimStatus"]
    (mapping,) = status["requestMappings"]
    (container,) = pod["spec"]["containers"]
    assert mapping["containerName"] == container["name"]
    claim = site.kube.get("resourceclaims", status["resourceClaimName"], site.namespace)
    (reserved,) = claim["status"]["reservedFor"]
    assert reserved["uid"] == pod["metadata"]["uid"]
    return claim


def devices_of(claim: Json) -> set[str]:
    return {each["device"] for each in claim["status"]["allocation"]["devices"]["results"]}


def test_each_pod_gets_devices_of_its_own_and_a_job_waits_for_the_tainted_one(
    devices: Site,
) -> None:
    devices.submit("pair", gpusPerNode=2)
    devices.submit("single")
    for name in ("pair", "single"):
        devices.wait(name, phase_is("Running"))
    pair, single = (devices_of(claim_of(devices, name)) for name in ("pair", "single"))
    assert (len(pair), len(single), pair | single) == (2, 1, {"gpu-0", "gpu-1", "gpu-2"})

    devices.submit("late")
    waits = devices.wait("late", reason_is("InsufficientGpus"))
    assert "0 of 3 free" in waits["status"]["message"]
    devices.end_pods("pair")
    devices.wait("late", phase_is("Running"))
    assert devices_of(claim_of(devices, "late")) < pair


def test_a_job_waits_for_devices_that_an_administrator_has_tainted(devices: Site) -> None:
    rule: Json = {
        "apiVersion": "resource.k8s.io/v1beta2",
        "kind": "DeviceTaintRule",
        "metadata": {"name": devices.pool},
        "spec": {
            "deviceSelector": {"driver": DRIVER, "pool": devices.nodes[0]},
            "taint": {"key": "example.com/repair", "effect": "NoSchedule"},
        },
    }
    devices.kube.ensure(rule)
    try:
        devices.kube.wait("gpupools", devices.pool, None, total_gpus(0))
        devices.submit("early")
        devices.wait("early", reason_is("ResourceNotOffered"))
    finally:
        devices.kube.delete("devicetaintrules", devices.pool)
    devices.wait("early", phase_is("Running"))


def total_gpus(count: int) -> Callable[[Json | None], bool]:
    return lambda pool: pool is not None and pool.get("status", {}).get("totalGpus") == count
