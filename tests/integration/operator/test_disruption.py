"""Nodes that announce their end, marked as the real components mark them: save, move, or wait."""

from __future__ import annotations

import time
from collections.abc import Iterator

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


def taint(gang: Trainers, node: str, key: str, *, value: str = "") -> None:
    """As a node termination handler does: cordon, then taint."""
    gang.site.kube.patch("nodes", node, {"spec": {"unschedulable": True}})
    mark = {"key": key, "value": value, "effect": "NoSchedule"}
    gang.site.kube.patch("nodes", node, {"spec": {"taints": [mark]}})


def test_a_spot_node_that_is_reclaimed_is_left_before_it_goes(gang: Trainers) -> None:
    before = gang.uids()
    doomed = node_of(gang, "1-g1")
    announced = time.time()
    taint(gang, doomed, "aws-node-termination-handler/spot-itn", value="spot-itn-0a1b")
    notice = gang.noticed("0-g1")
    status = gang.site.job("gang")["status"]
    assert status["disruption"]["id"] == notice.id
    assert status["disruption"]["indices"] == [1]
    assert not notice.leave
    save(gang, step=42)
    gang.attend("0-g1", "1-g2", "2-g1")
    job = gang.running(2)["status"]
    assert announced + 100 < notice.deadline < announced + 125 or notice.deadline > announced + 250
    assert node_of(gang, "1-g2") != doomed
    after = gang.uids()
    assert {name: after[name] for name in ("gang-0-g1", "gang-2-g1")} == {
        name: before[name] for name in ("gang-0-g1", "gang-2-g1")
    }
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


def test_an_announcement_that_is_taken_back_moves_nobody(gang: Trainers) -> None:
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
    condition = {
        "type": "FrequentKubeletRestart",
        "status": "True",
        "reason": "FrequentKubeletRestart",
        "message": "kubelet restarts a lot",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    node = site.kube.get("nodes", shaky)
    conditions = [*node["status"]["conditions"], condition]
    site.kube.patch_status("nodes", shaky, {"conditions": conditions}, None)
    site.submit("wide", nodes=4, gpusPerNode=8)
    waits = site.wait("wide", phase_is("Pending"))
    assert "FrequentKubeletRestart" in waits["status"]["message"]
    site.submit("fits", nodes=3, gpusPerNode=8)
    site.wait("fits", phase_is("Running"))
    assert shaky not in {pod["spec"]["nodeName"] for pod in site.pods("fits")}


def _lost(job: Json | None) -> list[int] | None:
    return (job or {}).get("status", {}).get("assignment", {}).get("lost")
