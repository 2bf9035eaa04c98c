"""Queues that are open to namespaces by their labels."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.state.event_handlers import EventHandlers
from drumline.kube.store import Change, Event
from drumline.kube.views import NamespaceView, ObjectView, PodPhase
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Blocked, BlockReason, Placed
from drumline_scheduler.model import Policy
from tests.texts import missing
from tests.unit.controller.views import (
    assignment,
    foreign_pod,
    job_view,
    node_view,
    pod_view,
    pool_view,
    queue_view,
)

NOW = 1_800_000_000.0


def queue(**spec: Any) -> ObjectView:
    return structs.replace(queue_view(), spec=queue_view().spec | spec)


def of_team(team: str) -> ObjectView:
    return queue(namespaceSelector={"matchLabels": {"team": team}})


def namespace(name: str = "team", **labels: str) -> NamespaceView:
    return NamespaceView(name=name, uid=name, resource_version="1", labels=labels)


@pytest.fixture
def state() -> ClusterCache:
    state = ClusterCache(nodes=NodeCache(clock=lambda: NOW))
    state.on_pool(None, pool_view())
    state.nodes.on_node(None, node_view())
    state.on_job(None, job_view())
    return state


def outcome(state: ClusterCache) -> Placed | Blocked:
    """Of the only job that waits, which is in namespace team."""
    snapshot, pending = state.scheduling.snapshot(now=NOW), state.scheduling.pending()
    decisions = decide(
        CycleInput(snapshot=snapshot, pending=tuple(pending), policy=Policy(), now=NOW)
    )
    (only,) = (*decisions.placed, *decisions.blocked)
    return only


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    named = {"values": list(values)} if values else {}
    return {
        "namespaceSelector": {"matchExpressions": [{"key": key, "operator": operator, **named}]}
    }


@pytest.mark.parametrize(
    ("spec", "is_open"),
    [
        ({"namespaceSelector": {}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "nlp", "stage": "dev"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "nlp", "stage": "prod"}}}, False),
        (expression("team", "In", "vision", "nlp"), True),
        (expression("team", "In", "vision"), False),
        (expression("absent", "In", "nlp"), False),
        (expression("team", "NotIn", "nlp"), False),
        (expression("absent", "NotIn", "nlp"), True),
        (expression("team", "Exists"), True),
        (expression("absent", "Exists"), False),
        (expression("team", "DoesNotExist"), False),
        (expression("absent", "DoesNotExist"), True),
        ({"namespaces": ["other"]}, False),
        ({"namespaces": ["other"], "namespaceSelector": {"matchLabels": {"team": "nlp"}}}, True),
        ({"namespaces": ["team"], "namespaceSelector": {"matchLabels": {"team": "cv"}}}, True),
    ],
    ids=str,
)
def test_a_selector_means_what_it_means_in_kubernetes(
    state: ClusterCache, spec: dict[str, Any], *, is_open: bool
) -> None:
    state.namespaces.on_namespace(None, namespace(team="nlp", stage="dev"))
    state.on_queue(None, queue(**spec))
    assert isinstance(outcome(state), Placed) == is_open


def test_a_namespace_that_nobody_saw_is_not_selected(state: ClusterCache) -> None:
    state.on_queue(None, queue(namespaceSelector={}))
    assert isinstance(outcome(state), Blocked)


def test_the_message_names_the_labels_and_no_other_namespace(state: ClusterCache) -> None:
    state.namespaces.on_namespace(None, namespace("secret", team="nlp"))
    state.namespaces.on_namespace(None, namespace(team="vision"))
    expressions = [
        {"key": "stage", "operator": "In", "values": ["dev", "test"]},
        {"key": "paused", "operator": "DoesNotExist"},
    ]
    selector = {"matchLabels": {"team": "nlp"}, "matchExpressions": expressions}
    state.on_queue(None, queue(namespaceSelector=selector))
    blocked = outcome(state)
    assert isinstance(blocked, Blocked)
    assert blocked.reason is BlockReason.NAMESPACE_NOT_ALLOWED
    assert not missing(blocked.message, "queue research", "namespace team", "team=nlp")


def test_a_namespace_that_loses_its_label_keeps_what_runs(state: ClusterCache) -> None:
    labelled = namespace(team="nlp")
    state.namespaces.on_namespace(None, labelled)
    state.on_queue(None, of_team("nlp"))
    state.on_job(job_view(), job_view(version=2, status=assignment("node-0", "node-0")))
    for index in (0, 1):
        state.on_pod(None, pod_view(index=index))
    state.namespaces.on_namespace(labelled, namespace())
    state.on_job(None, job_view("late", uid="job-2"))
    snapshot, pending = state.scheduling.snapshot(now=NOW), state.scheduling.pending()
    decisions = decide(
        CycleInput(snapshot=snapshot, pending=tuple(pending), policy=Policy(), now=NOW)
    )
    assert [held.gang.key for held in snapshot.admitted] == ["team/llama"]
    assert (decisions.placed, decisions.preemptions) == ((), ())
    assert [(each.key, each.reason) for each in decisions.blocked] == [
        ("team/late", BlockReason.NAMESPACE_NOT_ALLOWED)
    ]


def test_foreign_pods_charge_the_queues_that_select_their_namespace(state: ClusterCache) -> None:
    pod = foreign_pod("chat", labels={"drumline.dev/queue": "research"}, phase=PodPhase.RUNNING)
    state.on_queue(None, of_team("nlp"))
    state.on_pod(None, pod)
    assert state.scheduling.snapshot(now=NOW).admitted == ()
    state.namespaces.on_namespace(None, namespace("other", team="nlp"))
    (held,) = state.scheduling.snapshot(now=NOW).admitted
    assert held.is_foreign


def test_the_scheduler_is_woken_by_labels_alone(state: ClusterCache) -> None:
    wakes: list[None] = []
    handlers = EventHandlers(
        state, enqueue=print, enqueue_soon=print, wake_scheduler=lambda: wakes.append(None)
    )
    versions = [namespace(team="nlp"), namespace(team="nlp"), namespace(), None]
    counts: list[int] = []
    before = None
    for after in versions:
        view = after or before
        assert view is not None
        change = Change.MODIFIED if after is not None else Change.DELETED
        handlers._on_namespace(Event(change=change, view=view, previous=before))
        counts.append(len(wakes))
        before = after
    assert counts == [1, 1, 2, 3]
