"""Nodes whose end is announced: the job saves before the deadline, moves, and loses no step.

One job is driven from node to node by one component after the other, then by a plain drain; in the
end it has trained every step once. DRUMLINE_SIGNALS=all plays every component, otherwise a few.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.e2e.announcers import ANNOUNCERS, Announcer, Marker
from tests.e2e.rehearsals import REHEARSED, Outcome, Rehearsal, rehearse
from tests.e2e.site import OPERATOR_NODE, Site
from tests.kube import Json, phase_is
from tests.patience import HANG_SECONDS
from tools.cluster import kubectl
from tools.cluster.images import TRAINER_IMAGE

pytestmark = pytest.mark.extended  # `make test` has test_life_of_a_job

PLAYED = list(ANNOUNCERS) if os.environ.get("DRUMLINE_SIGNALS") == "all" else ["GKE", "Karpenter"]
DRAIN = "kubectl drain"
MOVES = [*PLAYED, DRAIN]
DRAIN_SECONDS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One announcement and what the job made of it."""

    node: str
    announced_at: float
    before: dict[int, Json]
    after: dict[int, Json]
    committed_at: dict[int, float]
    """Checkpoints on storage afterwards, and when they were committed."""
    moved: Json
    """Status when the job ran again."""


@dataclass(slots=True, kw_only=True)
class Story:
    """What was seen of the job."""

    job: Rehearsal
    moves: dict[str, Move] = field(default_factory=dict[str, Move])
    drained: str = ""
    """What kubectl said at the end of its drain."""


@pytest.fixture(scope="module")
def story(stage: Site) -> Story:
    """From node to node."""
    job = rehearse(stage, "driven", pace_seconds=0.2, every_steps=1000, **REHEARSED)
    output = Story(job=job)
    job.reach(5)
    for name in PLAYED:
        _announce(output, name, ANNOUNCERS[name])
    _drain(output)
    job.hurry()
    job.finish()
    return output


def _announce(each_story: Story, name: str, announcer: Announcer) -> None:
    job = each_story.job
    before, node = job.members(), _mortal_node(job)
    with Marker(job.site.cluster, node) as marker:
        announcer.play(marker)
        each_story.moves[name] = _moved(job, before=before, node=node, announced_at=marker.now)


def _drain(each_story: Story) -> None:
    """The eviction API meets the disruption budget; kubectl asks again until the pod is gone."""
    job, cluster = each_story.job, each_story.job.site.cluster
    before, node, now = job.members(), _mortal_node(job), time.time()
    options = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_SECONDS}s")
    try:
        each_story.drained = kubectl(cluster, "drain", node, *options)
        each_story.moves[DRAIN] = _moved(job, before=before, node=node, announced_at=now)
    finally:
        kubectl(cluster, "uncordon", node)


def _moved(job: Rehearsal, *, before: dict[int, Json], node: str, announced_at: float) -> Move:
    """Wait until no member is on the node and training goes on."""

    def elsewhere(json: Json | None) -> bool:
        status = (json or {})["status"]
        places = status["assignment"]
        names = [places.get("prefix", "") + rest for rest in places["nodes"]]
        return node not in names and status["phase"] == "Running" and not status.get("disruption")

    moved = job.site.wait(job.name, elsewhere)["status"]
    job.goes_on()
    return Move(
        node=node,
        announced_at=announced_at,
        before=before,
        after=job.members(),
        committed_at=job.commits(),
        moved=moved,
    )


def _mortal_node(job: Rehearsal) -> str:
    """A node with a member on it, and not the operator."""
    nodes = {pod["spec"]["nodeName"] for pod in job.members().values()}
    return min(nodes - {OPERATOR_NODE})


@pytest.mark.parametrize("name", MOVES)
def test_the_checkpoint_is_committed_before_the_deadline(story: Story, name: str) -> None:
    move = story.moves[name]
    seconds = DRAIN_SECONDS if name == DRAIN else ANNOUNCERS[name].seconds
    saved = move.moved["checkpoint"]["step"]
    # a busy machine takes its time, and nobody ends the node here
    latest = move.announced_at + max(seconds, HANG_SECONDS)
    assert move.announced_at <= move.committed_at[saved] < latest


@pytest.mark.parametrize("name", PLAYED)
def test_the_incident_says_what_was_announced(story: Story, name: str) -> None:
    move = story.moves[name]
    incident = move.moved["lastIncident"]
    assert incident["cause"].startswith(f"{ANNOUNCERS[name].kind} of node {move.node}")
    assert incident["faultClass"] == "Preemption"


@pytest.mark.parametrize("name", MOVES)
def test_the_member_there_moves_and_the_other_stays(story: Story, name: str) -> None:
    move = story.moves[name]
    for index, pod in move.before.items():
        same = move.after[index]["metadata"]["uid"] == pod["metadata"]["uid"]
        assert same == (pod["spec"]["nodeName"] != move.node)


def test_no_step_is_lost(story: Story) -> None:
    done = Counter(step for step, _ in story.job.written())
    assert {step: times for step, times in done.items() if times > 1} == {}


def test_losses_and_weights_equal_the_undisturbed_run_bit_for_bit(
    story: Story, undisturbed: Outcome
) -> None:
    assert story.job.outcome() == undisturbed


def test_the_drain_waits_for_the_save_and_then_ends_well(story: Story) -> None:
    assert f"node/{story.moves[DRAIN].node} drained" in story.drained


SAVES_AT_SIGTERM = """
import os, signal, sys, time
name = f"/checkpoints/own-{os.environ['NODE_RANK']}-{time.time_ns()}"
def save(*_):
    time.sleep(2)
    open(name, "a").write("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(name, "a").write("began ")
while True:
    signal.pause()
"""


def test_a_drain_under_a_template_gives_every_pod_its_grace_and_ends(site: Site) -> None:
    """Any image, no agent of ours: SIGTERM to the whole gang, then a start on other nodes."""
    template = {
        "image": TRAINER_IMAGE,
        "command": ["python3", "-c", SAVES_AT_SIGTERM],
        "terminationGracePeriodSeconds": 15,
        "volumes": [{"name": "saved", "persistentVolumeClaim": {"claimName": "checkpoints"}}],
        "volumeMounts": [{"name": "saved", "mountPath": "/checkpoints"}],
    }
    site.submit("own", nodes=2, gpusPerNode=2, template=template)
    queued = site.wait("own", phase_is("Running"))["status"]["queuedAt"]
    node = min(set(site.nodes("own")) - {OPERATOR_NODE})
    options = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={DRAIN_SECONDS}s")
    kubectl(site.cluster, "cordon", node)
    try:
        disrupted = site.wait("own", lambda job: "disruption" in (job or {})["status"])["status"]
        assert (disrupted["phase"], disrupted["generation"]) == ("Running", 1)
        output = kubectl(site.cluster, "drain", node, *options)
        moved = site.wait(
            "own",
            lambda job: phase_is("Running")(job) and (job or {})["status"]["generation"] == 2,
        )["status"]
    finally:
        kubectl(site.cluster, "uncordon", node)
    assert f"node/{node} drained" in output
    assert node not in site.nodes("own")
    assert (moved["restarts"], moved["queuedAt"]) == (0, queued)
    lives = [path.read_text() for path in site.checkpoints.glob("own-*")]
    assert lives.count("began saved") == 2
