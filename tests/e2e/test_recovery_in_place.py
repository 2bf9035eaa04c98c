"""A rank is lost, its pod is not: the others wait in their processes, and nothing is lost with it.

One job takes eight faults, one after the other, while the operator is away for the first of them.
Each test is one verdict on it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from tests.e2e.absence import away
from tests.e2e.rehearsals import REHEARSED, Fault, Outcome, Rehearsal, rehearse
from tests.e2e.site import Site
from tests.kube import Json

pytestmark = pytest.mark.extended

LIMITS = {"maxRestarts": 20, "maxOutOfMemoryRestarts": 5, "maxHangRestarts": 5}

FAULTS = (
    Fault(name="killed", rank=3, finished=10, phase="backward", kind="kill"),
    Fault(name="segfault", rank=2, finished=20, phase="forward", kind="segfault"),
    Fault(name="raised", rank=1, finished=30, phase="optimizer", kind="exception"),
    Fault(name="pair-1", rank=1, finished=40, phase="forward", kind="kill", together="pair-3"),
    Fault(name="pair-3", rank=3, finished=40, phase="forward", kind="kill", together="pair-1"),
    Fault(name="rank-0-saving", rank=0, finished=50, phase="checkpoint", kind="kill"),
    Fault(name="stopped", rank=2, finished=62, phase="forward", kind="stop"),
    Fault(name="memory", rank=3, finished=72, phase="backward", kind="memory"),
    Fault(name="recovering", rank=1, phase="restoring", kind="kill", after="memory"),
    *(
        Fault(name=f"slow-{phase}", rank=1, finished=85, phase=phase, kind="linger")
        for phase in ("data", "forward", "backward", "optimizer")
    ),
)
STRUCK = {
    "SIGKILL": ("Infrastructure", {3}),
    "SIGSEGV": ("Application", {2}),
    "exception": ("Application", {1}),
    "two at once": ("Infrastructure", {1, 3}),
    "rank 0, while a checkpoint is written": ("Infrastructure", {0}),
    "SIGSTOP": ("Hang", {2}),
    "out of memory": ("OutOfMemory", {3}),
    "while another recovery runs": ("Infrastructure", {1}),
}
"""What befell the job, in this order: class and culprits. Each is an attempt of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What was seen of the job that took all faults."""

    job: Rehearsal
    status: Json
    pods_before: list[Json]
    pods_after: list[Json]

    def incidents(self) -> list[Json]:
        """As status keeps them, oldest first."""
        earlier = self.status.get("earlierIncidents") or []
        return [*reversed(earlier), self.status["lastIncident"]]


@pytest.fixture(scope="module")
def story(stage: Site) -> Story:
    """The job's life with every fault in it."""
    job = rehearse(
        stage,
        "struck",
        faults=FAULTS,
        pace_seconds=0.02,
        recovery=LIMITS,
        **REHEARSED,
    )
    job.struck("killed")
    before = stage.pods(job.name)
    with away(stage.kube):
        time.sleep(5)
    status = job.finish()
    return Story(job=job, status=status, pods_before=before, pods_after=stage.pods(job.name))


def test_losses_and_weights_equal_the_undisturbed_run_bit_for_bit(
    story: Story, undisturbed: Outcome
) -> None:
    assert story.job.outcome() == undisturbed


def test_every_fault_struck(story: Story) -> None:
    struck = {note.name for note in (story.job.folder / "struck").iterdir()}
    assert struck == {fault.name for fault in FAULTS}


def test_no_pod_was_touched(story: Story) -> None:
    assert story.status["generation"] == 1
    assert [pod["metadata"]["uid"] for pod in story.pods_after] == [
        pod["metadata"]["uid"] for pod in story.pods_before
    ]
    restarts = [
        container["restartCount"]
        for pod in story.pods_after
        for container in pod["status"]["containerStatuses"]
    ]
    assert restarts == [0, 0]


@pytest.mark.parametrize("fault", STRUCK)
def test_only_the_culprits_process_was_replaced(story: Story, fault: str) -> None:
    attempt = 1 + list(STRUCK).index(fault)
    begun = {
        each.rank for each in story.job.begun() if (each.generation, each.attempt) == (1, attempt)
    }
    assert begun == STRUCK[fault][1]


def test_no_other_process_was_ever_replaced(story: Story) -> None:
    begun = [each.rank for each in story.job.begun()]
    culprits = [rank for _, ranks in STRUCK.values() for rank in ranks]
    assert sorted(begun) == sorted([0, 1, 2, 3, *culprits])


@pytest.mark.parametrize("fault", STRUCK)
def test_the_incident_names_class_and_culprit(story: Story, fault: str) -> None:
    fault_class, culprits = STRUCK[fault]
    incident = story.incidents()[list(STRUCK).index(fault)]
    assert incident["attempt"] == 1 + list(STRUCK).index(fault)
    assert incident["faultClass"] == fault_class
    assert incident["rank"] in culprits
