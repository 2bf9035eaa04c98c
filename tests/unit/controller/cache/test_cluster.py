"""What the scheduler sees: kept incrementally, equal to what a fresh look would give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from drumline.controller.nodes.health_signals import set_standings
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.state.snapshots import ADDED_SECONDS, Backoff, CheckedStart
from drumline.kube.views import NodeView, ObjectView, PodPhase, PodView
from drumline.lifecycle.model.timestamps import timestamp
from drumline.scope import InstallationScope
from drumline_contract import Progress
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.disruption.node_scores import NodeStanding
from drumline_scheduler.model import Node, Policy, Snapshot
from tests.unit.controller.views import (
    assignment,
    foreign_pod,
    job_view,
    node_view,
    pod_view,
    pool_view,
    priority_view,
    queue_view,
)
from tests.unit.controller.workload_state import KEY, NOW, cache, filled, node, written

Json = dict[str, Any]
TEMPLATE = {"image": "any:1", "command": ["true"]}
ASKED = {"id": "d1", "by": "team/other", "requestedAt": timestamp(NOW)}


@pytest.fixture
def state() -> ClusterCache:
    return filled(cache(), quota=64)


def test_every_pod_on_a_node_counts_until_it_has_ended(state: ClusterCache) -> None:
    ours, theirs = pod_view(), foreign_pod("theirs", gpus=3)
    state.on_pod(None, ours)
    state.on_pod(None, theirs)
    assert node(state).used.gpus == 5
    assert node(state).used.pods == 2
    leaving = foreign_pod("theirs", gpus=3, terminating=True)
    state.on_pod(theirs, leaving)
    assert node(state).used.gpus == 5
    state.on_pod(leaving, foreign_pod("theirs", gpus=3, phase=PodPhase.SUCCEEDED))
    assert node(state).used.gpus == 2
    state.on_pod(ours, None)
    assert node(state).used.gpus == 0


@pytest.mark.parametrize("home", ["team", "drumline-system", ""])
def test_a_tenant_gets_no_quarantined_nodes_by_a_toleration(home: str) -> None:
    nodes = NodeCache(clock=lambda: NOW)
    state = ClusterCache(nodes=nodes, scope=InstallationScope(home=home))
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view())
    for name in ("node-0", "node-1"):
        nodes.on_node(None, node_view(name))
    set_standings(nodes, {"node-0": NodeStanding(quarantined=True)})
    toleration = {"key": "drumline.dev/quarantined", "operator": "Exists"}
    state.on_job(None, job_view(gpusPerNode=8, tolerations=[toleration]))
    snapshot, pending = state.scheduling.snapshot(now=NOW), state.scheduling.pending()
    decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW))
    assert [start.key for start in decisions.placed] == ([KEY] if home == "team" else [])


def test_a_place_is_reserved_until_its_pod_is_shown_and_after_it_has_ended(
    state: ClusterCache,
) -> None:
    state.on_job(None, job_view(status=assignment("node-0", "node-1")))

    def reserved() -> frozenset[int]:
        (held,) = state.scheduling.snapshot(now=NOW).admitted
        return held.reserved

    assert reserved() == {0, 1}
    shown = pod_view(index=1, node_name="node-1")
    state.on_pod(None, shown)
    state.on_pod(None, pod_view(index=0, generation=7))
    assert reserved() == {0}
    state.on_pod(shown, pod_view(index=1, node_name="node-1", phase=PodPhase.FAILED))
    assert reserved() == {0, 1}


@pytest.mark.parametrize(
    ("spec", "disruption", "expected"),
    [
        ({}, None, None),
        ({}, {"kind": "Preemption", "deadline": timestamp(NOW + 300)}, NOW + 300),
        ({"suspend": True}, None, NOW),
        # The deadline of a suspended job is not that of a maintenance in some days.
        ({"suspend": True}, {"kind": "Maintenance", "deadline": timestamp(NOW + 9e5)}, NOW),
    ],
)
def test_a_gang_that_leaves_has_a_moment_by_which_it_should_have(
    state: ClusterCache, spec: Json, disruption: Json | None, expected: float | None
) -> None:
    given = {} if disruption is None else {"disruption": {**disruption, **ASKED}}
    status = {**assignment("node-0", "node-1"), **given}
    state.on_job(None, job_view(status=status, **spec))
    seen: list[float | None] = []
    for step, now in enumerate((NOW, NOW + 10)):
        state.on_pod(None, pod_view(index=step, node_name=f"node-{step}"))
        (held,) = state.scheduling.snapshot(now=now).admitted
        seen.append(held.leaves_by)
    assert seen == [expected, expected]


@pytest.mark.parametrize(("grace", "expected"), [(300, NOW + 300), (9e6, NOW)])
def test_a_gang_has_the_grace_period_of_its_pods_to_leave(
    state: ClusterCache, grace: float, expected: float
) -> None:
    """Otherwise others would be evicted while it still saves."""
    state.on_job(None, job_view(status=assignment("node-0"), suspend=True, nodes=1))
    ends = timestamp(NOW + grace)
    state.on_pod(None, pod_view(node_name="node-0", terminating=True, deletion_time=ends))
    (held,) = state.scheduling.snapshot(now=NOW).admitted
    assert held.leaves_by == expected


def test_a_write_of_ours_is_seen_before_the_watch_shows_it(state: ClusterCache) -> None:
    first = job_view(version=1)
    state.on_job(None, first)
    ours = written(state, version=5, step=3)
    state.jobs.assume(ours)
    assert state.jobs.get(KEY) == ours
    assert list(state.jobs.all()) == [ours]
    state.on_job(first, job_view(version=4))
    assert state.jobs.get(KEY) == ours
    state.on_job(first, job_view(version=5, status={"step": 3}))
    confirmed = state.jobs.get(KEY)
    assert confirmed is not None
    assert confirmed.status.step == 3
    state.on_job(first, job_view(version=6, status={"step": 4}))
    newest = state.jobs.get(KEY)
    assert newest is not None
    assert newest.status.step == 4


def test_after_a_restore_what_was_written_since_the_backup_is_forgotten(
    state: ClusterCache,
) -> None:
    state.on_job(None, job_view(version=4))
    state.jobs.assume(written(state, version=900, step=3))
    state.jobs.forget_assumed()  # the list of the restored cluster shows version 4 again
    restored = state.jobs.get(KEY)
    assert restored is not None
    assert (restored.resource_version, restored.status.step) == ("4", None)
    state.jobs.assume(written(state, version=5, step=1))
    state.on_job(job_view(version=4), job_view(version=6, status={"step": 2}))
    newest = state.jobs.get(KEY)
    assert newest is not None
    assert newest.status.step == 2


def test_what_the_watch_overtook_is_not_assumed(state: ClusterCache) -> None:
    state.on_job(None, job_view(version=1))
    ours = written(state, version=5, step=3)
    state.on_job(None, job_view(version=7))
    state.jobs.assume(ours)
    job = state.jobs.get(KEY)
    assert job is not None
    assert job.resource_version == "7"


def test_nothing_is_assumed_of_a_namesake(state: ClusterCache) -> None:
    state.on_job(None, job_view(version=1))
    ours = written(state, version=5, step=3)
    state.on_job(None, job_view(uid="job-2", version=3))
    state.jobs.assume(ours)
    job = state.jobs.get(KEY)
    assert job is not None
    assert (job.uid, job.resource_version) == ("job-2", "3")


def test_a_deleted_job_is_reported_once_and_forgotten(state: ClusterCache) -> None:
    view = job_view()
    state.on_job(None, view)
    state.scheduling.backoffs["job-1"] = Backoff(until=9.0, cause="quota", count=2)
    state.on_job(view, None)
    assert state.jobs.get(KEY) is None
    assert state.scheduling.backoffs == {}
    assert state.jobs.take_deleted(KEY) == {"job-1"}
    assert state.jobs.take_deleted(KEY) == set()


def test_a_replaced_job_counts_as_deleted(state: ClusterCache) -> None:
    state.on_job(None, job_view())
    state.on_job(None, job_view(uid="job-2"))
    assert state.jobs.take_deleted(KEY) == {"job-1"}
    job = state.jobs.get(KEY)
    assert job is not None
    assert job.uid == "job-2"


def test_unreadable_pools_and_queues_are_named(state: ClusterCache) -> None:
    bad = ObjectView(namespace="", name="h100", uid="h100", resource_version="2", spec={"x": 1})
    assert state.on_pool(pool_view(), bad)
    assert state.on_queue(None, replace_spec(queue_view(), {"quotas": "all"}))
    assert state.pools.get("h100") is not None
    assert [queue.nominal for queue in state.scheduling.snapshot(now=NOW).queues] == [{"h100": 64}]


def test_an_object_of_which_no_cycle_can_make_anything_is_left_out_and_no_cycle_fails(
    state: ClusterCache,
) -> None:
    endless = replace_spec(queue_view(), {**queue_view().spec, "budget": {"gpuHours": 1}})
    other = ObjectView(namespace="", name="new", uid="new", resource_version="1", spec=endless.spec)
    assert "budget" in (state.on_queue(queue_view(), endless) or "")
    assert "budget" in (state.on_queue(None, other) or "")
    assert state.queues.problem("new")
    state.observe_budgets(now=NOW)
    (known,) = state.scheduling.snapshot(now=NOW).queues
    assert (known.name, known.budget) == (queue_view().name, None), "as it was last known"


def replace_spec(view: ObjectView, spec: dict[str, Any]) -> ObjectView:
    return ObjectView(
        namespace=view.namespace, name=view.name, uid=view.uid, resource_version="2", spec=spec
    )


def test_a_distrusted_node_is_trusted_again_at_its_next_update(state: ClusterCache) -> None:
    state.nodes.distrust(["nowhere", "node-0"], pool="h100", by="team")
    assert [each.distrusted for each in state.scheduling.snapshot(now=NOW).nodes] == [True, False]
    same = node_view("node-0", version=1)
    assert not state.nodes.on_node(same, same).schedulable
    assert node(state).distrusted
    assert state.nodes.on_node(same, node_view("node-0", version=2)).schedulable
    assert not node(state).distrusted


@pytest.mark.parametrize(("size", "most"), [(4, 1), (40, 4)])
def test_failed_starts_of_a_namespace_close_few_nodes(size: int, most: int) -> None:
    """A program decides whether some of its pods start, and its spec whether kubelets take them."""
    state, names = cache(), [f"n-{number}" for number in range(size)]
    state.on_pool(None, pool_view())
    for name in names:
        state.nodes.on_node(None, node_view(name))

    def closed() -> int:
        return sum(each.distrusted for each in state.scheduling.snapshot(now=NOW).nodes)

    assert closed() == 0
    for _ in range(3):
        state.nodes.distrust(names, pool="h100", by="team")
        assert closed() == most
    state.nodes.distrust(names, pool="h100", by="other")
    assert closed() == 2 * most


def test_a_node_that_comes_back_starts_with_a_clean_slate(state: ClusterCache) -> None:
    state.nodes.distrust(["node-0"], pool="h100", by="team")
    state.nodes.on_node(node_view("node-0"), None)
    assert [each.name for each in state.scheduling.snapshot(now=NOW).nodes] == ["node-1"]
    state.nodes.on_node(None, node_view("node-0"))
    assert not node(state).distrusted


def test_priorities_come_from_their_classes(state: ClusterCache) -> None:
    state.on_job(None, job_view(priorityClassName="high"))
    assert state.scheduling.pending() == []
    assert [job.name for job in state.scheduling.jobs_without_priority_class()] == ["llama"]
    high = priority_view("high", 1000)
    state.on_priority_class(None, high)
    assert [gang.priority for gang in state.scheduling.pending()] == [1000]
    state.on_priority_class(high, priority_view("high", 5))
    assert [gang.priority for gang in state.scheduling.pending()] == [5]


def test_a_job_that_names_no_class_has_the_default_class(state: ClusterCache) -> None:
    state.on_job(None, job_view())
    assert [gang.priority for gang in state.scheduling.pending()] == [0]
    usual = priority_view("usual", 7, default=True)
    state.on_priority_class(None, usual)
    assert [gang.priority for gang in state.scheduling.pending()] == [7]
    state.on_priority_class(usual, None)
    assert [gang.priority for gang in state.scheduling.pending()] == [0]


def test_a_backoff_reaches_the_scheduler(state: ClusterCache) -> None:
    state.on_job(None, job_view())
    assert [gang.retry_at for gang in state.scheduling.pending()] == [0.0]
    state.scheduling.backoffs["job-1"] = Backoff(until=99.0, cause="quota", count=1)
    (gang,) = state.scheduling.pending()
    assert (gang.retry_at, gang.retry_cause) == (99.0, "quota")


def test_waiting_and_admitted_jobs(state: ClusterCache) -> None:
    state.on_job(None, job_view("waits", uid="a"))
    state.on_job(None, job_view("holds", uid="b", status=assignment("node-0", "node-1")))
    state.on_job(None, job_view("paused", uid="c", suspend=True))
    over = {**assignment("node-0", "node-1"), "finishedAt": "2023-11-14T22:14:00Z"}
    state.on_job(None, job_view("over", uid="d", status=over))
    assert [gang.key for gang in state.scheduling.pending()] == ["team/waits"]
    assert [held.gang.key for held in state.scheduling.snapshot(now=NOW).admitted] == ["team/holds"]


def test_a_pod_of_another_owner_is_no_member_but_takes_its_room(state: ClusterCache) -> None:
    impostor = pod_view(job_uid="job-1")
    impostor = PodView(
        namespace="team",
        name=impostor.name,
        uid="impostor",
        resource_version="1",
        owner_uid="somebody",
        labels=impostor.labels,
        node_name="node-0",
        requests={"nvidia.com/gpu": 2},
    )
    state.on_pod(None, impostor)
    assert list(state.pods.of("team", "job-1")) == []
    assert node(state).used.gpus == 2


def test_of_two_pools_a_node_belongs_to_the_first_by_name(state: ClusterCache) -> None:
    state.on_pool(None, pool_view("a-pool"))
    assert {each.pool for each in state.scheduling.snapshot(now=NOW).nodes} == {"a-pool"}
    state.on_pool(pool_view("a-pool"), None)
    assert {each.pool for each in state.scheduling.snapshot(now=NOW).nodes} == {"h100"}


NODES = st.sampled_from(["node-0", "node-1", "node-2"])
PODS = st.sampled_from(["p", "q", "r", "s"])
PHASES = st.sampled_from([PodPhase.PENDING, PodPhase.RUNNING, PodPhase.FAILED])


class Incremental(RuleBasedStateMachine):
    """Any history of events gives what the last state alone gives."""

    def __init__(self) -> None:
        super().__init__()
        self.state = cache()
        self.pods: dict[str, PodView] = {}
        self.nodes: dict[str, NodeView] = {}
        self.pools: dict[str, ObjectView] = {}
        self.version = 0

    @rule(name=PODS, node=NODES | st.just(""), gpus=st.integers(0, 4), phase=PHASES)
    def a_pod_changes(self, name: str, node: str, gpus: int, phase: PodPhase) -> None:
        old = self.pods.get(name)
        uid = old.uid if old else f"{name}-{self.version}"
        new = foreign_pod(name, node=node, gpus=gpus, phase=phase, uid=uid)
        self.state.on_pod(old, new)
        self.pods[name] = new
        self.version += 1

    @rule(name=PODS, node=NODES, gpus=st.integers(0, 4))
    def a_pod_is_replaced_by_a_namesake(self, name: str, node: str, gpus: int) -> None:
        """The store tells of the old one's deletion first."""
        if (old := self.pods.pop(name, None)) is not None:
            self.state.on_pod(old, None)
        self.version += 1
        self.pods[name] = foreign_pod(name, node=node, gpus=gpus, uid=f"{name}-{self.version}")
        self.state.on_pod(None, self.pods[name])

    @rule(name=PODS)
    def a_pod_goes(self, name: str) -> None:
        if (old := self.pods.pop(name, None)) is not None:
            self.state.on_pod(old, None)

    @rule(name=NODES, kind=st.sampled_from(["h100", "a100"]), ready=st.booleans())
    def a_node_changes(self, name: str, kind: str, ready: bool) -> None:
        self.version += 1
        new = node_view(name, version=self.version, labels={"gpu": kind}, ready=ready)
        self.state.nodes.on_node(self.nodes.get(name), new)
        self.nodes[name] = new

    @rule(name=NODES)
    def a_node_goes(self, name: str) -> None:
        if (old := self.nodes.pop(name, None)) is not None:
            self.state.nodes.on_node(old, None)

    @rule(name=st.sampled_from(["a", "b"]), kind=st.sampled_from(["h100", "a100"]))
    def a_pool_changes(self, name: str, kind: str) -> None:
        new = pool_view(name, gpu=kind)
        self.state.on_pool(self.pools.get(name), new)
        self.pools[name] = new

    @rule(name=st.sampled_from(["a", "b"]))
    def a_pool_goes(self, name: str) -> None:
        if (old := self.pools.pop(name, None)) is not None:
            self.state.on_pool(old, None)

    @invariant()
    def equals_a_fresh_look(self) -> None:
        fresh = cache()
        for pool in self.pools.values():
            fresh.on_pool(None, pool)
        for pod in self.pods.values():
            fresh.on_pod(None, pod)
        for each in self.nodes.values():
            fresh.nodes.on_node(None, each)
        assert by_name(self.state.scheduling.snapshot(now=NOW)) == by_name(
            fresh.scheduling.snapshot(now=NOW)
        )


