"""Gangs that lose members: only what broke is replaced, the others keep their pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from drumline_contract import ExitCode, SilentMember
from tests.integration.operator.conftest import Site
from tests.integration.operator.trainers import Trainers
from tests.kube import phase_is, reason_is
from tests.operator_process import OperatorProcess

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=1)]


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


def assert_only_renewed(gang: Trainers, before: dict[str, str], *, old: str, new: str) -> None:
    gang.site.kube.wait("pods", old, gang.site.namespace, lambda pod: pod is None)
    after = gang.uids()
    assert after.keys() == before.keys() - {old} | {new}
    assert {name: after[name] for name in before if name != old} == {
        name: uid for name, uid in before.items() if name != old
    }


def test_a_deleted_pod_is_replaced_and_the_other_members_stay(gang: Trainers) -> None:
    before = gang.uids()
    gang.site.kube.delete("pods", "gang-1-g1", gang.site.namespace, grace=0)
    gang.attend("0-g1", "1-g2", "2-g1")
    job = gang.running(2)
    assert_only_renewed(gang, before, old="gang-1-g1", new="gang-1-g2")
    record = gang.agents["gang-0-g1"].records[-1]
    after = gang.uids()
    assert (record.generation, [member.pod_uid for member in record.members]) == (
        2,
        [after["gang-0-g1"], after["gang-1-g2"], after["gang-2-g1"]],
    )
    nodes = [member.node for member in record.members]
    assert len(set(nodes)) == 3
    budgets = {each["faultClass"]: each["used"] for each in job["status"]["budgets"]}
    assert budgets == {"Infrastructure": 1}


def test_the_members_of_a_deleted_node_are_replaced_elsewhere_at_once(gang: Trainers) -> None:
    before = gang.uids()
    dead = node_of(gang, "2-g1")
    gang.site.kube.delete("nodes", dead)
    gang.attend("0-g1", "1-g1", "2-g2")
    gang.running(2)
    assert node_of(gang, "2-g2") != dead
    names = gang.uids()
    assert names["gang-0-g1"] == before["gang-0-g1"]
    assert names["gang-1-g1"] == before["gang-1-g1"]


def test_a_member_whose_gpu_failed_is_replaced_on_another_node_and_its_own_is_avoided(
    gang: Trainers,
) -> None:
    before, failed = gang.uids(), node_of(gang, "1-g1")
    gang.site.end_pod("gang-1-g1", exit_code=ExitCode.DEVICE)
    gang.attend("0-g1", "1-g2", "2-g1")
    status = gang.running(2)["status"]
    assert_only_renewed(gang, before, old="gang-1-g1", new="gang-1-g2")
    assert node_of(gang, "1-g2") != failed
    assert [entry["node"] for entry in status["avoidedNodes"]] == [failed]
    incident = status["lastIncident"]
    assert (incident["node"], incident["faultClass"]) == (failed, "Infrastructure")

    gang.site.end_pod("gang-2-g1", exit_code=ExitCode.DEVICE)
    job = gang.site.wait("gang", reason_is("NodesUnavailable"))
    assert "2 avoided because a GPU there failed the job" in job["status"]["message"]


def test_the_members_of_a_node_out_of_service_are_replaced_elsewhere_at_once(
    gang: Trainers,
) -> None:
    dead = node_of(gang, "1-g1")
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "shutdown", "effect": "NoExecute"}
    quiet = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    gang.site.kube.patch_status("nodes", dead, {"conditions": [quiet]}, None)
    gang.site.kube.patch("nodes", dead, {"spec": {"taints": [taint]}})
    gang.attend("0-g1", "1-g2", "2-g1")
    gang.running(2)
    assert node_of(gang, "1-g2") != dead


def test_a_silent_member_is_replaced_and_its_old_pod_holds_its_place(
    gang: Trainers,
) -> None:
    gang.agents["gang-1-g1"].die()
    gang.agents["gang-0-g1"].change(silent=(SilentMember(index=1, seconds=6.0),))
    gang.attend("0-g1", "1-g2", "2-g1")
    job = gang.running(2)
    assert gang.agents["gang-0-g1"].records[-1].generation == 2
    assert "gang-1-g1" in str(job["status"]["lastIncident"])


def test_a_silent_leader_is_replaced(gang: Trainers) -> None:
    before = gang.uids()
    gang.agents["gang-0-g1"].die()
    gang.agents["gang-1-g1"].change(silent=(SilentMember(index=0, seconds=6.0),), generation=1)
    gang.attend("0-g2", "1-g1", "2-g1")
    gang.running(2)
    assert gang.uids()["gang-1-g1"] == before["gang-1-g1"]


def test_a_member_that_answers_is_left_alone_whatever_its_node_says(gang: Trainers) -> None:
    before = gang.uids()
    zombie = node_of(gang, "1-g1")
    quiet = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}
    gang.site.kube.patch_status("nodes", zombie, {"conditions": [quiet]}, None)
    gang.agents["gang-0-g1"].change(silent=(SilentMember(index=1, seconds=10.0),))
    gang.agents["gang-1-g1"].wait_for(lambda agent: bool(agent.requests))
    gang.agents["gang-0-g1"].change(silent=())  # doubted for 15 s it would be lost
    # Something else that goes through the same operator afterwards, to its end:
    gang.site.submit("other", nodes=1, gpusPerNode=8)
    gang.site.wait("other", phase_is("Running"))
    assert (gang.uids(), gang.site.job("gang")["status"]["generation"]) == (before, 1)


def test_what_an_operator_finds_after_a_restart_it_finishes(
    gang: Trainers, operator: OperatorProcess
) -> None:
    operator.stop()
    gang.site.kube.delete("pods", "gang-2-g1", gang.site.namespace, grace=0)
    operator.start()
    gang.attend("0-g1", "1-g1", "2-g2")
    job = gang.running(2)
    assert [each["used"] for each in job["status"]["budgets"]] == [1]
