"""A job gives way to one that is more entitled: saved at a step, gone, back at that step.

Queue `borrower` holds more than its own of a cohort, queue `owner` claims what it lent. Each test
is one verdict on two stories: one with a claim that is taken back before one that stands, one in
which the deadline passes because nobody can answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.e2e.rehearsals import REHEARSED, Outcome, Rehearsal, rehearse
from tests.e2e.site import POOL, SLEEPER, Site
from tests.kube import Json, phase_is
from tools.cluster.inside import frozen

pytestmark = pytest.mark.extended  # `make test` has test_life_of_a_job

SHAPE = {"nodes": 2, "gpusPerNode": 2}
GPUS = 4
PACE_SECONDS = 0.15
CLAIM: Json = {**SHAPE, "queue": "owner", "trainer": {"steps": 20, "globalBatchSize": 4}}


@dataclass(frozen=True, slots=True, kw_only=True)
class GivingWay:
    """The story of a job that is claimed from twice, and of the job that got its place."""

    job: Rehearsal
    outcome: Outcome
    queued_at: str
    noticed: Json
    """The victim's status when it was told to go for the claim that was taken back."""
    withdrawn: Json
    """... when that claim was gone and its agents could hear again."""
    disrupted: Json
    """... when it was told to go for the claim that stood."""
    told_at: float
    """When its agents had saved for that (seconds since the epoch)."""
    waiting: Json
    """... when it had gone."""
    nominated: Json
    """The claimant's status when its places were promised to it."""
    claimant: Json
    """... at its end."""
    claimant_nodes: list[str]
    resumed: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """The story of a job that cannot answer."""

    job: Rehearsal
    checkpoint: Json
    """The last verified one when everything stood still."""
    last_step: int
    """The last one that was finished by then."""
    disruption: Json
    waiting: Json
    """Status when the job had lost its places."""
    left_at: datetime
    """When that was seen."""


@pytest.fixture(scope="module")
def borrower(stage: Site) -> str:
    """Two queues of one cohort, 2 GPUs are the borrower's own, 4 the owner's; returns the first.

    Somebody else's job holds the third node: whoever needs two nodes needs those of the victim.
    """
    where = {"kubernetes.io/hostname": "node-2"}
    stage.submit("other", gpusPerNode=2, template=SLEEPER, nodeSelector=where)
    stage.wait("other", phase_is("Running"))
    for name, parent, gpus in (
        ("cohort", None, 0),
        ("borrower", "cohort", 2),
        ("owner", "cohort", 4),
    ):
        spec: Json = {"quotas": [{"gpuPool": POOL, "nominalGpus": gpus}]}
        stage.kube.ensure(
            {
                "apiVersion": "drumline.dev/v1alpha1",
                "kind": "TrainingQueue",
                "metadata": {"name": name},
                "spec": spec | ({"parent": parent} if parent else {}),
            }
        )
    return "borrower"


@pytest.fixture(scope="module")
def giving_way(stage: Site, borrower: str) -> GivingWay:
    """A claim that is taken back, then one that stands."""
    spec = {**REHEARSED, "queue": borrower}
    job = rehearse(stage, "victim", pace_seconds=PACE_SECONDS, every_steps=1000, **spec)
    job.reach(10)
    queued_at = status_of(job)["queuedAt"]
    (job.folder / "held").touch()  # the others cannot agree to leave
    stage.submit("hasty", **CLAIM)
    noticed = until(job, is_disrupted)
    stage.kube.delete("trainingjobs", "hasty", stage.namespace)
    until(job, lambda item: not is_disrupted(item))
    job.hear("notice_withdrawn")
    (job.folder / "held").unlink()
    job.goes_on()
    withdrawn = status_of(job)

    stage.submit("claimant", **CLAIM)
    disrupted = until(job, is_disrupted)
    nominated = stage.wait(
        "claimant", lambda claimant: "nominated" in (claimant or {}).get("status", {})
    )["status"]
    waiting = until(job, phase_is("Pending"))
    told_at = job.commits()[waiting["checkpoint"]["step"]]
    stage.wait("claimant", phase_is("Running"))
    nodes = stage.nodes("claimant")
    claimant = stage.finish("claimant")
    job.hurry()
    resumed = job.finish()
    return GivingWay(
        job=job,
        outcome=job.outcome(),
        queued_at=queued_at,
        noticed=noticed,
        withdrawn=withdrawn,
        disrupted=disrupted,
        told_at=told_at,
        waiting=waiting,
        nominated=nominated,
        claimant=claimant,
        claimant_nodes=nodes,
        resumed=resumed,
    )


