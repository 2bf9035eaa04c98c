"""Nodes that announce their end, marked as the real components mark them: save, move, or wait."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from drumline_contract import NoticeAnswer
from tests.integration.operator.conftest import OperatorProcess, Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, phase_is, ready
from tests.patience import HANG_SECONDS
from tools.cluster.rest import ApiStatusError

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=4)]

TOO_MANY_REQUESTS = 429


@pytest.fixture
def gang(site: Site) -> Iterator[Trainers]:
    """Three members on three of four nodes, training."""
    with Trainers(site, "gang") as gang:
        gang.submit(nodes=3)
        gang.attend("0-g1", "1-g1", "2-g1")
        gang.running(1)
        yield gang


def node_of(gang: Trainers, name: str) -> str:
    pod = gang.site.kube.get("pods", f"gang-{name}", gang.site.namespace)
    return pod["spec"]["nodeName"]


def save(gang: Trainers, *, step: int) -> None:
    agent = gang.agents["gang-0-g1"]
    agent.change(notice=NoticeAnswer(id=agent.notices[-1].id, step=step, digest=f"d{step}"))


@dataclass(frozen=True)
class Component:
    """How one component announces a node's end: its patches in order, and what it means."""

    patches: tuple[Json, ...]
    kind: str
    seconds: float
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    conditions: tuple[Json, ...] = ()


def tainted(key: str, value: str = "") -> Json:
    return {"spec": {"taints": [{"key": key, "value": value, "effect": "NoSchedule"}]}}


def condition(kind: str, *, status: str = "True", reason: str = "", message: str = "") -> Json:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"type": kind, "status": status, "reason": reason, "message": message, **times}


CORDON: Json = {"spec": {"unschedulable": True}}


def components() -> dict[str, Component]:
    now = datetime.now(UTC)
    termination = (now + timedelta(seconds=60)).strftime("%Y-%m-%dT%H:%M:%SZ")
    hard = {"karpenter.sh/nodeclaim-termination-timestamp": termination}
    since = str(int(now.timestamp()))
    return {
        "AWS node termination handler": Component(
            (CORDON, tainted("aws-node-termination-handler/spot-itn", "spot-itn-0a1b")),
            *("SpotReclaim", 120),
        ),
        "Karpenter takes spot capacity away": Component(
            (tainted("karpenter.sh/disrupted"),),
            *("SpotReclaim", 120),
            labels={"karpenter.sh/capacity-type": "spot"},
        ),
        "Karpenter with a hard deadline": Component(
            ({**tainted("karpenter.sh/disrupted"), "metadata": {"annotations": hard}},),
            *("ScaleDown", 60),
        ),
        "GKE spot": Component(
            (tainted("cloud.google.com/impending-node-termination"),),
            *("SpotReclaim", 15),
            labels={"cloud.google.com/gke-spot": "true"},
        ),
        "Azure spot": Component(
            (),
            *("SpotReclaim", 30),
            conditions=(condition("PreemptScheduled", reason="PreemptScheduled"),),
        ),
        "cluster autoscaler": Component(
            (tainted("ToBeDeletedByClusterAutoscaler", since), CORDON), *("ScaleDown", 600)
        ),
        "node problem detector": Component(
            (), *("Unhealthy", 300), conditions=(condition("KernelDeadlock"),)
        ),
        "EKS node monitoring": Component(
            (),
            *("Hardware", 600),
            conditions=(
                condition("AcceleratedHardwareReady", status="False", reason="NvidiaXID79Error"),
            ),
        ),
    }


def announce(site: Site, node: str, component: Component) -> None:
    for patch in component.patches:
        site.kube.patch("nodes", node, patch)
    if component.conditions:
        known = site.kube.get("nodes", node)["status"]["conditions"]
        body = {"conditions": [*known, *component.conditions]}
        site.kube.patch_status("nodes", node, body, None)


