"""Jobs and JobSets that wait: admitted whole, charged until each pod is, and nobody else's pods."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from drumline.controller.state.cluster import ClusterCache
from drumline.controller.workloads import suspended
from drumline.controller.workloads.conversion import (
    PREFIX_FROM,
    PlacesFound,
    places_in,
    places_text,
)
from drumline.controller.workloads.resumed import resumed, suspended_again
from drumline.controller.workloads.workloads import PlacedWorkload
from drumline.kube.kinds import JOB_SETS, JOBS
from drumline.kube.views import (
    ExpressionView,
    GateView,
    PlacementView,
    PodPhase,
    PodView,
)
from drumline.kube.workload_views import WorkloadView
from drumline.kube.workloads import MAX_PODS
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.base import ANNOTATION_ADMITTED
from drumline_api.gpupool import GpuPoolSpec
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.model import NodeOperator, NodeRequirement, Policy
from tests.unit.controller.views import priority_view, queue_view
from tests.unit.controller.workload_bodies import QUEUE, a_job, a_job_set, job_set_of, view
from tests.unit.controller.workload_state import NOW, held_gpus, two_nodes, workloads
from tests.unit.scheduler.builders import gang

GATE = GateView(created_time="", is_last=True, placement=PlacementView())
MARK = '{"":{"pool":"h100","nodes":{"node-0":1}}}'
POOLS = {"h100": GpuPoolSpec.model_validate({"nodeSelector": {"gpu": "h100"}})}


@pytest.fixture
def state() -> ClusterCache:
    """Two nodes of eight GPUs, a queue of sixteen."""
    return two_nodes(quota=16)


def let_go(state: ClusterCache) -> list[PlacedWorkload]:
    """What a cycle lets go."""
    snapshot, pending = state.scheduling.snapshot(now=NOW), state.scheduling.pending()
    decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW))
    return workloads(state).assume_placed(decisions.placed)


def pod(name: str, *, accepted: bool = True, **rest: Any) -> PodView:
    """A pod of the Job, on a node."""
    labels = {**QUEUE, "drumline.dev/workload": "j", **rest.pop("labels", {})}
    gpus = rest.pop("gpus", 4)
    return PodView(
        namespace="team",
        name=name,
        uid=name,
        resource_version="1",
        owner_uid=rest.pop("owner_uid", "j"),
        labels=labels,
        requests={"nvidia.com/gpu": gpus} if gpus else {"cpu": 1000},
        phase=PodPhase.RUNNING if accepted else PodPhase.PENDING,
        **rest,
    )


def a_resumed_job(*, pods: int) -> WorkloadView:
    mark = json.dumps({"": {"pool": "h100", "nodes": {"node-0": pods}}})
    return structs.replace(
        view(a_job(parallelism=pods)), suspended=False, annotations={ANNOTATION_ADMITTED: mark}
    )


def test_pods_that_nobody_creates_keep_their_places_for_a_while_only(state: ClusterCache) -> None:
    """A ResourceQuota may refuse them, or no controller runs."""
    state.on_workload(JOBS, None, a_resumed_job(pods=2))

    def free(now: float) -> list[bool]:
        """Return whether two jobs of a node each find places, and the queue still pays."""
        snapshot = state.scheduling.snapshot(now=now)
        roomy = tuple(replace(queue, nominal={"h100": 24}) for queue in snapshot.queues)
        waits = tuple(gang(name, gpus=8, queue="research") for name in "ab")
        cycle_input = CycleInput(
            snapshot=replace(snapshot, queues=roomy),
            pending=waits,
            policy=Policy(overdue_seconds=120.0),
            now=now,
        )
        return [len(decide(cycle_input).placed) == 2, held_gpus(state) == 8]

    assert [free(now) for now in (NOW, NOW + 119, NOW + 120)] == [
        [False, True],
        [False, True],
        [True, True],
    ]
    first = pod("a", node_name="node-0")
    state.on_pod(None, first)
    assert free(NOW + 130) == [False, True], "a pod came, so the other is awaited again"
    state.on_pod(first, None)
    assert free(NOW + 131) == [False, True]
    assert free(NOW + 250) == [True, True]


def test_a_job_is_let_go_whole_and_charged_until_each_of_its_pods_is(state: ClusterCache) -> None:
    body = a_job(parallelism=3)
    waits = view(body)
    state.on_workload(JOBS, None, waits)
    (gang,) = state.scheduling.pending()
    assert (gang.key, gang.nodes, gang.per_pod.gpus) == ("team/jobs/train", 3, 4)
    (going,) = let_go(state)
    assert (state.scheduling.pending(), held_gpus(state)) == ([], 12)

    after = resumed(body, resource=JOBS, places=going.places, pools=POOLS)
    assert after is not None
    assert after["spec"]["suspend"] is False
    assert after["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h100"}
    runs = view(after)
    state.on_workload(JOBS, waits, runs)
    workloads(state).settle(going.workload)
    assert (state.scheduling.pending(), held_gpus(state)) == ([], 12)
    state.on_pod(None, pod("a", node_name="node-0"))
    state.on_pod(None, pod("b", node_name="node-0"))
    assert held_gpus(state) == 12
    state.on_pod(None, pod("c", node_name="node-1", accepted=False))
    assert held_gpus(state) == 12
    after["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    state.on_workload(JOBS, runs, view(after))
    assert held_gpus(state) == 8


def test_a_job_that_is_too_large_for_what_is_free_waits_whole(state: ClusterCache) -> None:
    state.on_workload(JOBS, None, view(a_job(parallelism=5)))
    assert let_go(state) == []
    assert held_gpus(state) == 0


def test_a_job_that_has_pods_keeps_its_template() -> None:
    body = a_job() | {"status": {"startTime": "2027-01-01T00:00:00Z"}}
    after = resumed(body, resource=JOBS, places={}, pools=POOLS)
    assert after is not None
    assert after["spec"]["template"] == body["spec"]["template"]
    assert resumed(after, resource=JOBS, places={}, pools=POOLS) is None


def test_a_job_set_starts_with_its_parts_that_need_no_gpus(state: ClusterCache) -> None:
    body = a_job_set()
    state.on_workload(JOB_SETS, None, view(body))
    (gang,) = state.scheduling.pending()
    assert (gang.key, gang.nodes) == ("team/jobsets/set", 4)
    (going,) = let_go(state)
    after = resumed(body, resource=JOB_SETS, places=going.places, pools=POOLS)
    assert after is not None
    driver, workers = (
        each["template"]["spec"]["template"] for each in after["spec"]["replicatedJobs"]
    )
    assert "nodeSelector" not in driver["spec"]
    assert workers["spec"]["nodeSelector"] == {"gpu": "h100"}
    assert workers["metadata"]["labels"]["drumline.dev/workload-part"] == "workers"
    assert workers["metadata"]["labels"]["drumline.dev/workload"] == "s"


def test_jobs_of_a_job_set_do_not_wait_by_themselves(state: ClusterCache) -> None:
    body = a_job()
    body["metadata"]["ownerReferences"] = [{"uid": "s", "kind": "JobSet", "controller": True}]
    state.on_workload(JOBS, None, view(body))
    assert state.scheduling.pending() == []


def test_gates_of_its_pods_open_as_far_as_the_job_has_places(state: ClusterCache) -> None:
    """A pod that only says it is the job's opens no gate beyond these."""
    body = a_job(parallelism=2)
    waits = view(body)
    state.on_workload(JOBS, None, waits)
    for name in ("a", "b", "forged"):
        state.on_pod(None, pod(name, accepted=False, gate=GATE))
    assert [gang.key for gang in state.scheduling.pending()] == ["team/jobs/train"]
    assert workloads(state).unreleased() == []
    (going,) = let_go(state)
    after = resumed(body, resource=JOBS, places=going.places, pools=POOLS)
    assert after is not None
    state.on_workload(JOBS, waits, view(after))
    workloads(state).settle(going.workload)
    assert [each.name for each in workloads(state).unreleased()] == ["a", "b"]
    state.on_pod(pod("a", gate=GATE), pod("a", node_name="node-0"))
    state.on_pod(pod("b", gate=GATE), pod("b", node_name="node-0"))
    assert workloads(state).unreleased() == []


