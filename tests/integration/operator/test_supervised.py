"""Templates whose command an agent starts: the operator treats their gangs as the trainer's."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from drumline_contract import FaultClass, Incident, Remark, RemarkKind
from tests.integration.operator.conftest import Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, phase_is, reason_is

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=1)]

SCRIPT = {
    "image": "mine:1",
    "command": ["python3", "train.py"],
    "launch": "PerGpu",
    "terminationGracePeriodSeconds": 1,
}


@pytest.fixture
def gang(site: Site) -> Iterator[Trainers]:
    """Three members whose agents have the record."""
    with Trainers(site, "gang") as gang:
        gang.submit(nodes=3, template=SCRIPT)
        gang.attend("0-g1", "1-g1", "2-g1")
        gang.running(1)
        yield gang


def test_a_lost_pod_is_replaced_alone(gang: Trainers) -> None:
    before = gang.uids()
    gang.site.kube.delete("pods", "gang-1-g1", gang.site.namespace, grace=0)
    gang.attend("0-g1", "1-g2", "2-g1")
    job = gang.running(2)
    after = gang.uids()
    assert {name: after.get(name) for name in ("gang-0-g1", "gang-2-g1")} == {
        name: before[name] for name in ("gang-0-g1", "gang-2-g1")
    }
    record = gang.agents["gang-0-g1"].records[-1]
    assert [(member.pod_uid, member.ranks) for member in record.members] == [
        (after[name], 8) for name in ("gang-0-g1", "gang-1-g2", "gang-2-g1")
    ]
    assert [each["faultClass"] for each in job["status"]["budgets"]] == ["Infrastructure"]


def test_a_restart_in_place_is_charged_and_takes_no_pod(gang: Trainers) -> None:
    before, now = gang.uids(), time.time()
    killed = Incident(
        generation=1,
        attempt=1,
        fault_class=FaultClass.APPLICATION,
        cause="rank 9: ValueError: boom",
        culprit_index=1,
        culprit_rank=9,
        fault_at=now,
        detected_at=now,
        restored_at=now + 1,
        first_step_at=now + 1,
    )
    gang.agents["gang-0-g1"].change(generation=1, attempt=1, incidents=(killed,))

    def counted(job: Json | None) -> bool:
        return "lastIncident" in (job or {}).get("status", {})

    status = gang.site.wait("gang", counted)["status"]
    incident = status["lastIncident"]
    assert (incident["pod"], incident["rank"], incident["attempt"]) == ("gang-1-g1", 9, 1)
    assert [(each["faultClass"], each["used"]) for each in status["budgets"]] == [
        ("Application", 1)
    ]
    assert (status["generation"], status["phase"], gang.uids()) == (1, "Running", before)


def test_a_gang_that_is_held_says_so_until_it_is_suspended(gang: Trainers) -> None:
    sentence = "held until 2023-11-14T22:23:20Z: `drumline shell gang --rank 9` looks into the pod"
    remark = Remark(kind=RemarkKind.HELD, sentence=sentence)
    gang.agents["gang-0-g1"].change(remark=remark)
    job = gang.site.wait("gang", reason_is("Held"))
    assert (job["status"]["phase"], job["status"]["message"]) == ("Running", sentence)
    gang.site.kube.patch("trainingjobs", "gang", {"spec": {"suspend": True}}, gang.site.namespace)
    gang.site.wait("gang", phase_is("Suspended"))
    gang.site.kube.wait_all(
        "pods", gang.site.namespace, lambda pods: not pods, labels="drumline.dev/job=gang"
    )


def test_the_job_ends_when_an_agent_has_seen_all_ranks_exit_with_0(gang: Trainers) -> None:
    gang.site.end_pods("gang")
    gang.site.wait("gang", phase_is("Succeeded"))
