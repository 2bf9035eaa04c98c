"""Jobs that give way to others: asked to save first, then gone as a whole, then back where they
were; or left in peace when nobody needs their places any more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drumline_contract import Progress
from tests.integration.operator.conftest import HIGH, HIGH_CLASS, Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, Kube, phase_is, reason_is
from tests.operator_process import OperatorProcess

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=2)]

SAVED = Progress(step=30, total_steps=100, checkpoint_step=30, checkpoint_digest="digest-30")


@pytest.fixture(scope="module", autouse=True)
def high_class(api: Kube) -> None:
    api.ensure(HIGH_CLASS)


@pytest.fixture
def low(site: Site) -> Iterator[Trainers]:
    """A gang of no importance on all four nodes, training; it does not answer notices."""
    with Trainers(site, "low") as low:
        low.submit(nodes=4)
        low.attend("0-g1", "1-g1", "2-g1", "3-g1")
        low.running(1)
        yield low


@pytest.fixture
def high(site: Site) -> Iterator[Trainers]:
    """An important gang of two, not submitted yet."""
    with Trainers(site, "high") as high:
        yield high


def disrupted(job: Json | None) -> bool:
    return "disruption" in (job or {}).get("status", {})


def undisturbed(job: Json | None) -> bool:
    return phase_is("Running")(job) and not disrupted(job)


def save(gang: Trainers) -> None:
    """The gang saves, and its leader says so."""
    gang.saved(step=SAVED.step)


def test_a_job_saves_leaves_waits_at_its_place_and_resumes_where_it_saved(
    site: Site, low: Trainers, high: Trainers
) -> None:
    queued_at = site.job("low")["status"]["queuedAt"]
    high.submit(nodes=2, priorityClassName=HIGH)
    notice = low.noticed("0-g1")
    status = site.job("low")["status"]
    assert notice.leave
    assert status["disruption"]["id"] == notice.id  # durable before the notice
    assert (status["disruption"]["kind"], status["disruption"]["by"]) == (
        "Preemption",
        f"{site.namespace}/high",
    )
    promised = site.job("high")["status"]["nominated"]
    assert phase_is("Running")(site.job("low"))
    save(low)
    left = site.wait("low", phase_is("Pending"))["status"]
    assert left["checkpoint"] == {"step": 30, "digest": "digest-30"}
    assert left["queuedAt"] == queued_at
    high.attend("0-g1", "1-g1", after=low)
    taken = high.running(1)["status"]["assignment"]
    # those that were kept for it, or two others whose pods were gone sooner
    assert (taken["prefix"], len(set(taken["nodes"]))) == (promised.get("prefix", ""), 2)
    site.kube.wait_all("pods", site.namespace, lambda pods: not pods, labels="drumline.dev/job=low")
    site.end_pods("high")
    site.wait("high", phase_is("Succeeded"))
    low.attend("0-g2", "1-g2", "2-g2", "3-g2", after=high)
    back = low.running(2)["status"]
    record = low.agents["low-0-g2"].records[-1]
    assert (record.restore_step, record.restore_digest) == (30, "digest-30")
    assert back["restarts"] == 0


def test_a_queue_takes_back_what_another_borrowed(
    site: Site, low: Trainers, high: Trainers
) -> None:
    def queue(name: str, *, parent: str | None, gpus: int) -> Json:
        quotas = [{"gpuPool": site.pool, "nominalGpus": gpus}]
        return {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingQueue",
            "metadata": {"name": name},
            "spec": {"quotas": quotas, **({"parent": parent} if parent else {})},
        }

    cohort, lender = f"{site.queue}-all", f"{site.queue}-lender"
    site.kube.create(queue(cohort, parent=None, gpus=0))
    borrower = queue(site.queue, parent=cohort, gpus=16)
    site.kube.patch("trainingqueues", site.queue, {"spec": borrower["spec"]})
    site.kube.create(queue(lender, parent=cohort, gpus=16))
    try:
        high.submit(nodes=2, queue=lender)
        low.noticed("0-g1")
        save(low)
        high.attend("0-g1", "1-g1", after=low)
        high.running(1)
        waits = site.job("low")["status"]
        assert (waits["phase"], waits["checkpoint"]["step"]) == ("Pending", 30)
    finally:
        site.kube.delete("trainingqueues", lender)
        site.kube.delete("trainingqueues", cohort)


def test_places_are_held_for_the_job_until_its_victims_pods_are_gone(
    site: Site, low: Trainers, high: Trainers
) -> None:
    for name in low.uids():
        hold(site, name, ["drumline.test/slow"])
    high.submit(nodes=2, priorityClassName=HIGH)
    low.noticed("0-g1")
    save(low)

    def going(pods: list[Json]) -> bool:
        return all("deletionTimestamp" in pod["metadata"] for pod in pods)

    labels = "drumline.dev/job=low"
    held = site.kube.wait_all("pods", site.namespace, going, labels=labels)
    site.submit("third", nodes=1, gpusPerNode=8)
    site.wait("third", phase_is("Pending"))  # the scheduler has looked at them
    assert reason_is("WaitingForVictims")(site.job("high"))
    for pod in held:
        hold(site, pod["metadata"]["name"], [])
    high.attend("0-g1", "1-g1", after=low)
    high.running(1)
    assert site.job("low")["status"]["generation"] == 1  # it was not admitted again in between


def hold(site: Site, pod: str, finalizers: list[str]) -> None:
    """Have a pod stay when it is deleted, as on a kubelet that takes its time; or let it go."""
    site.kube.patch("pods", pod, {"metadata": {"finalizers": finalizers}}, site.namespace)


def test_whoever_leaves_for_a_job_that_is_gone_may_stay(
    site: Site, low: Trainers, high: Trainers
) -> None:
    before = low.uids()
    high.submit(nodes=2, priorityClassName=HIGH)
    notice = low.noticed("0-g1")
    site.kube.delete("trainingjobs", "high", site.namespace)
    site.wait("low", undisturbed)
    assert low.noticed("0-g1", withdraw=True).id == notice.id
    assert (low.uids(), site.job("low")["status"]["generation"]) == (before, 1)


def test_a_preemption_goes_on_where_the_last_operator_left_it(
    site: Site, low: Trainers, high: Trainers, operator: OperatorProcess
) -> None:
    high.submit(nodes=2, priorityClassName=HIGH)
    notice, agent = low.noticed("0-g1"), low.agents["low-0-g1"]
    operator.stop()
    save(low)
    operator.start()
    high.attend("0-g1", "1-g1", after=low)
    high.running(1)
    assert {each.id for each in agent.notices} == {notice.id}
    assert site.job("low")["status"]["checkpoint"]["step"] == 30


def test_the_gang_with_the_least_work_to_lose_is_preempted(site: Site, high: Trainers) -> None:
    with Trainers(site, "saved") as saved, Trainers(site, "unsaved") as unsaved:
        for gang, checkpoint in ((saved, 99), (unsaved, 10)):
            gang.submit(nodes=2)
            gang.attend("0-g1", "1-g1")
            gang.running(1)
            agent = gang.agents[f"{gang.name}-0-g1"]
            figures = {"total_steps": 1000, "tokens_per_second": 1e5}
            agent.change(progress=Progress(step=100, checkpoint_step=checkpoint, **figures))
            known = f"since={agent.status.version}&"
            agent.wait_for(lambda agent, known=known: known in agent.requests[-1])
        high.submit(nodes=2, priorityClassName=HIGH)
        saved.noticed("0-g1")
        assert undisturbed(site.job("unsaved"))


@pytest.fixture
def hasty(
    api: Kube, session_operator: OperatorProcess, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """Instead of the usual operator one that waits two seconds for a save."""
    if session_operator.process is not None:
        session_operator.stop()
    settings = {"DRUMLINE_PREEMPTION_SECONDS": "2", "DRUMLINE_PROGRESS_SECONDS": "1"}
    operator = OperatorProcess(kubeconfig=api.kubeconfig, folder=tmp_path, settings=settings)
    operator.start()
    yield operator
    operator.stop()


def test_at_the_deadline_the_last_verified_checkpoint_counts(
    site: Site, low: Trainers, high: Trainers, hasty: OperatorProcess
) -> None:
    del hasty
    known = Progress(step=25, total_steps=100, checkpoint_step=20, checkpoint_digest="digest-20")
    low.agents["low-0-g1"].change(progress=known)
    site.wait("low", lambda job: _checkpoint(job) == 20)
    high.submit(nodes=2, priorityClassName=HIGH)
    site.wait("low", reason_is("Preempted"))
    high.attend("0-g1", "1-g1", after=low)
    high.running(1)
    assert _checkpoint(site.job("low")) == 20
    assert "step 20 is saved" in site.job("low")["status"]["incident"]


def _checkpoint(job: Json | None) -> Any:
    return (job or {}).get("status", {}).get("checkpoint", {}).get("step")