def admitted(body: dict[str, Any], *, mark: str) -> WorkloadView:
    """The workload resumed, with this written as its places."""
    body["spec"]["suspend"] = False
    body["metadata"]["annotations"] = {ANNOTATION_ADMITTED: mark}
    return view(body)


@pytest.mark.parametrize(
    ("gpus", "gate_opens"),
    [
        ({"gpus": 4}, True),
        ({"gpus": 8}, False),
        ({"gpus": 1}, False),
        ({"gpus": 0}, False),
        ({"owner_uid": ""}, False),
        ({"owner_uid": "another"}, False),
    ],
)
def test_a_gate_opens_for_the_devices_that_were_asked_for_and_for_the_job_s_own_pods(
    state: ClusterCache, gpus: dict[str, Any], gate_opens: bool
) -> None:
    state.on_workload(JOBS, None, admitted(a_job(), mark=MARK))
    state.on_pod(None, pod("any", accepted=False, gate=GATE, **gpus))
    assert bool(workloads(state).unreleased()) == gate_opens


def test_no_gate_of_a_pod_with_gpus_opens_for_a_job_without(state: ClusterCache) -> None:
    state.on_workload(JOBS, None, admitted(a_job(gpus=0), mark="{}"))
    state.on_pod(None, pod("gpus", accepted=False, gate=GATE))
    state.on_pod(None, pod("plain", accepted=False, gate=GATE, gpus=0))
    assert [each.name for each in workloads(state).unreleased()] == ["plain"]