def by_name(snapshot: Snapshot) -> tuple[dict[str, Node], set[str]]:
    return {node.name: node for node in snapshot.nodes}, {pool.name for pool in snapshot.pools}


TestIncremental = Incremental.TestCase
TestIncremental.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_a_gang_is_placed_by_what_admission_made_of_its_pods(state: ClusterCache) -> None:
    """A sidecar was injected: 2 CPUs and 1 GiB more than the job's own container requests."""
    pending = job_view(resources={"cpu": "4", "memory": "8Gi"})
    state.on_job(None, pending)
    (planned,) = state.scheduling.pending()
    assert planned.per_pod.cpu_millis == 4000
    larger = {"nvidia.com/gpu": 2, "cpu": 6000, "memory": 9 << 30}
    pod = pod_view(requests=larger)
    state.on_pod(None, pod)
    state.on_pod(pod, None)
    (learned,) = state.scheduling.pending()
    assert (learned.per_pod.cpu_millis, learned.per_pod.memory_bytes) == (6000, 9 << 30)
    assert (learned.per_pod.gpus, learned.per_pod.extended) == (2, ())
    state.on_pod(None, pod_view(generation=2, requests={"cpu": 4000, "memory": 8 << 30}))
    assert state.scheduling.pending() == [planned]


def test_the_largest_pod_of_a_start_decides_what_admission_adds(state: ClusterCache) -> None:
    """The defaults of a LimitRange add nothing to pods of a role that states its resources."""
    role = {"name": "eval", "resources": {"cpu": "1", "memory": "1Gi"}}
    state.on_job(None, job_view(nodes=1, template=TEMPLATE, roles=[role]))
    (planned,) = state.scheduling.pending()
    larger = {"cpu": planned.per_pod.cpu_millis + 2000}
    state.on_pod(None, pod_view(requests=larger))
    state.on_pod(None, pod_view(index=1, requests={"cpu": 1000}))
    (learned,) = state.scheduling.pending()
    assert learned.per_pod.cpu_millis == larger["cpu"]


