"""Pods that run on after their job gave its places up: nodes and queues count them to the end."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from drumline.controller.state.cluster import ClusterCache
from drumline.controller.workloads.held import ForeignPod, foreign_pod_of
from drumline.kube.views import ContainerView, PodPhase, PodView
from drumline.lifecycle.model.timestamps import timestamp
from drumline.scope import InstallationScope
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import BlockReason
from drumline_scheduler.model import Admitted, Policy
from tests.property.invariants import violations
from tests.unit.controller.views import (
    assignment,
    foreign_pod,
    job_view,
    node_view,
    pod_view,
    queue_view,
)
from tests.unit.controller.workload_state import KEY, NOW, cache, filled, node, written

NAMES_RESEARCH = {"drumline.dev/queue": "research"}


@pytest.fixture
def state() -> ClusterCache:
    return filled(cache(), quota=4)


def running_pod(name: str, **rest: Any) -> PodView:
    """A foreign pod that its kubelet has accepted."""
    return foreign_pod(name, phase=PodPhase.RUNNING, **rest)


def residual(state: ClusterCache) -> list[Admitted]:
    """What jobs hold beside their places."""
    held = state.scheduling.snapshot(now=NOW).admitted
    return [each for each in held if each.is_residual]


def going(state: ClusterCache) -> list[int]:
    """GPUs by node of pods that will be gone and are charged to no queue."""
    return [node(state, name).terminating.gpus for name in ("node-0", "node-1")]


def held_gpus(state: ClusterCache, queue: str = "research") -> int:
    """GPUs that a queue pays for."""
    admitted = state.scheduling.snapshot(now=NOW).admitted
    return sum(held.gpus for held in admitted if held.gang.queue == queue)


@pytest.fixture
def placed(state: ClusterCache) -> ClusterCache:
    """A job on node-0 and node-1 with its two pods of two GPUs."""
    state.on_job(None, job_view(status=assignment("node-0", "node-1")))
    for index in (0, 1):
        state.on_pod(None, pod_view(index=index, node_name=f"node-{index}"))
    return state


def test_a_pod_that_a_job_waits_for_on_a_place_it_holds_is_paid_for_once(
    placed: ClusterCache,
) -> None:
    job = placed.jobs.get(KEY)
    assert job is not None
    assert job.status.assignment is not None
    given_up = job.status.assignment.model_copy(update={"lost": [1]})
    placed.jobs.assume(written(placed, version=2, assignment=given_up))
    assert (going(placed), residual(placed), held_gpus(placed)) == ([0, 2], [], 4)
    again = job.status.assignment.model_copy(update={"generation": 2})
    placed.jobs.assume(written(placed, version=3, assignment=again))
    assert (going(placed), residual(placed), held_gpus(placed)) == ([2, 2], [], 4)
    placed.on_pod(pod_view(index=0), None)
    placed.on_pod(None, pod_view(index=0, generation=2))
    assert (going(placed), held_gpus(placed)) == ([0, 2], 4)


def test_the_queue_pays_for_pods_until_they_are_gone(placed: ClusterCache) -> None:
    assert held_gpus(placed) == 4
    placed.jobs.assume(written(placed, version=3, assignment=None))
    (held,) = residual(placed)
    assert (held.gpus, held.leaving, held.assignment) == (4, True, ("node-0", "node-1"))
    assert node(placed).used.gpus == 2
    moved = job_view(version=4, queue="other")
    placed.on_job(None, moved)
    assert (held_gpus(placed), held_gpus(placed, "other")) == (4, 0)
    placed.on_job(moved, None)
    assert held_gpus(placed) == 4
    placed.on_pod(pod_view(index=0), None)
    assert held_gpus(placed) == 2
    placed.on_pod(pod_view(index=1, node_name="node-1"), None)
    assert (held_gpus(placed), residual(placed)) == (0, [])


def test_the_pods_of_a_deleted_job_are_capacity_to_come_once_they_terminate(
    placed: ClusterCache,
) -> None:
    placed.on_job(job_view(status=assignment("node-0", "node-1")), None)
    (held,) = residual(placed)
    assert not held.leaving
    for index in (0, 1):
        pod = pod_view(index=index, node_name=f"node-{index}")
        placed.on_pod(pod, structs.replace(pod, terminating=True))
    (held,) = residual(placed)
    assert held.leaving
    assert residual(placed)[0] is held


def test_no_queue_pays_for_pods_to_go_from_a_node_whose_kubelet_is_silent(
    placed: ClusterCache,
) -> None:
    silent = node_view("node-1", version=2, ready=False)
    placed.nodes.on_node(node_view("node-1"), silent)
    assert held_gpus(placed) == 4
    placed.jobs.assume(written(placed, version=3, assignment=None))
    assert (held_gpus(placed), going(placed)) == (2, [0, 2])
    placed.nodes.on_node(silent, node_view("node-1", version=3))
    assert (held_gpus(placed), going(placed)) == (4, [0, 0])


@pytest.mark.parametrize("terminating", [False, True])
@pytest.mark.parametrize("namespaces", [None, ["team"], ["other"]], ids=str)
def test_of_a_job_that_was_never_seen_an_open_queue_pays_for_pods(
    state: ClusterCache, *, terminating: bool, namespaces: list[str] | None
) -> None:
    spec = queue_view().spec | ({} if namespaces is None else {"namespaces": namespaces})
    state.on_queue(None, structs.replace(queue_view(), spec=spec))
    pod = pod_view(terminating=terminating)
    state.on_pod(
        None, structs.replace(pod, labels={**pod.labels, "drumline.dev/queue": "research"})
    )
    charged = namespaces != ["other"]
    assert held_gpus(state) == (2 if charged else 0)
    assert going(state)[0] == (2 if terminating and not charged else 0)
    assert node(state).used.gpus == 2


@pytest.mark.parametrize(
    "forged",
    [{"owner_uid": ""}, {"owner_uid": "another"}, {"name": "mine"}, {"name": "llama-0-g2"}],
    ids=str,
)
def test_a_pod_with_forged_labels_is_never_capacity_to_come(
    state: ClusterCache, forged: dict[str, Any]
) -> None:
    state.on_job(None, job_view(suspend=True))
    state.on_pod(None, structs.replace(pod_view(), **forged))
    assert (going(state)[0], residual(state)) == (0, [])
    assert node(state).used.gpus == 2


def test_a_pod_elsewhere_with_a_members_name_leaves_the_place_reserved(
    placed: ClusterCache,
) -> None:
    """It is charged to its job besides: it holds another node."""
    placed.on_pod(pod_view(index=0), None)
    placed.on_pod(None, pod_view(index=0, node_name="node-1", uid="forged", gpus=1))
    job, beside = placed.scheduling.snapshot(now=NOW).admitted
    assert job.reserved == {0}
    assert (beside.assignment, beside.gpus, beside.leaving) == (("node-1",), 1, True)


@pytest.mark.parametrize("ending", ["deleted", "suspended", "preempted", "failed"])
def test_no_job_starts_on_quota_whose_pods_still_run(placed: ClusterCache, ending: str) -> None:
    admitted = job_view(status=assignment("node-0", "node-1"))
    match ending:
        case "deleted":
            placed.on_job(admitted, None)
        case "suspended":
            placed.on_job(admitted, job_view(version=2, suspend=True))
        case "failed":
            over = {**assignment("node-0", "node-1"), "finishedAt": "2023-11-14T22:13:20Z"}
            placed.on_job(admitted, job_view(version=2, status=over))
        case _:
            placed.jobs.assume(written(placed, version=2, assignment=None))
    placed.on_job(None, job_view("next", uid="next"))
    snapshot = placed.scheduling.snapshot(now=NOW)
    pending = [gang for gang in placed.scheduling.pending() if gang.uid == "next"]
    decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW))
    assert [blocked.reason for blocked in decisions.blocked] == [BlockReason.QUOTA_EXHAUSTED]
    assert violations(snapshot=snapshot, pending=pending, decisions=decisions) == ()
    for index in (0, 1):
        placed.on_pod(pod_view(index=index, node_name=f"node-{index}"), None)
    snapshot = placed.scheduling.snapshot(now=NOW)
    decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW))
    assert [start.uid for start in decisions.placed] == ["next"]


@pytest.mark.parametrize(("end", "expected"), [(NOW + 3600, True), (NOW + 3601, False)])
def test_no_job_waits_for_a_pod_whose_grace_period_lasts_for_years(
    placed: ClusterCache, end: float, *, expected: bool
) -> None:
    """A pod of another owner, or one that was made by hand with a job's name and owner."""
    late = {"terminating": True, "deletion_time": timestamp(end)}
    placed.on_pod(None, foreign_pod("theirs", node="node-1", **late))
    assert going(placed)[1] == (1 if expected else 0)
    placed.jobs.assume(written(placed, version=3, assignment=None))
    placed.on_pod(pod_view(index=1, node_name="node-1"), None)
    placed.on_pod(pod_view(index=0), pod_view(index=0, **late))
    (held,) = residual(placed)
    assert (held.gpus, held.leaving) == (2, expected)