def test_pods_of_a_job_set_have_the_devices_of_their_part_and_a_controller(
    state: ClusterCache,
) -> None:
    mark = '{"workers":{"pool":"h100","nodes":{"node-0":2,"node-1":2}}}'
    state.on_workload(JOB_SETS, None, admitted(a_job_set(), mark=mark))
    for name, part, owner in (
        ("worker", "workers", "job-of-set"),
        ("driver-with-gpus", "driver", "job-of-set"),
        ("alone", "workers", ""),
    ):
        labels = {"drumline.dev/workload": "s", "drumline.dev/workload-part": part}
        state.on_pod(None, pod(name, accepted=False, gate=GATE, labels=labels, owner_uid=owner))
    assert [each.name for each in workloads(state).unreleased()] == ["worker"]


@pytest.mark.parametrize("other", [{"gpus": 0}, {"owner_uid": "another"}])
def test_another_pod_takes_no_charge_from_what_was_let_go(
    state: ClusterCache, other: dict[str, Any]
) -> None:
    state.on_workload(JOBS, None, admitted(a_job(), mark=MARK))
    state.on_pod(None, pod("forged", **other))
    assert held_gpus(state) == 4


def test_a_queue_that_is_closed_pays_for_no_mark_and_opens_no_gate(state: ClusterCache) -> None:
    state.on_workload(JOBS, None, admitted(a_job(parallelism=2), mark=MARK))
    state.on_pod(None, pod("a", accepted=False, gate=GATE))
    assert (held_gpus(state), len(workloads(state).unreleased())) == (4, 1)
    before = queue_view(gpus=16)
    closed = structs.replace(before, spec={**before.spec, "namespaces": ["another"]})
    state.on_queue(before, closed)
    assert (held_gpus(state), workloads(state).unreleased()) == (0, [])


def test_a_mark_counts_for_no_more_pods_than_the_job_has(state: ClusterCache) -> None:
    def held_with(pods: int) -> int:
        mark = json.dumps({"": {"pool": "h100", "nodes": {"node-0": pods}}})
        state.on_workload(JOBS, None, admitted(a_job(parallelism=2), mark=mark))
        return held_gpus(state)

    assert held_with(1) == 4
    assert held_with(MAX_PODS) == 8
    assert held_with(1_000_000_000_000) == 0
    assert held_with(-1) == 0


def test_as_many_places_are_named_as_are_asked_for() -> None:
    places = PlacesFound(pool="h100", nodes={"a": 1, "b": 1_000_000_000_000})
    assert places.node_names(most=3) == ("a", "b", "b")


def test_a_workload_waits_with_the_value_of_its_class_and_not_with_what_it_says(
    state: ClusterCache,
) -> None:
    state.on_priority_class(None, priority_view("high", 7))
    state.on_priority_class(None, priority_view("usual", 3, default=True))
    for uid, pod_spec in (
        ("said", {"priority": 2_000_000_000}),
        ("named", {"priority": 2_000_000_000, "priorityClassName": "high"}),
        ("unknown", {"priorityClassName": "absent"}),
    ):
        body = job_set_of([{"pod": pod_spec}])
        body["metadata"] |= {"uid": uid, "name": uid}
        state.on_workload(JOB_SETS, None, view(body))
    gangs = {gang.key: gang.priority for gang in state.scheduling.pending()}
    assert gangs == {"team/jobsets/said": 3, "team/jobsets/named": 7}
    (refused,) = workloads(state).explain((), queues={})
    assert (refused.workload.uid, refused.reason) == ("unknown", "PriorityClassNotFound")
    assert "absent does not exist" in refused.message


