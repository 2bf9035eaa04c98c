"""An elastic job loses a node, there is no spare, and it goes on smaller until the node is back.

Its ranks choose a layout for each size (`parallelism.mode: Auto`).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.e2e.rehearsals import REHEARSED, Rehearsal, rehearse
from tests.e2e.site import Site
from tests.kube import Json
from tools.cluster.nodes import boot, power_off

pytestmark = pytest.mark.extended

STEPS = 80
BATCH = 12
"""Divides by 6, 4 and 2 ranks."""
TOLERANCE = 2e-3
"""Of a loss, relative: another number of ranks adds the same numbers in another order."""
SHAPE: Json = {**REHEARSED, "steps": STEPS, "nodes": 3, "note_samples": True}
TRAINER: Json = {"globalBatchSize": BATCH, "overrides": {"log_every_steps": 1}}
"""Without dropout, whose masks are each rank's own."""
AUTO: Json = {**TRAINER, "parallelism": {"mode": "Auto"}}
"""The ranks choose a layout for every size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What was seen of the job that shrank and grew."""

    job: Rehearsal
    small: Json
    """Its status while the node was away."""
    large: Json
    """... when it was back."""
    pods: dict[str, dict[int, str]]
    """Uids by index, at first, small and large."""


@pytest.fixture(scope="module")
def story(stage: Site) -> Story:
    """Three nodes, then two, then three again."""
    job = rehearse(stage, "elastic", trainer=AUTO, minNodes=1, pace_seconds=0.15, **SHAPE)
    job.reach(10)
    job.slow_down()  # at its pace it might end before the node is back
    node = next(node for node in stage.cluster.nodes if node.name == "node-1")
    pods = {"first": uids(job)}

    power_off(node, folder=stage.cluster.folder)
    stage.wait(job.name, lambda item: runs_on(item, nodes=2))
    job.goes_on()
    small = stage.wait(job.name, lambda item: trains_as(item, "FSDP4", nodes=2))["status"]
    pods["small"] = uids(job)

    boot(node, folder=stage.cluster.folder)
    stage.wait(job.name, lambda item: runs_on(item, nodes=3))
    job.goes_on()
    large = stage.wait(job.name, lambda item: trains_as(item, "FSDP6", nodes=3))["status"]
    pods["large"] = uids(job)
    job.hurry()
    job.finish()
    return Story(job=job, small=small, large=large, pods=pods)


@pytest.fixture(scope="module")
def reference(stage: Site) -> Rehearsal:
    """The same job with three nodes all the time."""
    job = rehearse(stage, "constant", trainer=TRAINER, **SHAPE)
    job.finish()
    return job


def runs_on(json: Json | None, *, nodes: int) -> bool:
    status = (json or {}).get("status", {})
    assignment = status.get("assignment") or {}
    return (
        status.get("phase") == "Running"
        and len(assignment.get("nodes", [])) == nodes
        and not assignment.get("joining")
        and not assignment.get("lost")
    )


def trains_as(json: Json | None, layout: str, *, nodes: int) -> bool:
    """Whether it runs on so many nodes and its status shows this layout."""
    shown = (json or {}).get("status", {}).get("layout") or ""
    return runs_on(json, nodes=nodes) and shown.startswith(f"{layout}, ")


def uids(job: Rehearsal) -> dict[int, str]:
    return {index: pod["metadata"]["uid"] for index, pod in job.members().items()}


def test_it_goes_on_with_the_members_it_has(story: Story) -> None:
    first, small = story.pods["first"], story.pods["small"]
    assignment = story.small["assignment"]
    absent = set(assignment.get("absent") or [])
    # the pod on the node that is away may still be listed; its index may be the last
    live = set(range(2 + len(absent))) - absent
    assert len(assignment["nodes"]) == 2
    assert [small[index] for index in live] == [first[index] for index in live]


def test_each_size_has_a_layout_of_its_own(story: Story) -> None:
    assert "predicted" in story.small["layout"]
    assert story.small["layout"] != story.large["layout"]


def test_it_grows_back_and_the_others_keep_their_pods(story: Story) -> None:
    small, large = story.pods["small"], story.pods["large"]
    assert len(story.large["assignment"]["nodes"]) == 3
    assert sum(large[index] == uid for index, uid in small.items() if index in large) == 2


def test_every_sample_is_used_exactly_once(story: Story) -> None:
    assert story.job.samples() == {
        step: list(range((step - 1) * BATCH, step * BATCH)) for step in range(1, STEPS + 1)
    }


def test_losses_stay_within_the_tolerance_of_the_undisturbed_run(
    story: Story, reference: Rehearsal
) -> None:
    wanted = {step: float(loss) for step, loss in reference.written()}
    results = {step: float(loss) for step, loss in story.job.written()}
    assert results == pytest.approx(wanted, rel=TOLERANCE)
