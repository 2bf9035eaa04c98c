"""Nodes: their capacity, announced disruptions, and the jobs that a change concerns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from msgspec import structs

from drumline.controller.nodes.nodes import OVERDUE_SECONDS, NodeCache, NodeChange
from drumline.controller.nodes.pods import ChargedPod, PodsByRole
from drumline.kube.views import ConditionView, NodeView, PodView
from drumline.lifecycle.model.observed import NodeDisruption
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.base import LABEL_QUEUE
from drumline_api.conditions import DisruptionKind
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.objects import builtin
from drumline_scheduler.model import Node
from tests.unit.controller.conversion.test_autoscaling import a_spec
from tests.unit.controller.views import foreign_pod, node_view, pod_view

SPOT = "aws-node-termination-handler/spot-itn"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
POOLS = {"h100": GpuPoolSpec.model_validate({"nodeSelector": {"gpu": "h100"}})}
JOB = frozenset({"team/llama"})


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def nodes(clock: Clock) -> NodeCache:
    """A node with a member of team/llama and a pod of another owner."""
    nodes = NodeCache(clock=clock)
    nodes.on_node(None, node_view())
    nodes.on_pod(None, pod_view())
    nodes.on_pod(None, foreign_pod("theirs"))
    return nodes


def update(nodes: NodeCache, **fields: Any) -> NodeChange:
    return nodes.on_node(node_view(), node_view(version=2, **fields))


def marked(key: str) -> dict[str, Any]:
    return {"taints": (builtin.Taint(key=key, effect="NoSchedule"),)}


def members_only(name: str, pods: Iterable[PodView], *, ready: bool) -> PodsByRole:
    del name, ready
    return PodsByRole(terminating=tuple(pod for pod in pods if pod.terminating))


def teams_pods_remain(name: str, pods: Iterable[PodView], *, ready: bool) -> PodsByRole:
    del name, ready
    return PodsByRole(terminating=tuple(pod for pod in pods if pod.namespace == "team"))


def only(nodes: NodeCache) -> Node:
    (node,) = nodes.in_pools(POOLS, roles=members_only)
    return node


def test_a_heartbeat_concerns_no_job(nodes: NodeCache) -> None:
    assert update(nodes) == NodeChange()


def test_a_node_that_announces_its_end_concerns_its_jobs_and_closes(
    nodes: NodeCache, clock: Clock
) -> None:
    assert update(nodes, **marked(SPOT)) == NodeChange(schedulable=True, jobs=JOB)
    assert nodes.disruptions_of(["node-0", "elsewhere"]) == (
        NodeDisruption(
            node="node-0",
            kind=DisruptionKind.SPOT_RECLAIM,
            source=SPOT,
            deadline=clock.now + 120,
        ),
    )
    assert only(nodes).closed == f"SpotReclaim ({SPOT})"


def test_a_promise_keeps_others_off_and_changes_nothing_for_gangs(nodes: NodeCache) -> None:
    assert update(nodes, **marked("drumline.dev/promised")) == NodeChange()
    assert (nodes.promised, only(nodes).taints) == ({"node-0"}, ())
    assert update(nodes) == NodeChange()
    assert nodes.promised == set()


def test_an_end_that_is_likely_closes_and_a_possible_end_does_nothing(
    nodes: NodeCache,
) -> None:
    likely = update(nodes, **marked("aws-node-termination-handler/rebalance-recommendation"))
    assert likely == NodeChange(schedulable=True, jobs=JOB)
    (disruption,) = nodes.disruptions_of(["node-0"])
    assert (disruption.certain, bool(only(nodes).closed)) == (False, True)
    update(nodes, **marked("DeletionCandidateOfClusterAutoscaler"))
    assert (only(nodes).closed, len(list(nodes.disruptions()))) == ("", 1)


def test_a_deadline_stays_what_it_was_when_the_node_is_updated(
    nodes: NodeCache, clock: Clock
) -> None:
    update(nodes, **marked(SPOT))
    clock.now += 60
    update(nodes, **marked(SPOT), labels={"gpu": "h100", "new": "label"})
    (threat,) = nodes.disruptions_of(["node-0"])
    assert threat.deadline == clock.now + 60


def test_an_announcement_that_is_taken_back_is_forgotten(nodes: NodeCache) -> None:
    update(nodes, **marked(SPOT))
    assert update(nodes) == NodeChange(schedulable=True, jobs=JOB)
    assert (nodes.disruptions_of(["node-0"]), list(nodes.disruptions())) == ((), [])


def test_a_maintenance_comes_near_without_an_event(nodes: NodeCache, clock: Clock) -> None:
    at = str(int(clock.now) + 3600)
    update(nodes, labels={"gpu": "h100", "cloud.google.com/scheduled-maintenance-time": at})
    assert (nodes.check_announcements(), nodes.disruptions_of(["node-0"])) == ([], ())
    clock.now += 3000
    assert nodes.check_announcements() == [NodeChange(schedulable=True, jobs=JOB)]
    assert nodes.disruptions_of(["node-0"]) != ()
    assert nodes.check_announcements() == []


def test_a_node_is_gone_with_its_object_or_by_somebodys_word(nodes: NodeCache) -> None:
    assert [nodes.is_gone(name) for name in ("node-0", "elsewhere")] == [False, True]
    assert update(nodes, **marked(OUT_OF_SERVICE), ready=False).jobs == JOB
    assert nodes.is_gone("node-0")
    assert update(nodes, **marked(OUT_OF_SERVICE)).jobs == JOB
    assert not nodes.is_gone("node-0"), "it has returned, and its pods run"
    update(nodes)
    assert not nodes.is_gone("node-0")
    assert nodes.on_node(node_view(version=2), None).jobs == JOB
    assert nodes.is_gone("node-0")


def test_readiness_of_a_node_concerns_its_jobs(nodes: NodeCache) -> None:
    quiet = ConditionView(type="Ready", status="Unknown")
    assert update(nodes, ready=False, conditions=(quiet,)).jobs == JOB
    assert (nodes.is_ready("node-0"), nodes.is_ready("elsewhere")) == (False, False)
    assert not nodes.is_gone("node-0")


def test_pods_that_are_to_go_are_counted_apart_and_still_hold_their_room(nodes: NodeCache) -> None:
    (node,) = nodes.in_pools(POOLS, roles=teams_pods_remain)
    assert (node.used.gpus, node.terminating.gpus) == (3, 2)
    gone = foreign_pod("theirs", terminating=True)
    nodes.on_pod(foreign_pod("theirs"), gone)
    assert only(nodes).terminating.gpus == 1


def test_a_node_of_no_pool_is_offered_to_no_pool(nodes: NodeCache) -> None:
    other: NodeView = node_view("other", labels={"gpu": "none"})
    nodes.on_node(None, other)
    assert [node.name for node in nodes.in_pools(POOLS, roles=members_only)] == ["node-0"]


def test_a_node_that_several_pools_select_belongs_to_the_first(nodes: NodeCache) -> None:
    selector = GpuPoolSpec.model_validate({"nodeSelector": {"gpu": "h100"}})
    pools = {"z-old": selector, "a-new": selector}
    assert [node.pool for node in nodes.in_pools(pools, roles=members_only)] == ["z-old"]
    assert nodes.contested == {"node-0": ("z-old", "a-new")}
    nodes.pools_changed()
    assert [node.pool for node in nodes.in_pools(POOLS, roles=members_only)] == ["h100"]
    assert nodes.contested == {}


def test_a_pod_that_should_have_been_gone_is_overdue_without_an_event(
    nodes: NodeCache, clock: Clock
) -> None:
    ends = pod_view(terminating=True, deletion_time=timestamp(clock.now))
    nodes.on_pod(pod_view(), ends)
    assert (only(nodes).terminating.gpus, only(nodes).overdue.gpus) == (2, 0)
    clock.now += OVERDUE_SECONDS
    assert (only(nodes).terminating.gpus, only(nodes).overdue.gpus) == (2, 2)
    nodes.on_pod(ends, None)
    assert only(nodes).overdue.gpus == 0


@pytest.mark.parametrize("skew", [-3000.0, 0.0, 1200.0])
def test_the_clock_of_the_api_server_decides_nothing_about_a_deletion_that_was_seen(
    nodes: NodeCache, clock: Clock, skew: float
) -> None:
    """Otherwise a pod in its grace period would be overdue, and others evicted in its place."""
    ends = pod_view(
        terminating=True, deletion_time=timestamp(clock.now + skew + 600), grace_seconds=600
    )
    nodes.on_pod(pod_view(), ends)
    clock.now += 600 + OVERDUE_SECONDS - 1
    assert (only(nodes).terminating.gpus, only(nodes).overdue.gpus) == (2, 0)
    clock.now += 1
    assert only(nodes).overdue.gpus == 2
    # Deleted once more, at once: the shorter period counts.
    fresh = pod_view(uid="u2")
    late = structs.replace(ends, uid="u2")
    nodes.on_pod(ends, None)
    nodes.on_pod(None, fresh)
    nodes.on_pod(fresh, late)
    nodes.on_pod(late, structs.replace(late, grace_seconds=0))
    clock.now += OVERDUE_SECONDS
    assert only(nodes).overdue.gpus == 2


def test_a_pod_that_hangs_is_named_with_what_holds_it(nodes: NodeCache, clock: Clock) -> None:
    ends = pod_view(terminating=True, deletion_time=timestamp(clock.now), finalizers=("x/y",))
    nodes.on_pod(pod_view(), ends)
    assert only(nodes).hanging == ()
    clock.now += OVERDUE_SECONDS
    assert only(nodes).hanging == ("team/llama-0-g1 (finalizer x/y)",)


def test_a_pod_whose_deletion_is_refused_is_not_waited_for_either(clock: Clock) -> None:
    nodes = NodeCache(clock=clock, overdue_seconds=30.0)
    nodes.on_node(None, node_view())
    nodes.on_pod(None, pod_view())

    def going() -> tuple[int, int]:
        (node,) = nodes.in_pools(POOLS, roles=teams_pods_remain)
        return node.ending.gpus, node.overdue.gpus

    assert going() == (2, 0)
    clock.now += 29.0
    assert going() == (2, 0)
    clock.now += 1.0
    assert going() == (0, 2)


def test_a_charged_pod_that_hangs_counts_as_staying(nodes: NodeCache, clock: Clock) -> None:
    ends = foreign_pod("theirs", terminating=True, deletion_time=timestamp(clock.now))
    nodes.on_pod(foreign_pod("theirs"), ends)

    def charged(name: str, pods: Iterable[PodView], *, ready: bool) -> PodsByRole:
        del name, ready
        theirs = (pod for pod in pods if pod.namespace == "other")
        return PodsByRole(charged=tuple(ChargedPod(pod=pod, leaving=True) for pod in theirs))

    def seen() -> tuple[bool, str]:
        assert len([*nodes.in_pools(POOLS, roles=charged)]) == 1
        ((_, each),) = nodes.charged()
        return each.leaving, each.hanging

    assert seen() == (True, "")
    clock.now += OVERDUE_SECONDS
    assert seen() == (False, "other/theirs on node-0")


def test_a_pod_that_another_scheduler_is_about_to_bind_counts_on_its_node(
    nodes: NodeCache, clock: Clock
) -> None:
    before = only(nodes).used.gpus
    waits = foreign_pod("waits", node="", nominated_node="node-0")
    nodes.on_pod(None, waits)
    assert (only(nodes).suspicion, only(nodes).used.gpus) == (1, before + 1)
    # An update does not begin its time again.
    clock.now += OVERDUE_SECONDS - 1
    again = structs.replace(waits, resource_version="2")
    nodes.on_pod(waits, again)
    assert only(nodes).used.gpus == before + 1
    clock.now += 1
    assert (only(nodes).suspicion, only(nodes).used.gpus) == (1, before)
    nodes.on_pod(again, foreign_pod("waits", node="node-0"))
    assert (only(nodes).suspicion, only(nodes).used.gpus) == (0, before + 1)


def test_a_nomination_does_not_outlive_a_clock_that_is_set_back(
    nodes: NodeCache, clock: Clock
) -> None:
    before = only(nodes).used.gpus
    nodes.on_pod(None, foreign_pod("waits", node="", nominated_node="node-0"))
    clock.now -= 3600
    nodes.recount(["node-0"])
    assert only(nodes).used.gpus == before


def test_a_nominated_pod_that_leaves_counts_no_longer(nodes: NodeCache) -> None:
    before = only(nodes).used.gpus
    waits = foreign_pod("waits", node="", nominated_node="node-0")
    nodes.on_pod(None, waits)
    leaves = structs.replace(waits, terminating=True)
    nodes.on_pod(waits, leaves)
    assert only(nodes).used.gpus == before
    nodes.on_pod(leaves, None)
    assert (only(nodes).suspicion, only(nodes).used.gpus) == (0, before)


def test_a_nominated_pod_that_we_admitted_counts_where_we_placed_it(nodes: NodeCache) -> None:
    before = only(nodes).used.gpus
    waits = foreign_pod("waits", node="", nominated_node="node-0")
    nodes.on_pod(None, structs.replace(waits, labels={LABEL_QUEUE: "research"}))
    assert only(nodes).used.gpus == before


def test_a_node_whose_gpus_do_not_come_is_set_up_without_an_event(
    nodes: NodeCache, clock: Clock
) -> None:
    created = timestamp(clock.now - 1)
    node = node_view("new", allocatable={"cpu": 96_000, "pods": 110}, creation_time=created)
    nodes.on_node(None, node)
    pools = {"h100": a_spec(timeoutSeconds=60).model_copy(update={"node_selector": node.labels})}

    def starting() -> set[str]:
        seen = nodes.in_pools(pools, roles=members_only)
        return {each.name for each in seen if each.starting}

    assert starting() == {"new"}
    clock.now += 60
    assert starting() == set()


def test_a_pod_counts_only_resources_of_its_node(nodes: NodeCache) -> None:
    """A tenant may request any names. Kubelets ignore names that their node lacks."""
    allocatable = {**node_view().allocatable, "rdma/hca": 8}
    nodes.on_node(node_view(), node_view(version=2, allocatable=allocatable))
    requests = {"nvidia.com/gpu": 1, "rdma/hca": 2, "cpu": 500, "no.com/such": 7}
    nodes.on_pod(None, structs.replace(foreign_pod("odd"), requests=requests))
    used = only(nodes).used
    assert (used.gpus, used.cpu_millis) == (4, 1500)
    assert used.extended == (("rdma/hca", 2),)