def test_a_workload_with_an_unknown_operator_fits_no_node_and_stops_no_other(
    state: ClusterCache,
) -> None:
    good = view(a_job())
    (shape,) = good.shapes
    wants = ExpressionView(key="disk", operator="Foo", values=("a",))
    placement = structs.replace(shape.placement, affinity=((wants,),))
    shapes = (structs.replace(shape, placement=placement),)
    bad = structs.replace(good, name="bad", uid="bad", shapes=shapes)
    for each in (bad, good):
        state.on_workload(JOBS, None, each)
    gangs = {gang.key: gang for gang in state.scheduling.pending()}
    assert gangs.keys() == {"team/jobs/bad", "team/jobs/train"}
    ((requirement,),) = gangs["team/jobs/bad"].affinity
    assert requirement == NodeRequirement(key="disk", operator=NodeOperator.IN)


def test_gpus_beyond_all_measure_fit_into_the_status_of_a_queue(state: ClusterCache) -> None:
    """No API server has checked how much a template of a JobSet asks for."""
    container = {"resources": {"limits": {"nvidia.com/gpu": 9_000_000_000_000_000_000}}}
    body = job_set_of([{"replicas": 10_000, "pod": {"containers": [container]}}])
    state.on_workload(JOB_SETS, None, view(body))
    (gang,) = state.scheduling.pending()
    blocked = decide(
        CycleInput(
            snapshot=state.scheduling.snapshot(now=NOW), pending=(gang,), policy=Policy(), now=NOW
        )
    ).blocked
    (waiting,) = workloads(state).explain(blocked, queues={gang.uid: gang.queue})
    assert waiting.workload.gpus(POOLS) == 2**48


def test_a_job_that_is_suspended_again_waits_again_if_it_was_for_us(state: ClusterCache) -> None:
    """With the mark it was its owner, and it waits for nothing until that is taken off."""
    body = a_job()
    state.on_workload(JOBS, None, view(body))
    (going,) = let_go(state)
    after = resumed(body, resource=JOBS, places=going.places, pools=POOLS)
    assert after is not None
    runs = view(after)
    state.on_workload(JOBS, view(body), runs)
    workloads(state).settle(going.workload)
    assert [each.key for each in workloads(state).resumed()] == ["team/jobs/train"]
    by_owner = {**after, "spec": {**after["spec"], "suspend": True}}
    state.on_workload(JOBS, runs, view(by_owner))
    assert (state.scheduling.pending(), workloads(state).resumed(), held_gpus(state)) == ([], [], 0)
    by_us = suspended_again(after, resource=JOBS)
    assert by_us is not None
    assert suspended_again(by_us, resource=JOBS) is None
    assert suspended_again(by_owner, resource=JOBS) is None
    state.on_workload(JOBS, view(by_owner), view(by_us))
    assert [gang.key for gang in state.scheduling.pending()] == ["team/jobs/train"]
    assert held_gpus(state) == 0


def test_a_job_with_a_limit_is_expected_to_end_by_it(state: ClusterCache) -> None:
    """The shorter of the Job's and of its pods'; both are counted from the Job's start."""
    body = a_job(activeDeadlineSeconds=900)
    state.on_workload(JOBS, None, view(body))
    assert state.scheduling.pending()[0].max_runtime_seconds == 900
    waits = view(body)
    body["spec"] |= {"suspend": False, "activeDeadlineSeconds": 300}
    body["status"] = {"startTime": timestamp(NOW - 100)}
    state.on_workload(JOBS, waits, view(body))
    state.on_pod(None, pod("a", node_name="node-0"))
    (held,) = state.scheduling.snapshot(now=NOW).admitted
    assert held.ends_at == NOW + 200


