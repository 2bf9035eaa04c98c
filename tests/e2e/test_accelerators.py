"""GPUs of other vendors than NVIDIA, as device plugins offer them, on real kubelets.

The devices do not exist, so the ranks compute on processors: what is shown is that pods ask for the
vendor's resource, get its devices, pass its taint, and that the trainer needs nothing of NVIDIA.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cluster.nodes import other_devices
from tests.e2e.site import QUEUE, Site
from tests.kube import Json

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
            site.kube.wait("nodes", node.name, None, _offers(resource, "2"), seconds=120)
        more = [{"gpuPool": name, "nominalGpus": 2} for name in VENDORS]
        site.kube.patch("trainingqueues", QUEUE, {"spec": {"quotas": [*quotas, *more]}})
        yield site
        for job in site.kube.list("trainingjobs", site.namespace):
            site.kube.delete("trainingjobs", job["metadata"]["name"], site.namespace)
        site.kube.wait_all("pods", site.namespace, lambda pods: not pods, seconds=180)
        site.kube.patch("trainingqueues", QUEUE, {"spec": {"quotas": quotas}})
    for name, node in zip(VENDORS, nodes, strict=True):
        site.kube.delete("gpupools", name)
        _change(site, node.name, label=None, taint=None)


def _change(site: Site, node: str, *, label: str | None, taint: str | None) -> None:
    labels = {"example.com/vendor": label, NVIDIA: None if label else "true"}
    taints = [{"key": taint, "effect": "NoSchedule"}] if taint else None
    site.kube.patch("nodes", node, {"metadata": {"labels": labels}, "spec": {"taints": taints}})


def _offers(resource: str, count: str) -> object:
    return lambda node: (node or {}).get("status", {}).get("allocatable", {}).get(resource) == count


def test_the_bundled_trainer_trains_on_devices_of_other_vendors(vendors: Site) -> None:
    for name in VENDORS:
        vendors.submit(name, gpuPool=name, gpusPerNode=2, trainer={"steps": 20})
    for name, resource in VENDORS.items():
        status = vendors.finish(name)
        assert status["step"] == 20
        (pod,) = vendors.pods(name)
        limits: Json = pod["spec"]["containers"][0]["resources"]["limits"]
        assert {each: limits[each] for each in limits if "/" in each} == {resource: "2"}