@pytest.mark.parametrize(
    ("queue", "namespaces", "pays"),
    [
        ("research", None, True),
        ("research", ["other"], True),
        ("research", ["team"], False),
        ("nobody-s", None, False),
        ("", None, False),
    ],
)
def test_an_open_queue_pays_for_a_foreign_pod_that_names_it(
    state: ClusterCache, *, queue: str, namespaces: list[str] | None, pays: bool
) -> None:
    spec = queue_view().spec | ({} if namespaces is None else {"namespaces": namespaces})
    state.on_queue(None, structs.replace(queue_view(), spec=spec))
    labels = {"drumline.dev/queue": queue} if queue else {}
    state.on_pod(None, running_pod("notebook", gpus=3, labels=labels))
    assert node(state).used.gpus == 3
    assert held_gpus(state) == (3 if pays else 0)
    if pays:
        (held,) = residual(state)
        assert (held.gang.key, held.assignment) == ("other/pods/notebook", ("node-0",))
        assert (held.preemptible, held.is_foreign, held.leaving) == (False, True, False)


@pytest.mark.parametrize("watched", [("other", "team"), ("shop",)], ids=str)
def test_no_queue_pays_for_pods_of_another_installation(watched: tuple[str, ...]) -> None:
    """Nobody but this installation's namespaces can use its queues; no job of ours owned them."""
    scope = InstallationScope(namespaces=watched)
    state = filled(cache(scope=scope), quota=4)
    state.on_pod(None, running_pod("notebook", gpus=3, labels=NAMES_RESEARCH))
    pod = pod_view(terminating=True)
    state.on_pod(None, structs.replace(pod, labels={**pod.labels, **NAMES_RESEARCH}))
    assert held_gpus(state) == (0 if watched == ("shop",) else 5)
    assert node(state).used.gpus == 5