def of_set(name: str, job: str, *, phase: PodPhase = PodPhase.RUNNING) -> PodView:
    """A worker of the JobSet, made by one of its Jobs."""
    labels = {"drumline.dev/workload": "s", "drumline.dev/workload-part": "workers"}
    made = pod(name, owner_uid=job, labels=labels, node_name="node-0")
    return structs.replace(made, phase=phase)


def run_set(state: ClusterCache, pods: list[PodView], *, succeeded: int = 0) -> None:
    """The JobSet with two Jobs of two workers, let go; a part of 16 GPUs."""
    body = a_job_set()
    body["spec"]["suspend"] = False
    body["metadata"]["annotations"] = {
        ANNOTATION_ADMITTED: '{"workers":{"pool":"h100","nodes":{"node-0":2,"node-1":2}}}'
    }
    if succeeded:
        jobs = [{"name": "workers", "succeeded": succeeded}]
        body["status"] = {"replicatedJobsStatus": jobs}
    state.on_workload(JOB_SETS, None, view(body))
    for each in pods:
        state.on_pod(None, each)


DONE = PodPhase.SUCCEEDED


@pytest.mark.parametrize(
    ("pods", "succeeded", "charged"),
    [
        ([], 0, 16),
        ([("a0", "a", PodPhase.RUNNING), ("a1", "a", PodPhase.RUNNING)], 0, 16),
        ([("a0", "a", DONE), ("a1", "a", PodPhase.RUNNING)], 0, 12),
        ([("a0", "a", DONE), ("a1", "a", PodPhase.FAILED)], 0, 12),  # that one is made anew
        ([("a0", "a", DONE), ("b0", "b", DONE)], 0, 8),
        ([("a0", "a", DONE), ("a1", "a", DONE)], 0, 8),  # before the JobSet has counted it
        ([("a0", "a", DONE), ("a1", "a", DONE)], 1, 8),
        ([("a0", "a", DONE), ("a1", "a", DONE), ("b0", "b", DONE)], 1, 4),
        ([("a0", "a", DONE), ("a1", "a", DONE), ("b0", "b", DONE), ("b1", "b", DONE)], 0, 0),
        ([("b0", "b", DONE)], 1, 8),  # which Job has ended, its pods gone? too much, not too little
        ([], 1, 8),
    ],
)
def test_of_a_job_set_what_is_still_to_run_is_charged(
    state: ClusterCache, pods: list[tuple[str, str, PodPhase]], succeeded: int, charged: int
) -> None:
    made = [of_set(name, job, phase=phase) for name, job, phase in pods]
    run_set(state, made, succeeded=succeeded)
    assert held_gpus(state) == charged


@pytest.mark.parametrize(
    ("spec", "status", "seen", "charged"),
    [
        ({"parallelism": 2, "completions": 4}, {}, 0, 8),
        ({"parallelism": 2, "completions": 4}, {"succeeded": 2}, 2, 8),
        ({"parallelism": 2, "completions": 4}, {"succeeded": 2}, 3, 4),  # the pod is seen first
        ({"parallelism": 2, "completions": 4}, {"succeeded": 3}, 0, 4),  # these pods are deleted
        ({"parallelism": 2}, {}, 1, 4),  # a queue of work: none is made anew
        ({"parallelism": 2, "completions": 4}, {"succeeded": 1, "failedIndexes": "0,2-3"}, 1, 0),
        ({"parallelism": 2, "completions": 4}, {"failedIndexes": "0,2-3"}, 0, 4),
        ({"parallelism": 2, "completions": 4}, {"failedIndexes": "what"}, 0, 8),
    ],
)
def test_of_a_job_what_is_still_to_run_is_charged(
    state: ClusterCache, spec: dict[str, Any], status: dict[str, Any], seen: int, charged: int
) -> None:
    mark = '{"":{"pool":"h100","nodes":{"node-0":2}}}'
    body = a_job(**spec)
    body["status"] = status
    state.on_workload(JOBS, None, admitted(body, mark=mark))
    for number in range(seen):
        state.on_pod(None, structs.replace(pod(f"p{number}", node_name="node-0"), phase=DONE))
    assert held_gpus(state) == charged