@pytest.mark.extended(keep=1)
@pytest.mark.parametrize("name", components())
def test_a_node_that_announces_its_end_is_left_before_it_goes(gang: Trainers, name: str) -> None:
    component, site, before = components()[name], gang.site, gang.uids()
    doomed = node_of(gang, "1-g1")
    site.kube.patch("nodes", doomed, {"metadata": {"labels": dict(component.labels)}})
    announced = time.time()
    announce(site, doomed, component)

    def asked(job: Json | None) -> bool:
        disruption = (job or {}).get("status", {}).get("disruption", {})
        if disruption.get("kind") != component.kind:
            return False
        left = datetime.fromisoformat(disruption["deadline"]).timestamp() - announced
        return component.seconds - 15 < left < component.seconds + 15

    disruption = site.wait("gang", asked)["status"]["disruption"]
    assert disruption["indices"] == [1]
    notice = gang.noticed("0-g1")
    assert (notice.id, notice.leave) == (disruption["id"], False)
    save(gang, step=42)
    gang.attend("0-g1", "1-g2", "2-g1")
    job = gang.running(2)["status"]
    assert node_of(gang, "1-g2") != doomed
    after = gang.uids()
    for stayed in ("gang-0-g1", "gang-2-g1"):
        assert after[stayed] == before[stayed]
    record = gang.agents["gang-0-g1"].records[-1]
    assert (job["checkpoint"]["step"], record.restore_step) == (42, 42)
    assert "disruption" not in job
    assert job["restarts"] == 0


def drained(site: Site, pod: str) -> None:
    """Evict a pod as `kubectl drain` does: ask until its disruption budget lets it go."""
    until = time.monotonic() + HANG_SECONDS
    while True:
        try:
            site.kube.evict(pod, site.namespace)
        except ApiStatusError as error:
            if error.code != TOO_MANY_REQUESTS or time.monotonic() > until:
                raise
            drains_may_take(site, pod)
        else:
            site.kube.wait("pods", pod, site.namespace, lambda each: each is None)
            return


def drains_may_take(site: Site, *names: str) -> None:
    """Exactly these pods may be evicted."""

    def may(pods: list[Json]) -> bool:
        released = {
            pod["metadata"]["name"]
            for pod in pods
            if pod["metadata"]["labels"]["drumline.dev/protected"] == "false"
        }
        return released == set(names)

    site.kube.wait_all("pods", site.namespace, may)


def cordon(site: Site, *nodes: str, closed: bool = True) -> None:
    for node in nodes:
        site.kube.patch("nodes", node, {"spec": {"unschedulable": closed}})


def movable(job: Json | None) -> bool:
    return bool((job or {}).get("status", {}).get("disruption", {}).get("movable"))


def test_a_cordon_takes_no_member_and_the_drain_that_follows_ends(site: Site) -> None:
    with Trainers(site, "gang") as gang:
        gang.submit(nodes=4)
        gang.attend("0-g1", "1-g1", "2-g1", "3-g1")
        gang.running(1)
        before = gang.uids()
        cordoned = node_of(gang, "2-g1")
        cordon(site, cordoned)
        gang.noticed("0-g1")
        with pytest.raises(ApiStatusError):  # not saved yet
            site.kube.evict("gang-2-g1", site.namespace)
        save(gang, step=7)
        job = site.wait("gang", movable)
        assert (job["status"]["phase"], job["status"]["generation"]) == ("Running", 1)
        assert (_lost(job), gang.uids()) == (None, before)
        drained(site, "gang-2-g1")
        site.wait("gang", lambda job: _lost(job) == [2])
        cordon(site, cordoned, closed=False)
        gang.attend("0-g1", "1-g1", "2-g2", "3-g1")
        status = gang.running(2)["status"]
        after = gang.uids()
        assert after["gang-0-g1"] == before["gang-0-g1"]
        assert node_of(gang, "2-g2") == cordoned
        assert (status["restarts"], status.get("budgets")) == (0, None)
        drains_may_take(site)


def test_a_cordoned_member_moves_once_another_node_is_found(site: Site) -> None:
    with Trainers(site, "gang") as gang:
        cordon(site, site.nodes[3])
        until_heard(site)
        gang.submit(nodes=3)
        gang.attend("0-g1", "1-g1", "2-g1")
        gang.running(1)
        before = gang.uids()
        left = node_of(gang, "1-g1")
        cordon(site, left)
        gang.noticed("0-g1")
        save(gang, step=7)
        site.wait("gang", movable)
        assert gang.uids() == before
        cordon(site, site.nodes[3], closed=False)
        gang.attend("0-g1", "1-g2", "2-g1")
        status = gang.running(2)["status"]
        assert node_of(gang, "1-g2") == site.nodes[3]
        assert status["lastIncident"]["cause"].startswith(f"Drain of node {left}")
        assert (status["restarts"], status.get("disruption")) == (0, None)
        drains_may_take(site)


