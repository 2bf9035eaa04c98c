"""Two operators on nodes of their own: the node with the leader dies, and a new version rolls out.

Not in `make test`: `make test-all WHAT=e2e`. What is measured is printed (`-rP`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.e2e.absence import DEPLOYMENT, LABELS
from tests.e2e.rehearsals import REHEARSED, rehearse
from tests.e2e.site import PREEMPTION_SECONDS, SLEEPER, VALUES, Site
from tests.kube import Json, Kube, phase_is
from tools import install
from tools.cluster import Cluster, NodeInfo
from tools.cluster.kwok import is_ready
from tools.cluster.nodes import boot, power_off
from tools.install import SYSTEM_NAMESPACE

LEASE = "drumline-operator"
HOST = "kubernetes.io/hostname"
RESTARTED = "drumline.test/restarted"


@pytest.fixture(scope="module", autouse=True)
def two_operators(cluster: Cluster, drumline: Kube) -> Iterator[None]:
    """As the chart has them by default: spread over the nodes; afterwards as the others expect."""
    values: Json = {"preemptionSeconds": PREEMPTION_SECONDS, "replicas": 2}
    install.install(cluster, say=print, progress_seconds=1, values=values)
    drumline.wait_all("pods", SYSTEM_NAMESPACE, are_two, labels=LABELS)
    yield
    install.install(cluster, say=print, progress_seconds=1, values=VALUES)


def are_two(pods: list[Json]) -> bool:
    """Whether there are two operators, ready and not on one node."""
    nodes = {pod["spec"].get("nodeName") for pod in pods}
    return len(pods) == len(nodes) == 2 and all(map(is_ready, pods))


def holder(kube: Kube) -> str:
    lease = kube.get("leases", LEASE, SYSTEM_NAMESPACE)
    return lease["spec"].get("holderIdentity", "")


def leader_of(kube: Kube, pods: list[Json]) -> Json:
    """The operator that holds the Lease, once one of these does."""
    names = {pod["metadata"]["name"]: pod for pod in pods}

    def is_held(lease: Json | None) -> bool:
        return lease is not None and lease["spec"].get("holderIdentity", "") in names

    kube.wait("leases", LEASE, SYSTEM_NAMESPACE, is_held)
    return names[holder(kube)]


def is_decided(job: Json | None) -> bool:
    return job is not None and "assignment" in job.get("status", {})


def test_a_dead_node_with_the_leader_costs_the_rest_of_its_lease(
    site: Site, cluster: Cluster
) -> None:
    """The one that stood by decides, once the Lease has ended."""
    kube = site.kube
    pods = kube.list("pods", SYSTEM_NAMESPACE, labels=LABELS)
    leader = leader_of(kube, pods)
    (standby,) = [pod for pod in pods if pod is not leader]
    dies = node_of(cluster, leader["spec"]["nodeName"])
    lives = {HOST: standby["spec"]["nodeName"]}
    site.submit("before", nodes=1, gpusPerNode=1, template=SLEEPER, nodeSelector=lives)
    before = site.wait("before", phase_is("Running"))
    power_off(dies, folder=cluster.folder)
    died_at = time.monotonic()
    try:
        site.submit("after", nodes=1, gpusPerNode=1, template=SLEEPER, nodeSelector=lives)
        site.wait("after", is_decided)
        seconds = time.monotonic() - died_at
        # a replacement of the dead leader would have another name
        assert holder(kube) == standby["metadata"]["name"]
        site.wait("after", phase_is("Running"))
        print(f"first decision {seconds:.1f} s after the leader's node lost its power")
        assert lives_on(site, before)
    finally:
        boot(dies, folder=cluster.folder)
        kube.wait("nodes", dies.name, None, lambda node: is_usable(node, gpus=dies.gpus))
        kube.wait_all("pods", SYSTEM_NAMESPACE, are_two, labels=LABELS)


def test_a_rolling_update_takes_no_step_and_no_pod_of_a_running_job(site: Site) -> None:
    kube = site.kube
    job = rehearse(site, "trains", pace_seconds=0.15, **{**REHEARSED, "steps": 400})
    job.reach(5)
    before = kube.get("trainingjobs", "trains", site.namespace)
    members = {index: pod["metadata"]["uid"] for index, pod in job.members().items()}
    old = {pod["metadata"]["name"] for pod in kube.list("pods", SYSTEM_NAMESPACE, labels=LABELS)}
    annotations = {RESTARTED: str(time.time_ns())}
    template = {"template": {"metadata": {"annotations": annotations}}}
    kube.patch("deployments", DEPLOYMENT, {"spec": template}, SYSTEM_NAMESPACE)
    waited: list[float] = []

    def are_new(pods: list[Json]) -> bool:
        return are_two(pods) and not old & {pod["metadata"]["name"] for pod in pods}

    for number in range(3):  # while the operators change, at its begin and at its end
        name, asked_at = f"meanwhile-{number}", time.monotonic()
        site.submit(name, nodes=1, gpusPerNode=1, template=SLEEPER)
        site.wait(name, is_decided)
        waited.append(time.monotonic() - asked_at)
        if number == 1:
            kube.wait_all("pods", SYSTEM_NAMESPACE, are_new, labels=LABELS)
        kube.delete("trainingjobs", name, site.namespace)
    print("decisions during the update after", ", ".join(f"{each:.1f} s" for each in waited))
    assert holder(kube) not in old
    job.goes_on()
    assert lives_on(site, before)
    assert {index: pod["metadata"]["uid"] for index, pod in job.members().items()} == members
    steps = [step for step, _ in job.written()]
    assert steps == list(range(steps[0], steps[-1] + 1)), "a step was done twice or left out"
    job.hurry()
    job.finish()


def lives_on(site: Site, before: Json) -> bool:
    """Whether the job runs as it did: the same gang, nothing restarted."""
    name = before["metadata"]["name"]
    status = site.kube.get("trainingjobs", name, site.namespace)["status"]
    kept = ("phase", "generation", "restarts")
    return [status.get(field) for field in kept] == [before["status"].get(field) for field in kept]


def node_of(cluster: Cluster, name: str) -> NodeInfo:
    return next(node for node in cluster.nodes if node.name == name)


def is_usable(node: Json | None, *, gpus: int) -> bool:
    """Whether the node is back with its GPUs."""
    if node is None or not is_ready(node):
        return False
    return node["status"]["allocatable"].get("nvidia.com/gpu") == str(gpus)