@pytest.mark.parametrize(
    ("label", "namespaces"),
    [("", None), ("nobody-s", None), ("research", ["team"])],
    ids=["none", "of no queue", "of a closed queue"],
)
def test_a_queue_may_pay_for_what_no_other_does(
    state: ClusterCache, *, label: str, namespaces: list[str] | None
) -> None:
    """Without a device a pod is left out: there are many on every node."""
    spec = queue_view().spec | ({} if namespaces is None else {"namespaces": namespaces})
    state.on_queue(None, structs.replace(queue_view(), spec=spec))
    labels = {"drumline.dev/queue": label} if label else {}
    state.on_pod(None, running_pod("notebook", gpus=3, labels=labels))
    plain = structs.replace(running_pod("exporter"), requests={"cpu": 100})
    state.on_pod(None, plain)
    assert residual(state) == []
    rest = queue_view("rest", gpus=0)
    pays = structs.replace(rest, spec=rest.spec | {"paysForUnclaimedPods": True})
    state.on_queue(None, pays)
    (held,) = residual(state)
    assert (held.gang.queue, held.gang.key, held.gpus) == ("rest", "other/pods/notebook", 3)
    state.on_queue(pays, rest)
    assert residual(state) == []


def test_a_label_that_is_changed_or_removed_while_the_pod_runs_dodges_no_charge(
    state: ClusterCache,
) -> None:
    rest = queue_view("rest", gpus=0)
    spec = rest.spec | {"paysForUnclaimedPods": True}
    state.on_queue(None, structs.replace(rest, spec=spec))
    before = running_pod("notebook", labels=NAMES_RESEARCH)
    state.on_pod(None, before)
    for labels, queue in (({}, "rest"), ({"drumline.dev/queue": "x"}, "rest")):
        assert held_gpus(state) == 1
        after = structs.replace(before, labels=labels)
        state.on_pod(before, after)
        assert (held_gpus(state), held_gpus(state, queue)) == (0, 1)
        state.on_pod(after, before)