def test_all_nodes_cordoned_before_an_upgrade_leave_jobs_training(site: Site) -> None:
    with Trainers(site, "gang") as gang:
        gang.submit(nodes=3)
        gang.attend("0-g1", "1-g1", "2-g1")
        gang.running(1)
        site.submit("mine", nodes=1, gpusPerNode=8)
        site.wait("mine", phase_is("Running"))
        before, mine = gang.uids(), site.pods("mine")[0]["metadata"]["uid"]
        cordon(site, *site.nodes)
        site.wait("gang", lambda job: len(_disrupted(job)) == 3)
        gang.noticed("0-g1")
        save(gang, step=7)
        site.wait("gang", movable)
        site.wait("mine", lambda job: _disrupted(job) == [0])
        cordon(site, *site.nodes, closed=False)
        for name in ("gang", "mine"):
            job = site.wait(name, lambda job: not _disrupted(job))["status"]
            assert (job["phase"], job["generation"]) == ("Running", 1)
        assert (gang.uids(), site.pods("mine")[0]["metadata"]["uid"]) == (before, mine)


def template(site: Site, *, grace: int = 30) -> dict[str, str]:
    """A gang of two of the user's own image, running: its pods' nodes by name."""
    own = {"image": "any:1", "terminationGracePeriodSeconds": grace}
    site.submit("own", nodes=2, gpusPerNode=8, template=own)
    site.wait("own", phase_is("Running"))
    return {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in site.pods("own")}


def runs_elsewhere(site: Site, *, than: str) -> Json:
    """The job once it runs in a second generation, not on this node."""

    def runs(job: Json | None) -> bool:
        status = (job or {}).get("status", {})
        return (status.get("phase"), status.get("generation")) == ("Running", 2)

    job = site.wait("own", runs)
    pods = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in site.pods("own")}
    assert pods.keys() == {"own-0-g2", "own-1-g2"}
    assert than not in pods.values()
    assert (job["status"]["restarts"], job["status"].get("budgets")) == (0, None)
    return job


def test_a_drain_under_a_template_ends_and_the_gang_starts_elsewhere(site: Site) -> None:
    nodes = template(site)
    queued = site.job("own")["status"]["queuedAt"]
    cordon(site, nodes["own-1-g1"])
    drains_may_take(site, "own-1-g1")
    job = site.job("own")["status"]
    assert (job["phase"], job["generation"], len(site.pods("own"))) == ("Running", 1, 2)
    with pytest.raises(ApiStatusError):  # its node stays
        site.kube.evict("own-0-g1", site.namespace)
    drained(site, "own-1-g1")
    job = runs_elsewhere(site, than=nodes["own-1-g1"])
    assert job["status"]["queuedAt"] == queued
    assert job["status"]["lastIncident"]["faultClass"] == "Preemption"
    drains_may_take(site)


def as_an_earlier_version_left_it(site: Site, name: str, *, nodes: int) -> None:
    """The pods have no label, and their job has a budget of its own."""
    for pod in site.pods(name):
        labels = {"metadata": {"labels": {"drumline.dev/protected": None}}}
        site.kube.patch("pods", pod["metadata"]["name"], labels, site.namespace)
    uid = site.job(name)["metadata"]["uid"]
    owner = {"apiVersion": "drumline.dev/v1alpha1", "kind": "TrainingJob", "name": name, "uid": uid}
    selector = {"drumline.dev/job-uid": uid, "drumline.dev/nodes": str(nodes)}
    site.kube.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {
                "name": f"{name}-{uid[:8]}-{nodes}",
                "namespace": site.namespace,
                "ownerReferences": [owner],
            },
            "spec": {"minAvailable": nodes, "selector": {"matchLabels": selector}},
        }
    )


