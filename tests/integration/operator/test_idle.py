"""A gang that stops stepping: said, saved and suspended, resumed; its agents are played."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from drumline_contract import ExitCode, NoticeAnswer, Pause, Progress
from tests.integration.operator.conftest import Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, phase_is, reason_is
from tests.operator_process import OperatorProcess

pytestmark = pytest.mark.extended(keep=4, of="operators of a test")

WORKS = Pause(seconds=0.4, usual_seconds=2.0)
SAVES = Pause(seconds=0.0, usual_seconds=2.0)
"""In the phase of saving."""
SAVED = Progress(step=410, total_steps=1000, checkpoint_step=410, checkpoint_digest="d")


@pytest.fixture
def gang(site: Site, operator: OperatorProcess) -> Iterator[Trainers]:
    """Two members of a queue that suspends whoever is idle for two minutes."""
    assert operator.process is not None
    site.kube.patch(
        "trainingqueues", site.queue, {"spec": {"idle": {"action": "Suspend", "afterSeconds": 60}}}
    )
    with Trainers(site, "gang") as gang:
        gang.submit(nodes=2)
        gang.attend("0-g1", "1-g1")
        gang.running(1)
        yield gang


def pauses(gang: Trainers, seconds: float) -> None:
    gang.agents["gang-0-g1"].change(pause=Pause(seconds=seconds, usual_seconds=2.0))


def saves(gang: Trainers) -> None:
    """Saves once it is asked to; that it shows no pause meanwhile is heard before it is done."""
    agent = gang.agents["gang-0-g1"]
    agent.wait_for(lambda agent: agent.notices)
    notice = agent.notices[-1]
    assert notice.leave
    agent.change(pause=SAVES)
    asks_on = f"since={agent.status.version}&"
    agent.wait_for(lambda agent: any(asks_on in path for path in agent.requests))
    answer = NoticeAnswer(id=notice.id, step=SAVED.checkpoint_step, digest=SAVED.checkpoint_digest)
    agent.change(notice=answer, progress=SAVED)


def idle_condition(job: Json | None) -> Json:
    conditions = (job or {}).get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == "Idle"), {})


def test_idle_gpus_are_said_and_given_back_also_under_the_next_leader(
    gang: Trainers, operator: OperatorProcess
) -> None:
    site = gang.site
    pauses(gang, 70.0)
    job = site.wait("gang", reason_is("StaysIdle"))
    assert (job["status"]["phase"], idle_condition(job)["status"]) == ("Running", "True")
    gang.agents["gang-0-g1"].change(pause=WORKS)
    job = site.wait("gang", reason_is("Training"))
    assert idle_condition(job)["status"] == "False"

    pauses(gang, 3_600.0)
    status = site.wait("gang", reason_is("StaysIdle"))["status"]
    operator.stop()
    # Its owner has known it for two minutes, by what the next leader reads.
    earlier = datetime.now(UTC) - timedelta(seconds=120)
    for entry in status["conditions"]:
        if entry["type"] == "Idle":
            entry["lastTransitionTime"] = earlier.strftime("%Y-%m-%dT%H:%M:%SZ")
    conditions = {"conditions": status["conditions"]}
    site.kube.patch_status("trainingjobs", "gang", conditions, site.namespace)
    assert gang.agents["gang-0-g1"].notices == []
    operator.start()
    saves(gang)
    job = site.wait("gang", phase_is("Suspended"))
    status = job["status"]
    assert (status["reason"], status["checkpoint"]["step"]) == ("IdleGpus", 410)
    assert "step 410 is saved. To continue it: drumline resume gang" in status["message"]
    assert not job["spec"]["suspend"]
    site.kube.wait_all(
        "pods", site.namespace, lambda pods: not pods, labels="drumline.dev/job=gang"
    )

    for suspend in (True, False):
        site.kube.patch("trainingjobs", "gang", {"spec": {"suspend": suspend}}, site.namespace)
    gang.attend("0-g2", "1-g2")
    gang.running(2)


def test_a_shell_that_nobody_uses_is_suspended_and_resumed_under_the_next_leader(
    site: Site, operator: OperatorProcess
) -> None:
    template = {"image": "any:1", "command": ["sh"], "tty": True}
    site.submit("mine", gpusPerNode=8, template=template, ttlSecondsAfterFinished=0)
    site.wait("mine", phase_is("Running"))
    site.end_pods("mine", exit_code=ExitCode.IDLE)
    status = site.wait("mine", phase_is("Suspended"))["status"]
    assert (status["reason"], status.get("assignment")) == ("IdleGpus", None)
    assert "drumline shell mine starts it anew" in status["message"]
    site.kube.wait_all(
        "pods", site.namespace, lambda pods: not pods, labels="drumline.dev/job=mine"
    )
    # Its GPUs are another one's, down to the last of the pool.
    site.submit("next", nodes=len(site.nodes), gpusPerNode=8)
    site.wait("next", phase_is("Running"))

    operator.stop()
    operator.start()
    for suspend in (True, False):
        site.kube.patch("trainingjobs", "mine", {"spec": {"suspend": suspend}}, site.namespace)
    site.wait("mine", phase_is("Pending"))
    site.end_pods("next")
    job = site.wait("mine", phase_is("Running"))
    assert job["status"]["restarts"] == 0
