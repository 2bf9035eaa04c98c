"""Conditions of pools and queues, and what kstatus makes of them."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.controller.nodes.conversion import node_of
from drumline.controller.usage.platform_conditions import (
    PodEvictions,
    Statements,
    news_in,
    of_pool,
    of_queue,
    status_fields,
)
from drumline.kube.views import ObjectView
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import parse
from drumline_api.trainingqueue import TrainingQueueSpec
from drumline_scheduler.model import Node
from drumline_scheduler.resources import Resources
from tests.kstatus import kstatus
from tests.texts import missing
from tests.unit.controller.views import node_view, pool_view, queue_view

NOW = 1_800_000_000.0
EVICT = {"borrowed": "Evict"}
OVERRIDE = {"job": "team/hero", "grantedBy": "jane", "reason": "launch"}
H100, ELSEWHERE = frozenset({"h100"}), frozenset({"b200"})


def node(name: str, *, offers: int, used: int, ready: bool = True) -> Node:
    spec: Any = {"nodeSelector": {"gpu": "h100"}}
    view = node_view(name, allocatable={"nvidia.com/gpu": offers}, ready=ready)
    return node_of(
        view, pool="h100", spec=parse(GpuPoolSpec, spec, at="spec"), used=Resources(gpus=used)
    )


def queue(*, pools: tuple[str, ...] = ("h100",), queues: tuple[str, ...] = (), **spec: Any) -> Any:
    problem = spec.pop("problem", None)
    evictions = spec.pop("evictions", PodEvictions())
    parents = spec.pop("parents", {})
    document = {"quotas": [{"gpuPool": "h100", "nominalGpus": 8}], **spec}
    return of_queue(
        parse(TrainingQueueSpec, document, at="spec"),
        problem=problem,
        is_pool=pools.__contains__,
        is_queue=queues.__contains__,
        evictions=evictions,
        parent_of=parents.get,
        is_namespace={"team"}.__contains__,
        gpus_of=lambda name: {"h100": 64}.get(name, 0),
    )


@pytest.mark.parametrize(
    ("statements", "reasons", "expected"),
    [
        (of_pool(problem=None, nodes=[]), {"Ready": "Accepted"}, "Current"),
        (
            of_pool(problem="spec.nodeSelector: no", nodes=[]),
            {"Ready": "Unreadable", "Stalled": "Unreadable"},
            "Failed",
        ),
        (
            of_pool(problem=None, nodes=[node("n1", offers=0, used=8)]),
            {"Ready": "Accepted", "Degraded": "GpusMissing"},
            "Current",
        ),
        (
            of_pool(problem=None, nodes=[node("n1", offers=0, used=8, ready=False)]),
            {"Ready": "Accepted"},
            "Current",
        ),
        (queue(), {"Ready": "Accepted"}, "Current"),
        (queue(pools=()), {"Ready": "GpuPoolNotFound"}, "InProgress"),
        (queue(parent="all"), {"Ready": "ParentNotFound"}, "InProgress"),
        (queue(parent="all", queues=("all",)), {"Ready": "Accepted"}, "Current"),
        (
            queue(parent="a", queues=("a", "b"), parents={"a": "b", "b": "a"}),
            {"Ready": "ParentCycle"},
            "InProgress",
        ),
        (
            queue(namespaces=["team", "gone"]),
            {"Ready": "Accepted", "Ineffective": "NamespaceNotFound"},
            "Current",
        ),
        (
            queue(quotas=[{"gpuPool": "h100", "nominalGpus": 65}]),
            {"Ready": "Accepted", "Ineffective": "QuotaAbovePool"},
            "Current",
        ),
        (
            queue(quotas=[{"gpuPool": "h100", "nominalGpus": 64}], namespaces=["team"]),
            {"Ready": "Accepted"},
            "Current",
        ),
        (
            queue(foreignPods=EVICT),
            {"Ready": "Accepted", "Ineffective": "EvictionNotAllowed"},
            "Current",
        ),
        (
            queue(foreignPods=EVICT, evictions=PodEvictions(allowed=True, guarded_pools=ELSEWHERE)),
            {"Ready": "Accepted", "Ineffective": "NoGuardedPool"},
            "Current",
        ),
        (
            queue(foreignPods=EVICT, evictions=PodEvictions(allowed=True, guarded_pools=H100)),
            {"Ready": "Accepted"},
            "Current",
        ),
        (
            queue(overrides=[{**OVERRIDE, "until": "1970-01-01T00:00:01Z"}]),
            {"Ready": "Accepted", "Overriding": "OverrideGranted"},
            "Current",
        ),
        (
            queue(overrides=[{**OVERRIDE, "until": "1970-01-01T00:00:00Z"}]),
            {"Ready": "Accepted", "Overriding": "OverrideEnded"},
            "Current",
        ),
        (queue(problem="no"), {"Ready": "Unreadable", "Stalled": "Unreadable"}, "Failed"),
    ],
)
def test_reasons_and_what_kstatus_reads(
    statements: Statements, reasons: dict[str, str], expected: str
) -> None:
    fields = status_fields(queue_view(), statements, now=NOW)
    assert {entry["type"]: entry["reason"] for entry in fields["conditions"]} == reasons
    document = {"metadata": {"generation": 0}, "status": fields}
    assert kstatus(document) == expected
    document["metadata"]["generation"] = 1
    assert kstatus(document) == "InProgress"


def test_a_zombie_s_return_names_node_and_figures() -> None:
    nodes = [node(f"n{number}", offers=0, used=8) for number in range(5)]
    text = of_pool(problem=None, nodes=nodes)
    (message,) = [entry.message for entry in text.values() if entry.message]
    assert not missing(message, "n0", "0 GPUs", "8", "n1")
    assert "and 2 more nodes" in message


def test_a_condition_keeps_its_time_while_its_truth_stays() -> None:
    first = status_fields(pool_view(), of_pool(problem=None, nodes=[]), now=NOW)
    view = pool_view()
    again = type(view)(
        namespace="", name="h100", uid="h100", resource_version="2", generation=2, status=first
    )
    second = status_fields(again, of_pool(problem=None, nodes=[]), now=NOW + 60)
    assert [entry["lastTransitionTime"] for entry in second["conditions"]] == [
        entry["lastTransitionTime"] for entry in first["conditions"]
    ]
    assert second["observedGeneration"] == 2


def test_a_condition_that_changes_is_news_and_a_good_start_is_none() -> None:
    plain = queue_view("q")
    cycle = queue(parent="a", queues=("a", "b"), parents={"a": "b", "b": "a"})
    assert news_in(plain, status_fields(plain, queue(), now=NOW)) == []
    (news,) = news_in(plain, status_fields(plain, cycle, now=NOW))
    assert news[:2] == (True, "ParentCycle")
    status = status_fields(plain, cycle, now=NOW)
    broken = ObjectView(namespace="", name="q", uid="q", resource_version="2", status=status)
    assert news_in(broken, broken.status) == []
    (news,) = news_in(broken, status_fields(broken, queue(), now=NOW))
    assert news == (False, "Accepted", "Ready again")
