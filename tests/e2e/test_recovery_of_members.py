"""A pod or a node is lost: one pod is replaced, the others keep theirs and their processes.

One job loses member after member, in every way there is, and has to come to the same end as if
nothing had been. Each test is one verdict on it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.e2e.absence import away
from tests.e2e.rehearsals import REHEARSED, Outcome, Rehearsal, rehearse
from tests.e2e.site import OPERATOR_NODE, Site
from tests.kube import Json
from tools.cluster import NodeInfo
from tools.cluster.inside import inhabitants, strike
from tools.cluster.network import set_cable
from tools.cluster.nodes import boot, power_off
from tools.cluster.outages import zombie
from tools.cluster.rest import ApiStatusError

pytestmark = pytest.mark.extended  # `make test` has test_life_of_a_job

RANKS = REHEARSED["gpusPerNode"]
LOSSES = ("agent killed", "pod deleted", "pod evicted", "node without power", "cable pulled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One member's loss and replacement, as seen from outside."""

    index: int
    generation: int
    """The membership that the recovery led to."""
    before: dict[int, Json]
    after: dict[int, Json]


@dataclass(slots=True, kw_only=True)
class Story:
    """What was seen of the job that lost its members."""

    job: Rehearsal
    losses: dict[str, Loss] = field(default_factory=dict[str, Loss])
    refusals: int = 0
    """Answers 429 to evictions that the disruption budget did not allow."""
    zombie_steps: int = 0
    """Steps finished while a node's kubelet and containerd stood still."""
    zombie_generations: tuple[int, int] = (0, 0)
    """Before and after that."""
    dead_pod: Json = field(default_factory=dict)
    """The lost pod, as the API server had it while its node was dead."""
    readiness: list[str] = field(default_factory=list[str])
    """Of that node: dead, and back with its GPUs."""
    status: Json = field(default_factory=dict)


@pytest.fixture(scope="module")
def story(stage: Site) -> Story:
    """The job's life with every loss in it."""
    job = rehearse(stage, "moving", pace_seconds=0.15, **REHEARSED)
    output = Story(job=job)
    job.reach(5)
    _lose_agent(output)
    _lose_deleted_pod(output)
    _lose_evicted_pod(output)
    _have_a_zombie(output)
    _lose_power(output)
    _lose_cable(output)
    job.hurry()
    output.status = job.finish()
    return output


def _lose_agent(each_story: Story) -> None:
    def kill_it(pod: Json) -> None:
        strike(each_story.job.site.cluster, pod["metadata"]["uid"], 1, signal.SIGKILL)

    _lose(each_story, "agent killed", 1, kill_it)


def _lose_deleted_pod(each_story: Story) -> None:
    site = each_story.job.site
    _lose(
        each_story,
        "pod deleted",
        0,
        lambda pod: site.kube.delete("pods", pod["metadata"]["name"], site.namespace),
    )


def _lose_evicted_pod(each_story: Story) -> None:
    site = each_story.job.site

    def evict(pod: Json) -> None:
        name = pod["metadata"]["name"]
        try:
            site.kube.evict(name, site.namespace)
        except ApiStatusError as error:
            each_story.refusals += error.code == 429
        for budget in site.kube.list("poddisruptionbudgets", site.namespace):
            site.kube.delete("poddisruptionbudgets", budget["metadata"]["name"], site.namespace)
        site.kube.evict(name, site.namespace)

    _lose(each_story, "pod evicted", 1, evict)


def _have_a_zombie(each_story: Story) -> None:
    """For longer than a silent member is waited for."""
    job = each_story.job
    _, node = _member_on_a_mortal_node(job)
    generation, first = job.generation(), job.last_step()
    with zombie(job.site.cluster, node):
        time.sleep(8)
        each_story.zombie_steps = job.reach(first + 3) - first
    each_story.zombie_generations = (generation, job.generation())


def _lose_power(each_story: Story) -> None:
    """The operator is away for the first ten seconds of it."""
    job, cluster = each_story.job, each_story.job.site.cluster
    index, node = _member_on_a_mortal_node(job)

    def cut(_: Json) -> None:
        with away(job.site.kube):
            power_off(node, folder=cluster.folder)
            time.sleep(10)

    lost = _lose(each_story, "node without power", index, cut)
    name = lost.before[index]["metadata"]["name"]
    each_story.dead_pod = job.site.kube.get("pods", name, job.site.namespace)
    each_story.readiness.append(_wait_until_lost(job.site, node))
    boot(node, folder=cluster.folder)
    each_story.readiness.append(_wait_until_usable(job.site, node, without=name))


