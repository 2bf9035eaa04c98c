"""One team after another moves from the real Kueue to Drumline, on the same nodes, and back.

docs/beside-kueue.md describes this order; the test holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operator.conftest import Site
from tests.integration.operator.kueue.program import running_kueue
from tests.kube import Json, phase_is, reason_is
from tools.cluster import Cluster

pytestmark = pytest.mark.usefixtures("operator")

GATE = "kueue.x-k8s.io/admission"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PATIENCE_SECONDS = 120


def cluster_queue(name: str, *, gpus: int) -> Json:
    flavor = {"name": name, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": gpus}]}
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": name},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}],
        },
    }


def create_pods(site: Site, name: str, *, count: int) -> None:
    """Create pods with 8 GPUs each in Kueue's queue; they run until they are deleted.

    Plain pods, since KWOK ends the pods of Jobs by itself.
    """
    for index in range(count):
        container = {
            "name": "train",
            "image": "any:1",
            "resources": {"limits": {"nvidia.com/gpu": "8"}, "requests": {"nvidia.com/gpu": "8"}},
        }
        labels = {QUEUE_LABEL: "team", "app": name}
        metadata = {"name": f"{name}-{index}", "namespace": site.namespace, "labels": labels}
        spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
        site.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def set_quota(site: Site, *, kueue: int, drumline: int) -> None:
    spec = cluster_queue(site.namespace, gpus=kueue)["spec"]
    site.kube.patch("clusterqueues", site.namespace, {"spec": spec})
    quotas = [{"gpuPool": site.pool, "nominalGpus": drumline}]
    site.kube.patch("trainingqueues", site.queue, {"spec": {"quotas": quotas}})


def wait_bound(site: Site, name: str, count: int) -> set[str]:
    """Wait until Kueue's pods are on nodes; return the nodes."""

    def all_bound(pods: list[Json]) -> bool:
        return len(pods) == count and all(pod["spec"].get("nodeName") for pod in pods)

    pods = site.kube.wait_all(
        "pods", site.namespace, all_bound, labels=f"app={name}", seconds=PATIENCE_SECONDS
    )
    return {pod["spec"]["nodeName"] for pod in pods}


def nodes_of(site: Site, job: str) -> set[str]:
    return {pod["spec"]["nodeName"] for pod in site.pods(job)}


def is_gated(pod: Json | None) -> bool:
    return GATE in [gate["name"] for gate in (pod or {})["spec"].get("schedulingGates") or []]


def create_queues(site: Site, *, gpus: int) -> None:
    """A flavor of the site's nodes, a ClusterQueue, and a LocalQueue `team`."""
    site.kube.create(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ResourceFlavor",
            "metadata": {"name": site.namespace},
            "spec": {"nodeLabels": {"drumline.test/site": site.namespace}},
        }
    )
    site.kube.create(cluster_queue(site.namespace, gpus=gpus))
    site.kube.create(
        {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "LocalQueue",
            "metadata": {"name": "team", "namespace": site.namespace},
            "spec": {"clusterQueue": site.namespace},
        }
    )


@pytest.fixture
def kueue(site: Site, control_plane: Cluster, tmp_path: Path) -> Iterator[None]:
    """Kueue with its webhooks, and two of the site's four nodes for each system."""
    with running_kueue(site.kube, control_plane, tmp_path):
        create_queues(site, gpus=16)
        set_quota(site, kueue=16, drumline=16)
        yield


@pytest.mark.usefixtures("kueue")
def test_teams_share_nodes_and_move_one_after_another(site: Site) -> None:
    # each system starts what its own quota allows, on nodes that the other one left free
    create_pods(site, "old", count=2)
    theirs = wait_bound(site, "old", 2)
    site.submit("new", nodes=2, gpusPerNode=8)
    site.wait("new", phase_is("Running"), seconds=PATIENCE_SECONDS)
    assert not theirs & nodes_of(site, "new")

    # our pods are none of Kueue's business: no gate, no finalizer, no Workload
    for pod in site.pods("new"):
        assert not pod["spec"].get("schedulingGates")
        assert not any("kueue" in each for each in pod["metadata"].get("finalizers", []))
    owners = {
        owner["kind"]
        for workload in site.kube.list("workloads", site.namespace)
        for owner in workload["metadata"]["ownerReferences"]
    }
    assert owners == {"Pod"}

    # each waits for its own quota although the other system's may be free one day
    create_pods(site, "old-next", count=1)
    site.submit("new-next", nodes=2, gpusPerNode=8)
    site.wait("new-next", reason_is("QuotaExhausted"), seconds=PATIENCE_SECONDS)
    assert is_gated(site.kube.get("pods", "old-next-0", site.namespace))

    # the team moves: its quota first, then its GPUs as its old jobs end
    set_quota(site, kueue=0, drumline=32)
    site.wait("new-next", reason_is("InsufficientGpus"), seconds=PATIENCE_SECONDS)
    for index in range(2):
        site.kube.delete("pods", f"old-{index}", site.namespace, grace=0)
    site.wait("new-next", phase_is("Running"), seconds=PATIENCE_SECONDS)
    assert nodes_of(site, "new-next") == theirs
    assert is_gated(site.kube.get("pods", "old-next-0", site.namespace))

    # and back: Drumline's queue gives up the quota and drains, then Kueue gets it
    site.kube.delete("trainingjobs", "new-next", site.namespace)
    set_quota(site, kueue=16, drumline=16)
    assert wait_bound(site, "old-next", 1) <= theirs


def test_where_kueue_manages_all_pods_ours_are_rejected_and_the_job_says_so(
    site: Site, control_plane: Cluster, tmp_path: Path
) -> None:
    with running_kueue(site.kube, control_plane, tmp_path, manage_all=True):
        create_queues(site, gpus=16)
        site.submit("new", nodes=1, gpusPerNode=8)
        job = site.wait("new", reason_is("ApiRefused"), seconds=PATIENCE_SECONDS)
        assert "schedulingGates" in job["status"]["conditions"][0]["message"]