def test_what_admission_added_counts_for_one_spec_and_for_a_while(state: ClusterCache) -> None:
    """Else nobody would notice that the LimitRange, or the spec, was corrected since."""
    state.on_job(None, first := job_view(resources={"cpu": "4"}))
    state.scheduling.snapshot(now=NOW)
    (planned,) = state.scheduling.pending()
    pod = pod_view(requests={"cpu": 900_000})
    state.on_pod(None, pod)
    state.on_pod(pod, None)
    assert state.scheduling.pending()[0].per_pod.cpu_millis == 900_000
    state.scheduling.snapshot(now=NOW + ADDED_SECONDS)
    assert state.scheduling.pending() == [planned]
    state.on_pod(None, pod)
    state.on_job(first, msgspec.structs.replace(first, resource_version="2", generation=2))
    assert state.scheduling.pending() == [planned]


def test_a_dry_run_teaches_what_admission_adds_once(state: ClusterCache) -> None:
    state.on_job(None, job_view(resources={"cpu": "4"}))
    job, learn = state.jobs.get("team/llama"), state.scheduling.learn_admitted
    assert job is not None
    assert not learn(job, index=0, requests={"cpu": 4000})
    assert learn(job, index=0, requests={"cpu": 6000})
    assert not learn(job, index=0, requests={"cpu": 5000})
    assert state.scheduling.pending()[0].per_pod.cpu_millis == 6000