def test_no_gate_opens_for_what_has_been_done_already(state: ClusterCache) -> None:
    """A Job made one pod too many, as its controller had not counted the last one."""
    waits = structs.replace(of_set("b1", "b", phase=PodPhase.PENDING), gate=GATE, node_name="")
    done = [of_set("a0", "a", phase=DONE), of_set("a1", "a", phase=DONE)]
    run_set(state, [*done, of_set("b0", "b"), waits])
    assert [each.name for each in workloads(state).unreleased()] == ["b1"]
    state.on_pod(None, of_set("b2", "b", phase=DONE))
    assert workloads(state).unreleased() == []


def test_a_pod_leads_to_the_workload_that_was_let_go(state: ClusterCache) -> None:
    """Which is suspended in its place; not to one that it only names."""
    state.on_workload(JOBS, None, admitted(a_job(), mark=MARK))
    state.on_pod(None, pod("a", node_name="node-0"))
    state.on_pod(None, pod("forged", owner_uid="x", node_name="node-0"))
    leads_to = workloads(state).resumed_with("a")
    assert leads_to is not None
    assert leads_to.key == "team/jobs/train"
    assert workloads(state).resumed_with("forged") is None
    assert workloads(state).resumed_with("none") is None


@pytest.mark.parametrize(
    "other",
    [
        {"namespace": "other"},
        {"labels": {"drumline.dev/queue": "another", "drumline.dev/workload": "s"}},
        {"requests": {"nvidia.com/gpu": 1}},
    ],
)
def test_nobody_s_pod_has_the_workload_of_others_suspended_or_ends_with_it(
    state: ClusterCache, other: dict[str, Any]
) -> None:
    """Any controller may be that of a Job of the JobSet, and anybody may write the label."""
    body = a_job_set()
    limit = {"activeDeadlineSeconds": 300}
    body["spec"]["replicatedJobs"][1]["template"]["spec"] |= limit
    body["status"] = {"startTime": timestamp(NOW)}
    mark = '{"workers":{"pool":"h100","nodes":{"node-0":2,"node-1":2}}}'
    started = structs.replace(admitted(body, mark=mark), start_time=timestamp(NOW))
    state.on_workload(JOB_SETS, None, started)
    evil = of_set("evil", "its-own-replica-set")
    made = structs.replace(evil, **{**other, "labels": {**evil.labels, **other.get("labels", {})}})
    for each in (of_set("worker", "job-of-set"), made):
        state.on_pod(None, each)
    assert workloads(state).resumed_with("worker") is not None
    assert workloads(state).resumed_with("evil") is None
    assert workloads(state).ends_at(of_set("worker", "job-of-set")) == NOW + 300
    assert workloads(state).ends_at(made) is None


@pytest.mark.parametrize("nodes", [1, PREFIX_FROM, MAX_PODS])
def test_the_places_of_the_largest_workload_fit_in_an_annotation(nodes: int) -> None:
    """The API server takes 262,144 bytes of annotations for each object."""
    names = (f"gke-training-cluster-h100-pool-a1b2c3d4-{number:05}" for number in range(nodes))
    places = {"": PlacesFound(pool="h100", nodes=dict.fromkeys(names, 1))}
    text = places_text(places)
    assert len(text) < 200_000
    assert places_in(text) == places


def test_a_prefix_that_no_node_can_have_is_not_read() -> None:
    text = places_text({"": PlacesFound(pool="h100", nodes={"a": 1})})
    assert places_in(text.replace('"pool"', f'"prefix":"{"x" * 254}","pool"')) == {}


def test_a_cycle_reads_only_the_workloads_that_have_changed(
    state: ClusterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Job without pods needs no quota, so a tenant may have thousands of them let go."""
    read: list[str] = []

    def counted(text: str) -> dict[str, PlacesFound]:
        read.append(text)
        return places_in(text)

    monkeypatch.setattr(suspended, "places_in", counted)
    for number in range(50):
        body = a_job(parallelism=number % 2)
        body["metadata"] |= {"uid": f"j{number}", "annotations": {ANNOTATION_ADMITTED: MARK}}
        body["spec"]["suspend"] = False
        state.on_workload(JOBS, None, view(body))
    held = list(workloads(state).held(now=NOW))
    assert (len(held), len(read)) == (25, 50)
    mine = structs.replace(
        pod("a", owner_uid="j1"), labels={**QUEUE, "drumline.dev/workload": "j1"}
    )
    state.on_pod(None, mine)
    assert len(list(workloads(state).held(now=NOW))) == 24
    assert workloads(state).unreleased() == []
    assert len(read) == 51