def _lose_cable(each_story: Story) -> None:
    job, cluster = each_story.job, each_story.job.site.cluster
    index, node = _member_on_a_mortal_node(job)
    fabric = str(cluster.netns)
    lost = _lose(
        each_story, "cable pulled", index, lambda _: set_cable(node, fabric=fabric, plugged=False)
    )
    set_cable(node, fabric=fabric, plugged=True)
    _wait_until_usable(job.site, node, without=lost.before[index]["metadata"]["name"])


def _lose(each_story: Story, what: str, index: int, act: Callable[[Json], None]) -> Loss:
    """Let something happen to a member's pod; return once training goes on without it."""
    job, site = each_story.job, each_story.job.site
    before, generation = job.members(), job.generation()
    act(before[index])
    site.wait(job.name, lambda item: (item or {})["status"]["generation"] > generation)
    site.wait(job.name, lambda item: (item or {})["status"]["phase"] == "Running")
    job.goes_on()
    loss = Loss(index=index, generation=job.generation(), before=before, after=job.members())
    each_story.losses[what] = loss
    return loss


def _member_on_a_mortal_node(job: Rehearsal) -> tuple[int, NodeInfo]:
    """The lowest index whose node is not the operator's own."""
    for index, pod in sorted(job.members().items()):
        for node in job.site.cluster.nodes:
            if node.name == pod["spec"]["nodeName"] != OPERATOR_NODE:
                return index, node
    raise LookupError("all members are on the operator's node")


def _wait_until_lost(site: Site, node: NodeInfo) -> str:
    """Kubernetes believes no more that the node lives; returns its readiness."""
    lost = site.kube.wait(
        "nodes", node.name, None, lambda item: item is not None and _ready(item) != "True"
    )
    assert lost is not None
    return _ready(lost)


def _wait_until_usable(site: Site, node: NodeInfo, *, without: str) -> str:
    """The node is back with its GPUs, and the pod it lost is gone; returns its readiness."""
    site.kube.wait("pods", without, site.namespace, lambda pod: pod is None)
    result = site.kube.wait(
        "nodes",
        node.name,
        None,
        lambda item: (
            item is not None
            and _ready(item) == "True"
            and item["status"]["allocatable"].get("nvidia.com/gpu") == str(node.gpus)
        ),
    )
    assert result is not None
    return _ready(result)


def _ready(node: Json) -> str:
    return next(each["status"] for each in node["status"]["conditions"] if each["type"] == "Ready")


def test_losses_and_weights_equal_the_undisturbed_run_bit_for_bit(
    story: Story, undisturbed: Outcome
) -> None:
    assert story.job.outcome() == undisturbed


@pytest.mark.parametrize("loss", LOSSES)
def test_one_pod_was_replaced_and_the_other_kept(story: Story, loss: str) -> None:
    seen = story.losses[loss]
    other = 1 - seen.index
    kept, was = seen.after[other], seen.before[other]
    assert seen.after[seen.index]["metadata"]["uid"] != seen.before[seen.index]["metadata"]["uid"]
    assert kept["metadata"]["uid"] == was["metadata"]["uid"]
    assert [each["restartCount"] for each in kept["status"]["containerStatuses"]] == [0]


@pytest.mark.parametrize("loss", LOSSES)
def test_the_ranks_of_the_other_pod_kept_their_processes(story: Story, loss: str) -> None:
    seen = story.losses[loss]
    begun = {each.rank for each in story.job.begun() if each.generation == seen.generation}
    assert begun == set(range(seen.index * RANKS, seen.index * RANKS + RANKS))


def test_each_loss_was_one_membership(story: Story) -> None:
    generations = [story.losses[loss].generation for loss in LOSSES]
    assert generations == [2, 3, 4, 5, 6]
    assert story.status["generation"] == 6


def test_an_eviction_meets_the_disruption_budget(story: Story) -> None:
    assert story.refusals == 1


def test_a_zombie_trains_on_and_nothing_is_replaced(story: Story) -> None:
    before, after = story.zombie_generations
    assert before == after
    assert story.zombie_steps > 2


def test_the_pod_of_a_dead_node_is_asked_to_go_and_never_forced(story: Story) -> None:
    lost = story.losses["node without power"]
    assert story.dead_pod["metadata"]["uid"] == lost.before[lost.index]["metadata"]["uid"]
    assert "deletionTimestamp" in story.dead_pod["metadata"]
    assert story.dead_pod["metadata"]["deletionGracePeriodSeconds"] > 0


def test_a_node_without_power_is_seen_lost_and_comes_back(story: Story) -> None:
    assert story.readiness == ["Unknown", "True"]


def test_ranks_that_come_back_are_refused(story: Story) -> None:
    """They lived on behind the pulled cable, with the checkpoints' folder in reach."""
    lost = story.losses["cable pulled"]
    newest = [each.generation for each in story.job.begun()][-RANKS:]
    assert newest == [lost.generation] * RANKS
    old = lost.before[lost.index]["metadata"]["uid"]
    assert inhabitants(story.job.site.cluster, old) == {}
