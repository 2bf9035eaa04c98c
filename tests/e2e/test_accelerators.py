"""GPUs of other vendors than NVIDIA, as device plugins offer them, on real kubelets.

The devices do not exist, so the ranks compute on processors: what is shown is that pods ask for the
vendor's resource, get its devices, pass its taint, and that the trainer needs nothing of NVIDIA.
GPUs that are devices of a DRA driver likewise: its kubelet asks the driver to prepare the claims
that the operator allocated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.site import QUEUE, Site
from tests.kube import Json
from tools.cluster.nodes import dra_driver, other_devices

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("DRUMLINE_ACCELERATORS") != "all", reason="make test-all WHAT=accelerators"
    ),
    pytest.mark.extended,
]
VENDORS = {"amd": "amd.com/gpu", "gaudi": "habana.ai/gaudi"}
NVIDIA = "nvidia.com/gpu.present"


@pytest.fixture
def vendors(site: Site) -> Iterator[Site]:
    """Two nodes are taken out of the pool of NVIDIA, each into one of another vendor."""
    quotas = site.kube.get("trainingqueues", QUEUE)["spec"]["quotas"]
    nodes = site.cluster.nodes[:2]
    with ExitStack() as plugins:
        for (name, resource), node in zip(VENDORS.items(), nodes, strict=True):
            plugins.enter_context(other_devices(site.cluster, node, resource=resource, count=2))
            _change(site, node.name, label=name, taint=resource)
            spec = {"nodeSelector": {"example.com/vendor": name}, "gpuResource": resource}
            site.kube.create(
                {
                    "apiVersion": "drumline.dev/v1alpha1",
                    "kind": "GpuPool",
                    "metadata": {"name": name},
                    "spec": spec,
                }
            )
            site.kube.wait("nodes", node.name, None, _offers(resource, "2"))
        more = [{"gpuPool": name, "nominalGpus": 2} for name in VENDORS]
        site.kube.patch("trainingqueues", QUEUE, {"spec": {"quotas": [*quotas, *more]}})
        yield site
        for job in site.kube.list("trainingjobs", site.namespace):
            site.kube.delete("trainingjobs", job["metadata"]["name"], site.namespace)
        site.kube.wait_all("pods", site.namespace, lambda pods: not pods)
        site.kube.patch("trainingqueues", QUEUE, {"spec": {"quotas": quotas}})
    for name, node in zip(VENDORS, nodes, strict=True):
        site.kube.delete("gpupools", name)
        _change(site, node.name, label=None, taint=None)


def _change(site: Site, node: str, *, label: str | None, taint: str | None) -> None:
    labels = {"example.com/vendor": label, NVIDIA: None if label else "true"}
    taints = [{"key": taint, "effect": "NoSchedule"}] if taint else None
    site.kube.patch("nodes", node, {"metadata": {"labels": labels}, "spec": {"taints": taints}})


def _offers(resource: str, count: str) -> Callable[[Json | None], bool]:
    def offered(node: Json | None) -> bool:
        return node is not None and node["status"].get("allocatable", {}).get(resource) == count

    return offered


def test_the_bundled_trainer_trains_on_devices_of_other_vendors(vendors: Site) -> None:
    for name in VENDORS:
        vendors.submit(name, gpuPool=name, gpusPerNode=2, trainer={"steps": 20})
    for name, resource in VENDORS.items():
        status = vendors.finish(name)
        assert status["step"] == 20
        (pod,) = vendors.pods(name)
        limits: Json = pod["spec"]["containers"][0]["resources"]["limits"]
        assert {each: limits[each] for each in limits if "/" in each} == {resource: "2"}


DRIVER = "gpu.example.com"


def _slice(node: str) -> Json:
    gpus = [{"name": f"gpu-{i}", "attributes": {"type": {"string": "gpu"}}} for i in range(2)]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpus"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": gpus,
        },
    }


@pytest.fixture
def driven(site: Site) -> Iterator[tuple[Site, Path]]:
    """A node whose GPUs are devices of a driver, and the driver's log."""
    quotas, node = site.kube.get("trainingqueues", QUEUE)["spec"]["quotas"], site.cluster.nodes[0]
    _change(site, node.name, label="dra", taint=None)
    with dra_driver(site.cluster, node, name=DRIVER) as log:
        wait_for_line(log, "registered True")
        for manifest in (
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": DRIVER},
                "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
            },
            _slice(node.name),
            {
                "apiVersion": "drumline.dev/v1alpha1",
                "kind": "GpuPool",
                "metadata": {"name": "dra"},
                "spec": {
                    "nodeSelector": {"example.com/vendor": "dra"},
                    "gpuResource": "example.com/gpu",
                    "devices": {"driver": DRIVER, "deviceClassName": DRIVER},
                },
            },
        ):
            site.kube.create(manifest)
        more = {"gpuPool": "dra", "nominalGpus": 2}
        site.kube.patch("trainingqueues", QUEUE, {"spec": {"quotas": [*quotas, more]}})
        yield site, log
        for job in site.kube.list("trainingjobs", site.namespace):
            site.kube.delete("trainingjobs", job["metadata"]["name"], site.namespace)
        site.kube.wait_all("pods", site.namespace, lambda pods: not pods)
        site.kube.patch("trainingqueues", QUEUE, {"spec": {"quotas": quotas}})
    site.kube.delete("gpupools", "dra")
    site.kube.delete("resourceslices", f"{node.name}-gpus")
    site.kube.delete("deviceclasses", DRIVER)
    _change(site, node.name, label=None, taint=None)


def wait_for_line(log: Path, beginning: str, *, seconds: float = 180) -> str:
    """A line of a file that another process writes, once it is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if line.startswith(beginning):
                return line
        time.sleep(0.05)
    raise TimeoutError(f"{beginning} is not in {log.read_text()}")


def test_a_kubelet_prepares_what_we_allocate_before_the_ranks_start(
    driven: tuple[Site, Path],
) -> None:
    site, log = driven
    site.submit("dra", gpuPool="dra", gpusPerNode=2, trainer={"steps": 20})
    assert site.finish("dra")["step"] == 20
    (pod,) = site.pods("dra")
    assert pod["spec"]["schedulerName"] == "drumline.dev/devices"
    assert pod["spec"]["nodeName"] == site.cluster.nodes[0].name
    uid = wait_for_line(log, "prepared").split()[1]
    wait_for_line(log, f"unprepared {uid}")