def test_jobs_wait_for_the_quota_that_foreign_pods_take(state: ClusterCache) -> None:
    """The job needs 4 of 4 GPUs of quota; 14 are free."""
    notebook = running_pod("notebook", gpus=2, labels=NAMES_RESEARCH)
    state.on_pod(None, notebook)
    state.on_job(None, job_view())
    snapshot, pending = state.scheduling.snapshot(now=NOW), state.scheduling.pending()
    decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW))
    (blocked,) = decisions.blocked
    assert blocked.reason is BlockReason.QUOTA_EXHAUSTED
    assert "other/pods/notebook" in blocked.message
    assert violations(snapshot=snapshot, pending=pending, decisions=decisions) == ()
    state.on_pod(notebook, structs.replace(notebook, phase=PodPhase.SUCCEEDED))
    snapshot = state.scheduling.snapshot(now=NOW)
    decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW))
    assert [start.key for start in decisions.placed] == [KEY]


def test_a_pod_gives_back_what_its_queue_borrows_unless_it_could_not_be_evicted_lately(
    state: ClusterCache,
) -> None:
    spec = queue_view().spec | {"foreignPods": {"borrowed": "Evict"}}
    state.on_queue(queue_view(), structs.replace(queue_view(), spec=spec))
    notebook = running_pod("notebook", gpus=2, labels=NAMES_RESEARCH)
    state.on_pod(None, notebook)

    def may_be_evicted(now: float) -> bool:
        (held,) = (held for held in state.scheduling.snapshot(now=now).admitted if held.is_foreign)
        known = foreign_pod_of(held.gang.key, held.gang.uid)
        assert known == ForeignPod(namespace="other", name="notebook", uid=notebook.uid)
        return held.preemptible

    assert may_be_evicted(NOW)
    state.scheduling.foreign_pod_stays(notebook.uid, until=NOW + 60)
    assert not may_be_evicted(NOW + 59)
    assert may_be_evicted(NOW + 60)


@pytest.mark.parametrize(("guarded", "gives_back"), [(None, True), ("h100", True), ("a100", False)])
def test_a_pod_gives_back_what_its_queue_borrows_in_guarded_pools_alone(
    guarded: str | None, *, gives_back: bool
) -> None:
    pools = None if guarded is None else frozenset({guarded})
    state = filled(cache(guarded_pools=pools), quota=4)
    spec = queue_view().spec | {"foreignPods": {"borrowed": "Evict"}}
    state.on_queue(queue_view(), structs.replace(queue_view(), spec=spec))
    state.on_pod(None, running_pod("notebook", gpus=2, labels=NAMES_RESEARCH))
    (held,) = (held for held in state.scheduling.snapshot(now=NOW).admitted if held.is_foreign)
    assert held.preemptible is gives_back


def test_a_static_pod_gives_nothing_back(state: ClusterCache) -> None:
    """Its kubelet ignores an eviction, so a job would be placed beside GPUs that are in use."""
    spec = queue_view().spec | {"foreignPods": {"borrowed": "Evict"}}
    state.on_queue(queue_view(), structs.replace(queue_view(), spec=spec))
    notebook = running_pod("notebook", gpus=2, labels=NAMES_RESEARCH)
    state.on_pod(None, structs.replace(notebook, is_static=True))
    (held,) = (held for held in state.scheduling.snapshot(now=NOW).admitted if held.is_foreign)
    assert (held.preemptible, held.gpus) == (False, 2)


def test_a_queue_that_opens_pays_from_then_on(state: ClusterCache) -> None:
    """The pod and its node have no event then."""
    closed = structs.replace(queue_view(), spec=queue_view().spec | {"namespaces": ["team"]})
    state.on_queue(queue_view(), closed)
    state.on_pod(None, running_pod("notebook", labels=NAMES_RESEARCH))
    assert held_gpus(state) == 0
    state.on_queue(closed, queue_view())
    assert held_gpus(state) == 1
    state.on_queue(queue_view(), closed)
    assert held_gpus(state) == 0


def test_a_foreign_pod_that_ends_is_capacity_to_come(state: ClusterCache) -> None:
    """Of its queue, or of none where its kubelet is silent."""
    pod = running_pod("notebook", gpus=2, labels=NAMES_RESEARCH)
    state.on_pod(None, pod)
    state.on_pod(pod, structs.replace(pod, terminating=True))
    (held,) = residual(state)
    assert (held.leaving, going(state)) == (True, [0, 0])
    state.nodes.on_node(node_view(), node_view(version=2, ready=False))
    assert (residual(state), going(state)) == ([], [2, 0])


def test_what_a_foreign_pod_holds_is_the_same_object_until_it_changes(state: ClusterCache) -> None:
    """The scheduler counts again what is another object."""
    pod = running_pod("notebook", labels=NAMES_RESEARCH)
    state.on_pod(None, pod)
    (before,) = residual(state)
    state.on_pod(None, running_pod("other", labels=NAMES_RESEARCH))
    again = structs.replace(pod, resource_version="2", ready=True)
    state.on_pod(pod, again)
    assert any(held is before for held in residual(state))
    state.on_pod(again, structs.replace(again, labels={}))
    assert [held.gang.key for held in residual(state)] == ["other/pods/other"]