@pytest.fixture(scope="module")
def unanswered(stage: Site, borrower: str) -> Unanswered:
    """Nobody answers the notice; its deadline passes."""
    spec = {**REHEARSED, "queue": borrower}
    job = rehearse(stage, "mute", pace_seconds=PACE_SECONDS, **spec)
    checkpoint = until(job, has_checkpoint)["checkpoint"]
    job.goes_on()
    pods = [pod["metadata"]["uid"] for pod in stage.pods(job.name)]
    with frozen(stage.cluster, pods):
        last_step = job.last_step()
        stage.submit("patient", **CLAIM)
        disruption = until(job, is_disrupted)["disruption"]
        waiting = until(job, phase_is("Pending"))
        left_at = datetime.now(UTC)
    stage.finish("patient")
    job.hurry()
    job.finish()
    return Unanswered(
        job=job,
        checkpoint=checkpoint,
        last_step=last_step,
        disruption=disruption,
        waiting=waiting,
        left_at=left_at,
    )


def status_of(job: Rehearsal) -> Json:
    return job.site.kube.get("trainingjobs", job.name, job.site.namespace)["status"]


def until(job: Rehearsal, holds: Callable[[Json | None], bool]) -> Json:
    return job.site.wait(job.name, holds)["status"]


def is_disrupted(json: Json | None) -> bool:
    return (json or {}).get("status", {}).get("disruption") is not None


def has_checkpoint(json: Json | None) -> bool:
    return (json or {}).get("status", {}).get("checkpoint") is not None


def condition(status: Json, kind: str) -> Any:
    return next((each for each in status["conditions"] if each["type"] == kind), None)


def test_a_claim_that_is_taken_back_disturbs_nobody(giving_way: GivingWay) -> None:
    assert giving_way.noticed["disruption"]["kind"] == "Preemption"
    assert giving_way.withdrawn.get("disruption") is None
    assert condition(giving_way.withdrawn, "Disrupted")["status"] == "False"
    assert giving_way.withdrawn["generation"] == 1


def test_the_disruption_is_durable_before_the_notice(giving_way: GivingWay) -> None:
    disrupted = giving_way.disrupted
    assert condition(disrupted, "Disrupted")["status"] == "True"
    assert disrupted["disruption"]["by"].endswith("/claimant")
    assert disrupted["phase"] == "Running"
    requested_at = datetime.fromisoformat(disrupted["disruption"]["requestedAt"])
    assert giving_way.told_at >= requested_at.timestamp()


def test_the_victim_leaves_at_a_step_that_is_saved_and_acknowledged(giving_way: GivingWay) -> None:
    saved = giving_way.waiting["checkpoint"]
    assert saved["digest"]
    before = [each for each in giving_way.job.written() if each[0] <= saved["step"]]
    assert len(before) == saved["step"]


def test_the_claimant_runs_on_the_places_that_were_reserved(giving_way: GivingWay) -> None:
    places = giving_way.nominated["nominated"]
    reserved = [places.get("prefix", "") + rest for rest in places["nodes"]]
    assert sorted(giving_way.claimant_nodes) == sorted(reserved)
    assert giving_way.claimant["phase"] == "Succeeded"


def test_the_victim_keeps_its_place_in_the_queue(giving_way: GivingWay) -> None:
    assert giving_way.waiting["incident"].startswith(
        f"preempted by {giving_way.job.site.namespace}"
    )
    assert giving_way.waiting["queuedAt"] == giving_way.queued_at


def test_no_gpu_second_is_lost(giving_way: GivingWay) -> None:
    done = Counter(step for step, _ in giving_way.job.written())
    repeated = sum(times - 1 for times in done.values())
    print(f"GPU-seconds lost between saved step and notice: {repeated * GPUS * PACE_SECONDS:g}")
    assert repeated == 0
    assert giving_way.resumed["gpuSeconds"].get("repeated", 0) == 0


def test_losses_and_weights_equal_the_undisturbed_run_bit_for_bit(
    giving_way: GivingWay, undisturbed: Outcome
) -> None:
    assert giving_way.outcome == undisturbed


def test_at_the_deadline_the_last_verified_step_counts(unanswered: Unanswered) -> None:
    assert unanswered.waiting["checkpoint"]["step"] == unanswered.checkpoint["step"]
    assert "did not save on request" in unanswered.waiting["incident"]
    assert unanswered.left_at >= datetime.fromisoformat(unanswered.disruption["deadline"])


def test_nothing_up_to_the_last_verified_step_is_done_again(
    unanswered: Unanswered, undisturbed: Outcome
) -> None:
    assert unanswered.job.outcome() == undisturbed
    done = Counter(step for step, _ in unanswered.job.written())
    assert unanswered.checkpoint["step"] < unanswered.last_step
    assert all(step > unanswered.checkpoint["step"] for step, times in done.items() if times > 1)