@pytest.mark.extended
def test_a_gang_of_an_earlier_version_keeps_its_own_budget_and_takes_it_along(
    site: Site, operator: OperatorProcess
) -> None:
    with Trainers(site, "gang") as gang:
        gang.submit(nodes=3)
        gang.attend("0-g1", "1-g1", "2-g1")
        gang.running(1)
        operator.stop()
        as_an_earlier_version_left_it(site, "gang", nodes=3)
        operator.start()
        cordoned = node_of(gang, "1-g1")
        cordon(site, cordoned)
        gang.noticed("0-g1")
        save(gang, step=7)
        gang.attend("0-g1", "1-g2", "2-g1")
        gang.running(2)
        pods = site.pods("gang")
        assert all("drumline.dev/protected" not in pod["metadata"]["labels"] for pod in pods)
        uid = site.job("gang")["metadata"]["uid"]
        own = f"gang-{uid[:8]}-3"
        with pytest.raises(ApiStatusError, match="disruption budget"):  # and not two of them
            site.kube.evict("gang-1-g2", site.namespace)
        for suspend, phase in ((True, "Suspended"), (False, "Starting")):
            body = {"spec": {"suspend": suspend}}
            site.kube.patch("trainingjobs", "gang", body, site.namespace)
            site.wait("gang", phase_is(phase))
        gang.attend("0-g3", "1-g3", "2-g3")
        gang.running(3)
        with pytest.raises(ApiStatusError, match="disruption budget"):
            site.kube.evict("gang-1-g3", site.namespace)
        site.kube.delete("trainingjobs", "gang", site.namespace)
        site.kube.wait("poddisruptionbudgets", own, site.namespace, lambda each: each is None)


def test_a_template_hears_a_spot_reclaim_and_moves_as_a_whole(site: Site) -> None:
    nodes = template(site)
    doomed = nodes["own-0-g1"]
    site.kube.patch("nodes", doomed, tainted("aws-node-termination-handler/spot-itn"))
    job = runs_elsewhere(site, than=doomed)
    assert job["status"]["lastIncident"]["cause"].startswith(f"SpotReclaim of node {doomed}")


def test_a_template_that_finds_no_other_node_leaves_in_time_and_waits(site: Site) -> None:
    nodes = template(site, grace=600)  # longer than the notice: it has to begin at once
    cordon(site, *(set(site.nodes) - set(nodes.values())))
    doomed = nodes["own-0-g1"]
    site.kube.patch("nodes", doomed, tainted("aws-node-termination-handler/spot-itn"))
    job = site.wait("own", phase_is("Pending"))["status"]
    assert "assignment" not in job
    site.kube.wait_all("pods", site.namespace, lambda pods: not pods)
    cordon(site, *site.nodes, closed=False)
    runs_elsewhere(site, than=doomed)


def test_an_announcement_that_is_taken_back_moves_no_job(gang: Trainers) -> None:
    before = gang.uids()
    node = node_of(gang, "1-g1")
    gang.site.kube.patch("nodes", node, {"spec": {"unschedulable": True}})
    notice = gang.noticed("0-g1")
    gang.site.kube.patch("nodes", node, {"spec": {"unschedulable": False}})
    assert gang.noticed("0-g1", withdraw=True).id == notice.id
    job = gang.site.wait("gang", phase_is("Running"))
    assert (gang.uids(), job["status"]["generation"]) == (before, 1)
    assert "disruption" not in job["status"]


def test_nothing_new_is_placed_on_a_node_that_will_probably_go(site: Site) -> None:
    shaky = site.nodes[0]
    restarts = condition("FrequentKubeletRestart", message="kubelet restarts a lot")
    announce(site, shaky, Component((), *("Unhealthy", 0), conditions=(restarts,)))
    until_heard(site)
    site.submit("wide", nodes=4, gpusPerNode=8)
    site.wait("wide", lambda job: "FrequentKubeletRestart" in str((job or {}).get("status")))
    site.submit("fits", nodes=3, gpusPerNode=8)
    site.wait("fits", phase_is("Running"))
    assert shaky not in {pod["spec"]["nodeName"] for pod in site.pods("fits")}


def until_heard(site: Site) -> None:
    """Let the operator hear of a node first: watches of two kinds have no order."""
    site.kube.patch("trainingqueues", site.queue, {"spec": {"weight": 2}})
    site.kube.wait("trainingqueues", site.queue, None, ready("True", "Accepted"))


def _lost(job: Json | None) -> list[int] | None:
    return (job or {}).get("status", {}).get("assignment", {}).get("lost")


def _disrupted(job: Json | None) -> list[int]:
    return (job or {}).get("status", {}).get("disruption", {}).get("indices", [])
