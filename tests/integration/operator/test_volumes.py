"""A job goes where its bound volume can be mounted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.operator.conftest import Site, with_claim
from tests.kube import Json

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=1)]


@pytest.fixture
def volume(site: Site) -> Iterator[str]:
    """The name of a volume that only the last node can mount, bound to the claim `data`."""
    name = f"{site.namespace}-local"
    labels = site.kube.get("nodes", site.nodes[3])["metadata"]["labels"]
    here: Json = {"key": "kubernetes.io/hostname", "operator": "In"}
    here["values"] = [labels["kubernetes.io/hostname"]]
    terms = [{"matchExpressions": [here]}]
    common: Json = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **common,
                "capacity": {"storage": "1Gi"},
                "local": {"path": "/data"},
                "claimRef": {"namespace": site.namespace, "name": "data"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            },
        }
    )
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": site.namespace},
            "spec": {
                **common,
                "resources": {"requests": {"storage": "1Gi"}},
                "volumeName": name,
            },
        }
    )
    yield name
    site.kube.delete("persistentvolumes", name)


def test_a_job_is_placed_on_the_only_node_that_can_mount_its_volume(
    site: Site, volume: str
) -> None:
    del volume
    site.submit("reads", nodes=1, gpusPerNode=8, template=with_claim("data"))
    (pod,) = site.kube.wait_all("pods", site.namespace, bool, labels="drumline.dev/job=reads")
    assert pod["spec"]["nodeName"] == site.nodes[3]