def test_no_queue_pays_for_foreign_pods_that_no_kubelet_has_accepted(state: ClusterCache) -> None:
    """Anybody may bind a pod to a dead node, and ask for more than a cohort has."""
    state.nodes.on_node(node_view(), node_view(version=2, ready=False))
    state.on_pod(None, foreign_pod("forged", gpus=1 << 62, labels=NAMES_RESEARCH))
    state.on_pod(None, foreign_pod("bound", node="node-1", gpus=1 << 62, labels=NAMES_RESEARCH))
    assert held_gpus(state) == 0
    pulls = (ContainerView(name="c", waiting_reason="ContainerCreating"),)
    accepted = foreign_pod("pulls", node="node-1", labels=NAMES_RESEARCH, containers=pulls)
    state.on_pod(None, accepted)
    assert held_gpus(state) == 1
    state.on_pod(accepted, None)
    state.on_pod(None, running_pod("real", node="node-1", labels=NAMES_RESEARCH))
    assert held_gpus(state) == 1


def test_a_pod_with_the_labels_of_a_job_that_never_was_is_a_foreign_one(
    state: ClusterCache,
) -> None:
    """Its owner may be any object of the same namespace."""
    pod = pod_view(phase=PodPhase.RUNNING)
    state.on_pod(None, structs.replace(pod, labels={**pod.labels, **NAMES_RESEARCH}))
    (held,) = residual(state)
    assert (held.gang.key, held.is_foreign) == ("team/pods/llama-0-g1", True)


def test_a_job_that_a_closed_queue_refuses_cannot_charge_it_by_a_pod(state: ClusterCache) -> None:
    closed = structs.replace(queue_view(), spec=queue_view().spec | {"namespaces": ["prod"]})
    state.on_queue(queue_view(), closed)
    state.on_job(None, job_view())
    state.on_pod(None, pod_view(index=7, phase=PodPhase.RUNNING))
    assert held_gpus(state) == 0


def test_foreign_pods_take_nothing_of_what_a_user_may_hold(state: ClusterCache) -> None:
    limited = structs.replace(
        queue_view(gpus=8), spec=queue_view(gpus=8).spec | {"userLimitGpus": 4}
    )
    state.on_queue(queue_view(gpus=4), limited)
    state.on_pod(None, running_pod("notebook", gpus=2, labels=NAMES_RESEARCH))
    state.on_job(None, job_view())
    snapshot, pending = state.scheduling.snapshot(now=NOW), state.scheduling.pending()
    decisions = decide(CycleInput(snapshot=snapshot, pending=pending, policy=Policy(), now=NOW))
    assert [start.key for start in decisions.placed] == [KEY]
    assert violations(snapshot=snapshot, pending=pending, decisions=decisions) == ()


def test_a_foreign_pod_cannot_be_charged_to_a_job(placed: ClusterCache) -> None:
    """It may name any owner, and a job's labels."""
    job = placed.jobs.get(KEY)
    assert job is not None
    pod = running_pod("llama", owner_uid=job.uid, labels=NAMES_RESEARCH)
    placed.on_pod(None, structs.replace(pod, namespace="team"))
    (held,) = residual(placed)
    assert (held.gang.key, held.gang.uid) == ("team/pods/llama", "pods/llama/pods-0")


def test_a_foreign_pod_is_charged_for_resources_of_its_node_alone(state: ClusterCache) -> None:
    """Each resource name of a running gang makes every vector of the scheduler longer."""
    pod = running_pod("odd", labels=NAMES_RESEARCH)
    requests = {"nvidia.com/gpu": 1, **{f"no.com/{number}": 1 for number in range(50)}}
    state.on_pod(None, structs.replace(pod, requests=requests))
    (held,) = residual(state)
    assert (held.gpus, held.gang.per_pod.extended) == (1, ())


def grouped(name: str, *, gpus: int = 2, node: str = "node-0", group: str = "ring") -> PodView:
    pod = running_pod(name, gpus=gpus, labels=NAMES_RESEARCH)
    return structs.replace(pod, group=group, node_name=node)


