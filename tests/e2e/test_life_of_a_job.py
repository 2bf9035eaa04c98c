"""One job in a cohort meets every event it has to survive, and trains as if nothing had happened.

A rank dies, a pod is deleted, the end of a node is announced, and another queue reclaims the GPUs.
Each event alone, in all its forms, is in test_recovery_in_place, test_recovery_of_members,
test_disruption and test_preemption; those tests are not in `make test`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from tests.e2e.announcers import ANNOUNCERS, Marker
from tests.e2e.rehearsals import REHEARSED, Fault, Outcome, Rehearsal, rehearse
from tests.e2e.site import OPERATOR_NODE, POOL, SLEEPER, Site
from tests.kube import Json, phase_is

KILLED = Fault(name="killed", rank=3, finished=10, phase="backward", kind="kill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The pods of the job around an event, by index."""

    before: dict[int, Json]
    after: dict[int, Json]

    def kept(self) -> set[int]:
        """Return the indices whose pod is the same afterwards."""
        return {
            index
            for index, pod in self.before.items()
            if self.after[index]["metadata"]["uid"] == pod["metadata"]["uid"]
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The events of the job in order, each with the status or the pods after it."""

    job: Rehearsal
    rank_killed: Members
    pod_deleted: Members
    node_announced: Members
    announced_node: str
    moved: Json
    """Status after the move to the spare node."""
    preempted: Json
    """Status while the claimant runs."""
    claimant: Json
    ended: Json


@pytest.fixture(scope="module")
def life(stage: Site) -> Life:
    """Let the job live through all events."""
    _make_queues(stage)
    job = rehearse(
        stage, "life", faults=(KILLED,), pace_seconds=0.15, **{**REHEARSED, "queue": "guest"}
    )
    job.reach(5)
    first = job.members()
    job.struck(KILLED.name)
    job.goes_on()
    second = job.members()

    stage.kube.delete("pods", second[0]["metadata"]["name"], stage.namespace)
    stage.wait(job.name, lambda item: (item or {})["status"]["generation"] > 1)
    stage.wait(job.name, phase_is("Running"))
    job.goes_on()
    third = job.members()

    node = min({pod["spec"]["nodeName"] for pod in third.values()} - {OPERATOR_NODE})
    with Marker(stage.cluster, node) as marker:
        ANNOUNCERS["GKE"].play(marker)
        moved = stage.wait(job.name, lambda item: _runs_without(item, node=node))["status"]
        job.goes_on()
    fourth = job.members()

    stage.submit("claimant", nodes=3, gpusPerNode=2, queue="host", template=SLEEPER)
    stage.wait("claimant", phase_is("Running"))
    preempted = stage.wait(job.name, phase_is("Pending"))["status"]
    claimant = stage.kube.get("trainingjobs", "claimant", stage.namespace)["status"]
    stage.kube.delete("trainingjobs", "claimant", stage.namespace)
    job.hurry()
    return Life(
        job=job,
        rank_killed=Members(before=first, after=second),
        pod_deleted=Members(before=second, after=third),
        node_announced=Members(before=third, after=fourth),
        announced_node=node,
        moved=moved,
        preempted=preempted,
        claimant=claimant,
        ended=job.finish(),
    )


def _make_queues(stage: Site) -> None:
    """Create two queues of one cohort: all GPUs are the nominal quota of `host`."""
    for name, parent, gpus in (("family", None, 0), ("guest", "family", 0), ("host", "family", 6)):
        spec: Json = {"quotas": [{"gpuPool": POOL, "nominalGpus": gpus}]}
        stage.kube.ensure(
            {
                "apiVersion": "drumline.dev/v1alpha1",
                "kind": "TrainingQueue",
                "metadata": {"name": name},
                "spec": spec | ({"parent": parent} if parent else {}),
            }
        )


def _runs_without(json: Json | None, *, node: str) -> bool:
    status = (json or {})["status"]
    places = status["assignment"]
    names = [places.get("prefix", "") + rest for rest in places["nodes"]]
    return node not in names and status["phase"] == "Running" and not status.get("disruption")


def test_a_killed_rank_is_replaced_in_its_pod(life: Life) -> None:
    assert life.rank_killed.kept() == {0, 1}
    attempts = Counter(each.rank for each in life.job.begun() if each.generation == 1)
    assert attempts == {0: 1, 1: 1, 2: 1, 3: 2}


def test_a_deleted_pod_is_replaced_and_the_other_kept(life: Life) -> None:
    assert life.pod_deleted.kept() == {1}


def test_a_member_leaves_the_announced_node_with_its_steps_saved(life: Life) -> None:
    names = {index: pod["spec"]["nodeName"] for index, pod in life.node_announced.before.items()}
    assert life.node_announced.kept() == {
        i for i, node in names.items() if node != life.announced_node
    }
    assert life.moved["lastIncident"]["cause"].startswith(
        f"SpotReclaim of node {life.announced_node}"
    )


def test_the_claimant_of_its_quota_runs_and_the_job_waits_with_its_steps(life: Life) -> None:
    assert life.claimant["phase"] == "Running"
    saved = life.preempted["checkpoint"]["step"]
    assert life.preempted["incident"].startswith(f"preempted by {life.job.site.namespace}/claimant")
    done = Counter(step for step, _ in life.job.written())
    assert all(done[step] == 1 for step in done if step > saved)


def test_losses_and_weights_equal_the_undisturbed_run_bit_for_bit(
    life: Life, undisturbed: Outcome
) -> None:
    assert life.ended["step"] == REHEARSED["steps"]
    assert life.job.outcome() == undisturbed
