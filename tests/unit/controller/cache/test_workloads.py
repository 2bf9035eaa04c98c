"""Pods at our gate: what waits as a gang, what is charged once it was let go, crashes between."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from msgspec import structs

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.usage.reporter import waiting_fields, workload_in_line
from drumline.controller.workloads import gated_pods
from drumline.controller.workloads.workloads import WorkloadInLine
from drumline.kube.kinds import JOB_SETS
from drumline.kube.views import (
    ClaimView,
    ExpressionView,
    PlacementView,
    PodPhase,
    PodView,
    VolumeView,
)
from drumline.kube.workloads import MAX_SHAPES
from drumline.lifecycle.model.timestamps import timestamp
from drumline_api.base import ANNOTATION_ADMITTED
from drumline_api.objects import builtin
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Blocked, BlockReason, Decisions
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.model import Policy, PreemptionRule, WithinQueue
from tests.property.invariants import violations
from tests.property.tenant_bounds import counted_lines
from tests.texts import missing
from tests.unit.controller.views import (
    foreign_pod,
    job_view,
    node_view,
    pool_view,
    priority_view,
    queue_view,
)
from tests.unit.controller.workload_bodies import job_set_of, view
from tests.unit.controller.workload_state import LABELS, NOW, gated, held_gpus, two_nodes, workloads

GROUP = {**LABELS, "drumline.dev/pod-group": "crew"}
MARK = {ANNOTATION_ADMITTED: '{"":{"pool":"h100","nodes":{"node-1":1}}}'}


@pytest.fixture
def state() -> ClusterCache:
    """Two nodes of eight GPUs, a queue of twelve."""
    return two_nodes(quota=12)


def grouped(name: str, *, size: str = "3", gpus: int = 4, mark: bool = False) -> PodView:
    annotations = {"drumline.dev/pod-group-size": size, **(MARK if mark else {})}
    return gated(name, gpus=gpus, labels=GROUP, annotations=annotations)


def released(pod: PodView, *, node: str = "") -> PodView:
    """The pod as the operator left it: without the gate, marked."""
    annotations = {**pod.annotations, **MARK}
    return structs.replace(pod, gate=None, annotations=annotations, node_name=node)


def cycle(state: ClusterCache) -> Decisions:
    snapshot, pending = state.scheduling.snapshot(now=NOW), state.scheduling.pending()
    decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW))
    assert violations(snapshot=snapshot, pending=pending, decisions=decisions) == ()
    return decisions


def test_pods_that_wait_get_no_place_where_their_volume_cannot_be_mounted(
    state: ClusterCache,
) -> None:
    zone = ExpressionView(key="zone", operator="In", values=("a",))
    volume = VolumeView(name="pv", uid="v", resource_version="1", affinity=((zone,),))
    claim = ClaimView(namespace="other", name="data", uid="c", resource_version="1", volume="pv")
    near = node_view("node-1", version=2, labels={"gpu": "h100", "zone": "a"})
    state.on_pod(None, gated("notebook", claims=("data",)))
    (placed,) = cycle(state).placed
    assert placed.assignment == ("node-0",)
    state.volumes.on_volume(None, volume)
    state.volumes.on_claim(None, claim)
    (blocked,) = cycle(state).blocked
    assert not missing(blocked.message, "volume pv of claim data")
    state.nodes.on_node(node_view("node-1"), near)
    (placed,) = cycle(state).placed
    assert placed.assignment == ("node-1",)
    state.volumes.on_claim(claim, None)
    (placed,) = cycle(state).placed
    assert placed.assignment == ("node-0",)


def test_a_pod_with_the_name_of_a_group_is_named_once_in_the_status_of_the_queue(
    state: ClusterCache,
) -> None:
    """Entries are keyed by the name, and the API server rejects the status with a duplicate."""
    state.on_pod(None, grouped("crew-0", size="1"))
    state.on_pod(None, gated("crew"))
    blocked = [
        Blocked(key=gang.key, uid=gang.uid, reason=BlockReason.NOT_TRIED, message="")
        for gang in state.scheduling.pending()
    ]
    queues = dict.fromkeys((each.uid for each in blocked), "research")
    waiting = workloads(state).explain(blocked, queues=queues)
    fields = waiting_fields(waiting, pools={}, expected=lambda _: None)
    assert fields["pendingWorkloads"] == 2
    assert [each["workload"] for each in fields["waitingWorkloads"]] == ["other/pods/crew"]
    assert waiting_fields((), pools={}, expected=lambda _: None) == {}


def test_each_pod_of_a_group_may_have_a_claim_of_its_own(state: ClusterCache) -> None:
    """Only a claim of all restricts their places, so that they stay one kind of pods."""
    for name in ("crew-0", "crew-1", "crew-2"):
        state.on_pod(None, structs.replace(grouped(name), claims=(name, "data")))
    cycle(state)
    ((workload, _),) = workloads(state)._waiting_workloads()
    assert [shape.claims for shape in workload.shapes] == [("data",)]


def waits_for(state: ClusterCache) -> list[str]:
    waiting = workloads(state).explain((), queues={})
    return [each.message for each in waiting]


def test_a_pod_waits_in_one_line_with_the_jobs_and_holds_quota_from_its_admission(
    state: ClusterCache,
) -> None:
    pod = gated("notebook", gpus=4)
    assert state.on_pod(None, pod)
    decisions = cycle(state)
    (let_go,) = workloads(state).assume_placed(decisions.placed)
    assert let_go.workload.key == "other/pods/notebook"
    assert [pod.name for pods in let_go.pods.values() for pod in pods] == ["notebook"]
    assert (state.scheduling.pending(), held_gpus(state)) == ([], 4)

    unbound = released(pod)
    state.on_pod(pod, unbound)
    assert held_gpus(state) == 4  # once, although it is assumed and seen
    workloads(state).settle(let_go.workload)
    assert held_gpus(state) == 4
    bound = released(pod, node="node-1")
    state.on_pod(unbound, bound)
    assert held_gpus(state) == 4  # before a kubelet has accepted it
    state.on_pod(bound, None)
    assert held_gpus(state) == 0


@pytest.mark.parametrize("keeps_gate", [False, True])
def test_an_admitted_pod_keeps_its_place_for_a_while_only(
    state: ClusterCache, *, keeps_gate: bool
) -> None:
    """No scheduler may bind it, and a webhook may refuse to take its gate away."""
    pod = gated("notebook", gpus=8)
    admitted = released(pod)
    state.on_pod(None, structs.replace(admitted, gate=pod.gate) if keeps_gate else admitted)
    rest = job_view("rest", nodes=1, gpusPerNode=8)
    state.on_job(None, rest)
    state.on_job(None, job_view("more", uid="2", nodes=1, gpusPerNode=8))
    started: list[int] = []
    for now in (NOW, NOW + 119.0, NOW + 120.0):
        snapshot = state.scheduling.snapshot(now=now)
        roomy = tuple(replace(queue, nominal={"h100": 24}) for queue in snapshot.queues)
        cycle_input = CycleInput(
            snapshot=replace(snapshot, queues=roomy),
            pending=tuple(state.scheduling.pending()),
            policy=Policy(overdue_seconds=120.0),
            now=now,
        )
        started.append(len(decide(cycle_input).placed))
        assert held_gpus(state) == 8  # the queue pays for it all the time
    assert started == [1, 1, 2]


def test_a_write_that_failed_puts_the_pod_back_in_line(state: ClusterCache) -> None:
    state.on_pod(None, gated("notebook"))
    before = state.scheduling.pending()
    (let_go,) = workloads(state).assume_placed(cycle(state).placed)
    workloads(state).settle(let_go.workload)
    assert state.scheduling.pending()[0] is before[0]
    assert held_gpus(state) == 0


def test_a_mark_charges_nobody_where_the_operator_does_not_write_it() -> None:
    state = ClusterCache(nodes=NodeCache(clock=lambda: NOW))
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view())
    state.nodes.on_node(None, node_view("node-1"))
    assert not state.on_pod(None, released(gated("forged")))
    state.on_pod(None, released(gated("bound"), node="node-1"))
    assert (state.scheduling.pending(), held_gpus(state)) == ([], 0)


def test_nobody_is_preempted_for_a_pod(state: ClusterCache) -> None:
    """Its priority is higher, and its queue lets jobs preempt by priority."""
    state.on_pod(None, gated("urgent", gpus=12, placement=PlacementView(priority=100)))
    state.on_job(None, job_view())
    snapshot, pending = state.scheduling.snapshot(now=NOW), state.scheduling.pending()
    assert [gang.priority for gang in pending] == [0, 100]
    rule = PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY)
    queues = tuple(replace(queue, preemption=rule) for queue in snapshot.queues)
    first = decide(
        CycleInput(
            snapshot=replace(snapshot, queues=queues), pending=pending, policy=Policy(), now=NOW
        )
    )
    assert [each.key for each in first.placed] == ["team/llama"]
    assert first.preemptions == ()
    (blocked,) = first.blocked
    assert blocked.key == "other/pods/urgent"


def test_pods_go_where_their_spec_lets_them(state: ClusterCache) -> None:
    """To nodes with these labels, past taints that they tolerate, and with no other gate."""
    elsewhere = PlacementView(node_selector={"disk": "large"})
    state.on_pod(None, gated("picky", placement=elsewhere))
    state.on_pod(None, gated("held", is_last=False))
    tolerant = PlacementView(tolerations=(builtin.Toleration(operator="Exists"),))
    state.on_pod(None, gated("tolerant", placement=tolerant))
    decisions = cycle(state)
    assert [each.key for each in decisions.placed] == ["other/pods/tolerant"]
    assert [each.key for each in decisions.blocked] == ["other/pods/picky"]
    assert waits_for(state) == ["another scheduling gate holds it"]


def test_a_group_waits_until_all_of_it_is_there_and_has_room(state: ClusterCache) -> None:
    """Two shapes: a gang of two pods and a gang of one, which start together."""
    for name in ("a", "b"):
        state.on_pod(None, grouped(name))
    assert state.scheduling.pending() == []
    assert waits_for(state) == ["2 of 3 pods exist"]
    small = grouped("c", gpus=1)
    state.on_pod(None, small)
    gangs = state.scheduling.pending()
    assert sorted((gang.nodes, gang.per_pod.gpus) for gang in gangs) == [(1, 1), (2, 4)]
    (let_go,) = workloads(state).assume_placed(cycle(state).placed)
    assert sorted(pod.name for pods in let_go.pods.values() for pod in pods) == ["a", "b", "c"]
    workloads(state).settle(let_go.workload)
    state.on_pod(small, grouped("c", gpus=5))
    assert {each.reason for each in cycle(state).blocked} <= {
        BlockReason.EXCEEDS_QUOTA,
        BlockReason.QUOTA_EXHAUSTED,
        BlockReason.WAITING_FOR_GROUP,
    }
    assert cycle(state).placed == ()


@pytest.mark.parametrize(
    ("first", "second", "pending", "unreleased", "held"),
    [
        ("gated", "gated", 2, 0, 0),
        ("marked", "gated", 2, 0, 0),
        ("marked", "marked", 0, 2, 8),
        ("released", "marked", 0, 1, 8),
        ("released", "gated", 1, 0, 4),
    ],
)
def test_after_a_crash_a_group_is_let_go_as_a_whole_or_not_at_all(
    state: ClusterCache, *, first: str, second: str, pending: int, unreleased: int, held: int
) -> None:
    pods = {
        "gated": lambda name: grouped(name, size="2"),
        "marked": lambda name: grouped(name, size="2", mark=True),
        "released": lambda name: released(grouped(name, size="2")),
    }
    state.on_pod(None, pods[first]("a"))
    state.on_pod(None, pods[second]("b"))
    assert sum(gang.nodes for gang in state.scheduling.pending()) == pending
    assert len(workloads(state).unreleased()) == unreleased
    assert held_gpus(state) == held


def test_a_late_pod_of_a_group_that_names_another_queue_waits_in_no_line(
    state: ClusterCache,
) -> None:
    state.on_queue(None, queue_view("theirs", gpus=12))
    for name in ("b", "c"):
        state.on_pod(None, released(grouped(name, size="2")))
    late = structs.replace(grouped("a", size="2"), labels={**GROUP, "drumline.dev/queue": "theirs"})
    state.on_pod(None, late)
    assert state.scheduling.pending() == []
    assert waits_for(state) == ["its pods name several queues: research, theirs"]
    admitted = state.scheduling.snapshot(now=NOW).admitted
    assert {held.gang.queue for held in admitted} == {"research"}
    state.on_pod(late, grouped("a", size="2"))
    assert [gang.queue for gang in state.scheduling.pending()] == ["research"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (("2", "3"), "must have the same"),
        (("many", "many"), "must have the same"),
        (("", ""), "must have the same"),
    ],
)
def test_pods_of_a_group_have_to_agree_on_its_size(
    state: ClusterCache, *, sizes: tuple[str, str], message: str
) -> None:
    for name, size in zip("ab", sizes, strict=True):
        state.on_pod(None, grouped(name, size=size))
    assert state.scheduling.pending() == []
    assert message in waits_for(state)[0]


def test_a_pod_without_devices_needs_no_room(state: ClusterCache) -> None:
    plain = structs.replace(gated("driver"), requests={"cpu": 1000})
    state.on_pod(None, plain)
    assert state.scheduling.pending() == []
    (let_go,) = workloads(state).without_devices()
    assert (let_go.workload.key, let_go.places) == ("other/pods/driver", {})
    state.on_pod(plain, structs.replace(plain, terminating=True))
    assert workloads(state).without_devices() == []


def test_a_place_in_line_counts_jobs_too(state: ClusterCache) -> None:
    state.on_job(None, job_view())
    state.on_pod(None, gated("full", gpus=16))
    state.on_pod(None, gated("later", gpus=16, created="2027-01-02T00:00:00Z"))
    state.on_job(None, job_view("second", uid="second"))
    snapshot, pending = state.scheduling.snapshot(now=NOW), state.scheduling.pending()
    blocked = decide(
        CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW)
    ).blocked
    queues = {gang.uid: gang.queue for gang in pending}
    waiting = workloads(state).explain(blocked, queues=queues)
    order = [each.key for each in blocked]
    assert {each.workload.key: each.position for each in waiting} == {
        key: place for place, key in enumerate(order, start=1) if "/pods/" in key
    }
    assert workloads(state).waiting_for("research") == waiting
    assert workloads(state).waiting_for("other") == ()


def test_what_has_a_limit_is_expected_to_end_by_it(state: ClusterCache) -> None:
    """A pod that waits may be reckoned with, and one that runs gives its GPUs back by then."""
    state.on_pod(None, gated("limited", deadline_seconds=900))
    (gang,) = state.scheduling.pending()
    assert gang.max_runtime_seconds == 900
    runs = foreign_pod("runs", labels=LABELS, phase=PodPhase.RUNNING, gpus=1)
    since = {"deadline_seconds": 600, "start_time": timestamp(NOW - 60)}
    state.on_pod(None, structs.replace(runs, **since))
    state.on_pod(None, structs.replace(runs, name="endless", uid="endless"))
    ends = {held.gang.key: held.ends_at for held in state.scheduling.snapshot(now=NOW).admitted}
    assert ends == {"other/pods/runs": NOW + 540, "other/pods/endless": None}


def fields_of(line: WorkloadInLine, state: ClusterCache) -> dict[str, object]:
    """Return the status of a workload if every gang has an expected start."""
    start = ExpectedStart(key="", uid="", p50_at=NOW + 60, p90_at=NOW + 120)
    return workload_in_line(line, pools=state.pools.by_name, expected=lambda _: start)


def test_a_workload_starts_when_the_last_of_its_gangs_does(state: ClusterCache) -> None:
    """As the status of its queue says it."""
    for name, gpus in (("a", 8), ("b", 8), ("c", 1)):
        state.on_pod(None, grouped(name, gpus=gpus))
    waiting = {gang.uid: gang.queue for gang in state.scheduling.pending()}
    (line,) = workloads(state).explain(cycle(state).blocked, queues=waiting)
    assert set(line.gangs) == waiting.keys()
    assert "expectedStart" not in fields_of(line, state)  # 17 GPUs exceed the quota
    line = replace(line, reason=str(BlockReason.QUOTA_EXHAUSTED))
    soon, late = (
        ExpectedStart(key="", uid=uid, p50_at=NOW + after, p90_at=NOW + 2 * after)
        for uid, after in zip(line.gangs, (60, 600), strict=True)
    )
    known = {soon.uid: soon, late.uid: late}
    fields = workload_in_line(line, pools=state.pools.by_name, expected=known.get)
    assert (fields["position"], fields["gpus"]) == (1, 17)
    assert fields["queuedAt"] == "2027-01-01T00:00:00Z"
    assert (fields["expectedStart"], fields["expectedStartBy"]) == (
        timestamp(NOW + 600),
        timestamp(NOW + 1200),
    )
    del known[soon.uid]
    assert "expectedStart" not in workload_in_line(
        line, pools=state.pools.by_name, expected=known.get
    )


def test_a_group_of_too_many_kinds_of_pods_does_not_wait_as_a_gang(state: ClusterCache) -> None:
    for number in range(MAX_SHAPES + 1):
        state.on_pod(None, grouped(f"p{number:02}", size=str(MAX_SHAPES + 1), gpus=number + 1))
    assert state.scheduling.pending() == []
    (why,) = waits_for(state)
    assert not missing(why, f"{MAX_SHAPES + 1} kinds of pods", str(MAX_SHAPES))


def test_a_group_of_too_many_pods_does_not_wait_as_a_gang(
    state: ClusterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gated_pods, "MAX_PODS", 4)
    for number in range(5):
        assert len(state.scheduling.pending()) == (number == 4)
        state.on_pod(None, grouped(f"p{number}", size="4"))
    assert state.scheduling.pending() == []
    assert waits_for(state) == ["5 pods, but at most 4 are supported"]


def test_constraints_that_pods_of_a_group_share_are_compared_once(
    state: ClusterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have 64 KiB, and a tenant may change one of 10,000 pods at any time."""
    encode, encoded = msgspec.json.Encoder(order="deterministic").encode, list[int]()

    def counted(value: object) -> bytes:
        encoded.append(len(encode(value)))
        return encode(value)

    monkeypatch.setattr(gated_pods, "_encode", counted)
    values = tuple(f"v{number:04}" for number in range(1000))
    expression = ExpressionView(key="rack", operator="NotIn", values=values)
    placement = PlacementView(affinity=((expression,),))
    for number in range(100):
        pod = gated(f"p{number}", labels=GROUP, placement=placement)
        annotations = {"drumline.dev/pod-group-size": "100"}
        state.on_pod(None, structs.replace(pod, annotations=annotations))
    (gang,) = state.scheduling.pending()
    assert (gang.nodes, sum(size > 8000 for size in encoded)) == (100, 1)