def test_pods_of_a_group_are_one_gang_that_leaves_whole(state: ClusterCache) -> None:
    spec = queue_view().spec | {"foreignPods": {"borrowed": "Evict"}}
    state.on_queue(queue_view(), structs.replace(queue_view(), spec=spec))
    pods = [grouped("r-0"), grouped("r-1", node="node-1"), grouped("head", gpus=1)]
    for pod in pods:
        state.on_pod(None, pod)

    def gangs(now: float = NOW) -> list[Admitted]:
        return [held for held in state.scheduling.snapshot(now=now).admitted if held.is_foreign]

    (group,) = gangs()
    assert (group.gang.key, group.gang.queue, group.gpus) == ("other/pods/ring", "research", 5)
    assert (sorted(group.assignment), group.preemptible) == (["node-0", "node-0", "node-1"], True)
    members = state.scheduling.group_members(group.gang.uid)
    assert {each.name for each in members} == {"r-0", "r-1", "head"}
    # A launcher without GPUs holds no quota, and leaves with its group.
    launcher = foreign_pod("launcher", gpus=0, node="cpu-node", group="ring")
    state.on_pod(None, launcher)
    members = state.scheduling.group_members(group.gang.uid)
    assert {each.name for each in members} == {"r-0", "r-1", "head", "launcher"}
    assert gangs()[0] is group  # the cache compares objects by identity
    # If one pod cannot be evicted, the whole group stays.
    state.scheduling.foreign_pod_stays(pods[2].uid, until=NOW + 60)
    assert [each.preemptible for each in gangs()] == [False]
    # A terminating pod cannot be evicted again.
    leaving = structs.replace(pods[1], terminating=True)
    state.on_pod(pods[1], leaving)
    rest, alone = sorted(gangs(NOW + 60), key=lambda held: -held.gpus)
    assert (rest.gpus, rest.preemptible) == (3, True)
    assert (alone.gang.key, alone.leaving) == ("other/pods/r-1", True)


def test_groups_of_other_namespaces_or_names_are_other_gangs(state: ClusterCache) -> None:
    state.on_pod(None, grouped("a"))
    state.on_pod(None, grouped("b", group="other"))
    state.on_pod(None, running_pod("c", gpus=1, labels=NAMES_RESEARCH))
    held = [each for each in state.scheduling.snapshot(now=NOW).admitted if each.is_foreign]
    keys = {each.gang.key for each in held}
    assert keys == {"other/pods/ring", "other/pods/other", "other/pods/c"}
    assert held_gpus(state) == 5


def test_a_group_that_two_queues_pay_for_or_that_two_pools_have_stays() -> None:
    state = filled(cache(), quota=4)
    spec = queue_view().spec | {"foreignPods": {"borrowed": "Evict"}}
    for name in ("research", "second"):
        state.on_queue(None, structs.replace(queue_view(name), spec=spec))
    second = structs.replace(grouped("b"), labels={"drumline.dev/queue": "second"})
    state.on_pod(None, grouped("a"))
    state.on_pod(None, second)

    def held() -> list[tuple[str, bool]]:
        admitted = state.scheduling.snapshot(now=NOW).admitted
        return sorted((each.gang.queue, each.preemptible) for each in admitted if each.is_foreign)

    assert held() == [("research", False), ("second", False)]
    state.on_pod(second, None)
    assert held() == [("research", True)]


@pytest.mark.parametrize(("nominal", "victims"), [(0, ["other/pods/ring"]), (2, [])])
def test_a_job_reclaims_a_group_that_borrows_whole_or_not_at_all(
    nominal: int, victims: list[str]
) -> None:
    """The group holds 4 GPUs. It borrows 4 or 2, depending on the quota of its queue."""
    state = filled(cache(), quota=nominal)
    queues = {
        "research": {"foreignPods": {"borrowed": "Evict"}, "parent": "org"},
        "lender": {"parent": "org"},
        "org": {},
    }
    for (name, more), gpus in zip(queues.items(), (nominal, 4 - nominal, 0), strict=True):
        view = queue_view(name, gpus=gpus)
        state.on_queue(None, structs.replace(view, spec=view.spec | more))
    for pod in (grouped("r-0"), grouped("r-1", node="node-1")):
        state.on_pod(None, pod)
    state.on_job(None, job_view(queue="lender", nodes=1, gpusPerNode=2))
    cycle = CycleInput(
        snapshot=state.scheduling.snapshot(now=NOW),
        pending=state.scheduling.pending(),
        policy=Policy(),
        now=NOW,
    )
    preemptions = decide(cycle).preemptions
    assert [victim.key for each in preemptions for victim in each.victims] == victims