def test_pods_with_equal_requests_teach_each_job_its_own_difference(state: ClusterCache) -> None:
    seen = {"nvidia.com/gpu": 2, "cpu": 6000}  # one dict, as `bounded_requests` returns it
    for name, cpu in (("a", "4"), ("b", "5")):
        state.on_job(None, job_view(name, uid=name, resources={"cpu": cpu}))
        state.on_pod(None, pod_view(name, job_uid=name, requests=seen))
        state.on_pod(None, pod_view(name, 1, job_uid=name, requests=seen))
    assert [gang.per_pod.cpu_millis for gang in state.scheduling.pending()] == [6000, 6000]


def test_pods_with_forged_labels_teach_nothing(state: ClusterCache) -> None:
    state.on_job(None, job_view(resources={"cpu": "4", "memory": "8Gi"}))
    before = state.scheduling.pending()
    state.on_pod(None, pod_view(job_uid="another", requests={"cpu": 64_000}))
    state.on_pod(None, replace_owner(pod_view(requests={"cpu": 64_000})))
    assert state.scheduling.pending() == before


def replace_owner(pod: PodView) -> PodView:
    return msgspec.structs.replace(pod, owner_uid="")


def test_an_admitted_gang_is_the_same_object_until_something_of_it_changes() -> None:
    state = cache()
    status = {**assignment("node-0", "node-0"), "admittedAt": timestamp(NOW)}
    state.on_job(None, job_view(status=status))
    state.on_pod(None, pod_view(index=0))
    (first,) = state.scheduling.snapshot(now=NOW).admitted
    assert state.scheduling.snapshot(now=NOW + 1).admitted[0] is first
    state.on_pod(None, pod_view(index=1))
    (whole,) = state.scheduling.snapshot(now=NOW + 1).admitted
    assert (first.reserved, whole.reserved) == ({1}, frozenset())
    state.on_pod(pod_view(index=1), None)
    assert state.scheduling.snapshot(now=NOW + 1).admitted[0].reserved == {1}
    (later,) = state.scheduling.snapshot(now=NOW + 600).admitted
    assert later.gpu_seconds_at_risk > first.gpu_seconds_at_risk