def test_pods_that_wait_are_converted_once(state: ClusterCache) -> None:
    """Thousands of pods may wait, and each cycle needs all of them."""
    for number in range(200):
        state.on_pod(None, gated(f"p{number}"))
    first = state.scheduling.pending()
    with counted_lines(200 * 30):
        second = state.scheduling.pending()
    assert list(map(id, first)) == list(map(id, second))
    assert len(second) == 200
    state.on_pool(pool_view(), None)
    assert state.scheduling.pending()[0].pools == ()


def test_a_suspended_workload_is_converted_by_its_event_and_not_by_the_cycle() -> None:
    tolerations = [{"key": f"t{number}", "operator": "Exists"} for number in range(100)]
    kinds = range(MAX_SHAPES)
    body = job_set_of(
        [{"replicas": number + 1, "pod": {"tolerations": tolerations}} for number in kinds]
    )
    early, late = two_nodes(quota=12), two_nodes(quota=12)
    assert early.scheduling.pending() == []  # queues and pools are known
    for state in (early, late):
        state.on_workload(JOB_SETS, None, view(body))
    with counted_lines(500):
        gangs = early.scheduling.pending()
    assert gangs == late.scheduling.pending() != []
    assert early.scheduling.pending()[0] is gangs[0]
    early.on_pool(pool_view(), None)
    assert early.scheduling.pending()[0].pools == ()


def test_a_workload_that_cannot_be_converted_is_named_until_that_changes(
    state: ClusterCache,
) -> None:
    unknown = PlacementView(priority_class="urgent")
    state.on_pod(None, gated("pod", placement=unknown))
    for _ in range(2):
        assert state.scheduling.pending() == []
        assert not missing(waits_for(state)[0], "PriorityClass urgent")
    state.on_priority_class(None, priority_view("urgent", 7))
    assert [gang.priority for gang in state.scheduling.pending()] == [7]
    assert waits_for(state) == []
