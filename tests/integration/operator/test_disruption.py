"""Nodes that announce their end, marked as the real components mark them: save, move, or wait."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from drumline_trainer.contract import NoticeAnswer
from tests.integration.operator.conftest import Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, phase_is

pytestmark = pytest.mark.usefixtures("operator")


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


def test_a_job_with_nowhere_to_go_saves_waits_and_comes_back(site: Site) -> None:
    with Trainers(site, "gang") as gang:
        gang.submit(nodes=4)
        gang.attend("0-g1", "1-g1", "2-g1", "3-g1")
        gang.running(1)
        before = gang.uids()
        cordoned = node_of(gang, "2-g1")
        site.kube.patch("nodes", cordoned, {"spec": {"unschedulable": True}})
        gang.noticed("0-g1")
        save(gang, step=7)
        # the drain that waited for our save finds nothing to evict
        site.kube.wait("pods", "gang-2-g1", site.namespace, lambda pod: pod is None)
        site.wait("gang", lambda job: _lost(job) == [2])
        site.kube.patch("nodes", cordoned, {"spec": {"unschedulable": False}})
        gang.attend("0-g1", "1-g1", "2-g2", "3-g1")
        gang.running(2)
        after = gang.uids()
        assert after["gang-0-g1"] == before["gang-0-g1"]
        assert node_of(gang, "2-g2") == cordoned


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
    site.submit("wide", nodes=4, gpusPerNode=8)
    waits = site.wait("wide", phase_is("Pending"))
    assert "FrequentKubeletRestart" in waits["status"]["message"]
    site.submit("fits", nodes=3, gpusPerNode=8)
    site.wait("fits", phase_is("Running"))
    assert shaky not in {pod["spec"]["nodeName"] for pod in site.pods("fits")}


def _lost(job: Json | None) -> list[int] | None:
    return (job or {}).get("status", {}).get("assignment", {}).get("lost")
