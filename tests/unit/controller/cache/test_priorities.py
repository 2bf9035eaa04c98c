"""No change of a class makes a running job safe from preemption."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
from msgspec import structs

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.state.snapshots import CheckedStart
from drumline.kube.views import NamespaceView
from drumline.lifecycle.model.timestamps import timestamp
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Blocked, BlockReason
from drumline_scheduler.model import Policy
from tests import builders
from tests.texts import missing
from tests.unit.controller.views import (
    assignment,
    job_view,
    node_view,
    pod_view,
    pool_view,
    priority_view,
    queue_view,
)
from tests.unit.lifecycle.planning import planned

NOW = 1_800_000_000.0


@pytest.fixture
def state() -> ClusterCache:
    """A job of priority 50 holds the only node."""
    state = ClusterCache(nodes=NodeCache(clock=lambda: NOW))
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view(gpus=8))
    state.nodes.on_node(None, node_view())
    for name, value in {"low": 50, "high": 100, "highest": 2_000_001_000}.items():
        state.on_priority_class(None, priority_view(name, value))
    state.on_job(None, running("low"))
    state.on_pod(None, pod_view(gpus=8))
    return state


def running(priority_class: str, *, version: int = 1) -> Any:
    status = {**assignment("node-0"), "priority": 50}
    spec: dict[str, Any] = {"nodes": 1, "gpusPerNode": 8, "priorityClassName": priority_class}
    return job_view(version=version, status=status, **spec)


def preempted(state: ClusterCache, **status: Any) -> list[str]:
    """The jobs that give way to a job of priority 100 in the same queue."""
    spec: dict[str, Any] = {"nodes": 1, "gpusPerNode": 8, "priorityClassName": "high"}
    state.on_job(None, job_view("urgent", uid="urgent", status=status, **spec))
    decisions = decide(
        CycleInput(
            snapshot=state.scheduling.snapshot(now=NOW),
            pending=state.scheduling.pending(),
            policy=Policy(),
            now=NOW,
        )
    )
    return [victim.key for each in decisions.preemptions for victim in each.victims]


def test_a_job_that_names_a_higher_class_while_it_runs_gives_way_as_before(
    state: ClusterCache,
) -> None:
    state.on_job(running("low"), running("highest", version=2))
    assert preempted(state) == ["team/llama"]


def test_so_does_one_whose_class_gets_a_higher_value(state: ClusterCache) -> None:
    state.on_priority_class(priority_view("low", 50), priority_view("low", 900))
    assert preempted(state) == ["team/llama"]


def test_a_class_that_is_deleted_makes_no_running_job_lower(state: ClusterCache) -> None:
    state.on_priority_class(priority_view("low", 50), None)
    assert state.scheduling.snapshot(now=NOW).admitted[0].gang.priority == 50


def test_a_lower_class_and_a_lower_limit_of_the_queue_count_at_once(state: ClusterCache) -> None:
    state.on_priority_class(None, priority_view("idle", -10))
    queue = queue_view(gpus=8)
    limited = structs.replace(queue, spec={**queue.spec, "maxPriority": 20})
    state.on_queue(queue, limited)
    assert state.scheduling.snapshot(now=NOW).admitted[0].gang.priority == 20
    state.on_job(running("low"), running("idle", version=2))
    assert state.scheduling.snapshot(now=NOW).admitted[0].gang.priority == -10


def test_a_waiting_job_is_rejected_above_what_training_may_have(state: ClusterCache) -> None:
    """Also where it was stored before its class was refused by the API server."""
    state.on_job(None, job_view("proud", uid="proud", priorityClassName="highest"))
    decisions = decide(
        CycleInput(
            snapshot=state.scheduling.snapshot(now=NOW),
            pending=state.scheduling.pending(),
            policy=Policy(),
            now=NOW,
        )
    )
    (blocked,) = decisions.blocked
    assert isinstance(blocked, Blocked)
    assert blocked.reason is BlockReason.PRIORITY_TOO_HIGH
    assert "priority 2000001000 is above 1000000000" in blocked.message


def a_polite_class(name: str, value: int, *, default: bool = False) -> Any:
    return structs.replace(priority_view(name, value, default=default), preempts=False)


def test_a_class_that_never_preempts_evicts_nobody(state: ClusterCache) -> None:
    polite = a_polite_class("high", 100)
    state.on_priority_class(priority_view("high", 100), polite)
    assert preempted(state) == []
    state.on_priority_class(polite, priority_view("high", 100))
    assert preempted(state) == ["team/llama"]


def test_the_default_class_counts_for_jobs_that_name_none(state: ClusterCache) -> None:
    state.on_priority_class(None, a_polite_class("usual", 100, default=True))
    spec: dict[str, Any] = {"nodes": 1, "gpusPerNode": 8}
    state.on_job(None, job_view("plain", uid="plain", **spec))
    assert [gang.preempts for gang in state.scheduling.pending()] == [False]


@pytest.mark.parametrize("order", list(permutations(["usual", "urgent", "idle"])))
def test_the_lowest_of_several_default_classes_counts(
    state: ClusterCache, order: Sequence[str]
) -> None:
    values = {"usual": 10, "urgent": 100, "idle": -5}
    state.on_job(None, job_view("plain", uid="plain"))
    views = {name: priority_view(name, value, default=True) for name, value in values.items()}
    for name in order:
        state.on_priority_class(None, views[name])
    assert [gang.priority for gang in state.scheduling.pending()] == [-5]
    state.on_priority_class(views["idle"], priority_view("idle", -5))
    assert [gang.priority for gang in state.scheduling.pending()] == [10]
    state.on_priority_class(views["usual"], None)
    assert [gang.priority for gang in state.scheduling.pending()] == [100]


def test_a_job_of_a_namespace_that_is_being_deleted_evicts_nobody(state: ClusterCache) -> None:
    going = NamespaceView(name="team", uid="team", resource_version="1", terminating=True)
    assert state.namespaces.on_namespace(None, going)
    assert preempted(state) == []
    assert all(gang.obstacle for gang in state.scheduling.pending())
    assert state.namespaces.on_namespace(going, None)
    assert preempted(state) == ["team/llama"]


@pytest.mark.parametrize(
    ("checked", "expected"),
    [
        (None, []),
        (CheckedStart(generation=1, failed_starts=2), ["team/llama"]),
        (CheckedStart(generation=1, failed_starts=1), []),
        (CheckedStart(generation=1, failed_starts=2, until=NOW + 1, message="refused"), []),
    ],
)
def test_a_job_whose_last_start_failed_evicts_nobody_unless_a_check_found_it(
    state: ClusterCache, checked: CheckedStart | None, expected: list[str]
) -> None:
    if checked is not None:
        state.scheduling.checked["urgent"] = checked
    assert preempted(state, failedStarts=2, incident="no quota") == expected
    state.scheduling.forget("team", "urgent")
    assert "urgent" not in state.scheduling.checked


@pytest.mark.parametrize(
    ("seconds_ago", "expected"),
    [((100, 50), ["team/llama"]), ((200, 100, 50), []), ((200, 100, 61), ["team/llama"])],
)
def test_a_job_that_was_preempted_often_pauses_before_it_evicts_again(
    state: ClusterCache, seconds_ago: tuple[int, ...], expected: list[str]
) -> None:
    times = [timestamp(NOW - each) for each in seconds_ago]
    assert preempted(state, preemptedAt=times) == expected


TROUBLES = [
    "CreateContainerConfigError: couldn't find key token in Secret team/hub",
    "CreateContainerConfigError: couldn't find key rate in ConfigMap team/knobs",
    "FailedMount: references non-existent secret key: token",
    "FailedMount: references non-existent config key: rate",
    "ErrImagePull: team/trian:1: not found",
    "ImagePullBackOff: Back-off pulling image: ErrImagePull: team/trian:1: not found",
    "InvalidImageName: couldn't parse image name",
    "ErrImageNeverPull: image is not present with pull policy of Never",
]
"""A kubelet's words about what no check sees: keys and images."""


@pytest.mark.parametrize("words", TROUBLES)
def test_after_one_start_with_a_key_or_image_that_is_missing_a_job_evicts_nobody(
    state: ClusterCache, words: str
) -> None:
    """Until its spec changes, or a start on free capacity succeeds."""
    assert preempted(state) == ["team/llama"]
    # 1. Its pods do not start, in the kubelet's words, so its nodes are given back.
    job = builders.admitted(builders.a_job(), at=builders.T0)
    up, late = builders.ready_pods(job)[0], builders.a_pod(job, 1, waiting=words)
    failed = planned(job, builders.observed(up, late), now=builders.T0 + 30).status
    assert failed is not None
    assert (failed.assignment, failed.failed_starts) == (None, 1)
    status = {"failedStarts": 1, "incident": failed.incident, "observedGeneration": 1}
    # 2. It gets free capacity only, also from a leader that has just come.
    assert preempted(state, **status) == []
    (gang,) = state.scheduling.pending()
    assert not missing(gang.refusal, "its last start failed", words.rsplit(maxsplit=1)[-1])
    # 3. Another spec may have mended it.
    assert preempted(state, **{**status, "observedGeneration": 0}) == ["team/llama"]
