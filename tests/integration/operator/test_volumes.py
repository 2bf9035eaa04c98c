"""Place a job on a node that can mount and attach its bound volume."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.operator.conftest import Site, with_claim
from tests.kube import Json

pytestmark = [
    pytest.mark.usefixtures("operator"),
    pytest.mark.extended(keep=5, of="corners of a cluster"),
]
DRIVER = "disks.example.com"


def bound_volume(site: Site, **source: Json) -> str:
    """Create a volume that is bound to the claim `data`, and return its name."""
    name = f"{site.namespace}-data"
    common: Json = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    claim: Json = {"namespace": site.namespace, "name": "data"}
    spec = {**common, "capacity": {"storage": "1Gi"}, "claimRef": claim, **source}
    volume = {"kind": "PersistentVolume", "metadata": {"name": name}, "spec": spec}
    site.kube.create({"apiVersion": "v1", **volume})
    asked = {**common, "resources": {"requests": {"storage": "1Gi"}}, "volumeName": name}
    claimed = {"kind": "PersistentVolumeClaim", "metadata": claim, "spec": asked}
    site.kube.create({"apiVersion": "v1", **claimed})
    return name


@pytest.fixture
def local_volume(site: Site) -> Iterator[str]:
    """Yield the name of a volume that only the last node can mount."""
    labels = site.kube.get("nodes", site.nodes[3])["metadata"]["labels"]
    here: Json = {"key": "kubernetes.io/hostname", "operator": "In"}
    here["values"] = [labels["kubernetes.io/hostname"]]
    affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}
    name = bound_volume(site, local={"path": "/data"}, nodeAffinity=affinity)
    yield name
    site.kube.delete("persistentvolumes", name)


@pytest.fixture
def disk(site: Site) -> Iterator[str]:
    """Yield the name of a disk. Only the last node has a free attachment."""
    name = bound_volume(site, csi={"driver": DRIVER, "volumeHandle": site.namespace})
    for node in site.nodes:
        count = 1 if node == site.nodes[3] else 0
        driver = {"name": DRIVER, "nodeID": node, "allocatable": {"count": count}}
        owner = {"apiVersion": "storage.k8s.io/v1", "kind": "CSINode"}
        site.kube.create({**owner, "metadata": {"name": node}, "spec": {"drivers": [driver]}})
    yield name
    for node in site.nodes:
        site.kube.delete("csinodes", node)
    site.kube.delete("persistentvolumes", name)


def node_of_reader(site: Site) -> str:
    site.submit("reads", nodes=1, gpusPerNode=8, template=with_claim("data"))
    (pod,) = site.kube.wait_all("pods", site.namespace, bool, labels="drumline.dev/job=reads")
    return pod["spec"]["nodeName"]


def test_a_job_is_placed_on_the_only_node_that_can_mount_its_volume(
    site: Site, local_volume: str
) -> None:
    del local_volume
    assert node_of_reader(site) == site.nodes[3]


def test_a_job_is_placed_on_the_only_node_that_can_attach_its_volume(site: Site, disk: str) -> None:
    del disk
    assert node_of_reader(site) == site.nodes[3]