def test_work_at_risk_counts_anew_when_it_is_a_tenth_more() -> None:
    state = cache()
    status = {**assignment("node-0", "node-0"), "admittedAt": timestamp(NOW - 86_400)}
    state.on_job(None, job_view(status=status))
    (first,) = state.scheduling.snapshot(now=NOW).admitted
    assert first.gpu_seconds_at_risk == 86_400 * 4
    for minute in range(60):
        assert state.scheduling.snapshot(now=NOW + 60 * minute).admitted[0] is first
    (later,) = state.scheduling.snapshot(now=NOW + 9600).admitted
    assert later == replace(first, gpu_seconds_at_risk=96_000 * 4)


def test_a_group_does_not_wait_for_members_that_have_started_and_ended() -> None:
    state = cache()
    group = {"name": "rl", "jobs": 3}
    for name in ("actor", "learner"):
        state.on_job(None, job_view(name, uid=name, group=group))
    assert {gang.group_gangs for gang in state.scheduling.pending()} == {3}
    over = {"generation": 1, "finishedAt": "2023-11-14T22:13:20Z", "phase": "Succeeded"}
    state.on_job(None, job_view("critic", uid="critic", group=group, status=over))
    assert {gang.group_gangs for gang in state.scheduling.pending()} == {2}


def test_a_checkpoint_that_agents_tell_of_counts_at_once() -> None:
    reported: dict[str, Progress] = {}
    state = ClusterCache(nodes=NodeCache(clock=lambda: NOW), progress=reported.get)
    status = {**assignment("node-0", "node-0"), "admittedAt": timestamp(NOW - 600)}
    state.on_job(None, job_view(status=status))
    (before,) = state.scheduling.snapshot(now=NOW).admitted
    reported["job-1"] = Progress(step=100, checkpoint_step=99, tokens_per_second=1e5)
    (after,) = state.scheduling.snapshot(now=NOW).admitted
    assert after.gpu_seconds_at_risk < before.gpu_seconds_at_risk


@pytest.mark.parametrize(("passed", "waits"), [(5.0, True), (10.0, False), (-3600.0, False)])
def test_a_backoff_ends_by_its_time_and_when_the_clock_is_set_back(
    state: ClusterCache, passed: float, waits: bool
) -> None:
    state.on_job(None, job_view())
    state.scheduling.snapshot(now=NOW)
    backoff = Backoff.after(1, cause="quota", count=1, now=NOW)
    state.scheduling.backoffs["job-1"] = backoff
    state.scheduling.checked["job-1"] = CheckedStart(
        generation=1, failed_starts=0, until=backoff.until, message="in doubt"
    )
    (gang,) = state.scheduling.pending()
    assert (gang.retry_at, gang.refusal) == (backoff.until, "in doubt")
    state.scheduling.snapshot(now=NOW + passed)
    (gang,) = state.scheduling.pending()
    assert (gang.retry_at > NOW + passed, bool(gang.refusal)) == (waits, waits)
