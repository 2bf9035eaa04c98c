"""Jobs that cannot be read, judged or scheduled: each is isolated, and says why."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from drumline.controller.jobs import jobs as job_cache
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.state import snapshots
from drumline.controller.state.cluster import ClusterCache
from drumline.lifecycle.model.job import Job
from drumline.lifecycle.model.observed import Observed
from drumline.lifecycle.model.verdict import Refusal, Schedulable, Unjudged
from drumline.lifecycle.plan.acceptance import judge, refusal_for
from drumline.lifecycle.plan.planner import plan_job
from drumline_api.conditions import Reason
from tests.texts import missing
from tests.unit.controller.views import (
    assignment,
    job_view,
    node_view,
    pod_view,
    pool_view,
    queue_view,
)

NOW = 1_800_000_000.0


@pytest.fixture
def state() -> ClusterCache:
    return filled(ClusterCache(nodes=NodeCache(clock=lambda: NOW)))


def filled(state: ClusterCache) -> ClusterCache:
    state.on_pool(None, pool_view())
    state.on_queue(None, queue_view())
    for name in ("node-0", "node-1"):
        state.nodes.on_node(None, node_view(name))
    return state


def known(state: ClusterCache, name: str = "llama") -> Job:
    job = state.jobs.get(f"team/{name}")
    assert job is not None
    return job


def refusal(state: ClusterCache, name: str = "llama") -> Refusal:
    verdict = known(state, name).verdict
    assert isinstance(verdict, Refusal)
    return verdict


def waiting(state: ClusterCache) -> list[str]:
    return sorted(gang.key for gang in state.scheduling.pending())


def test_an_unreadable_job_is_named_once_and_not_scheduled(state: ClusterCache) -> None:
    view = job_view(user="a b", nodes=4)
    problem = state.on_job(None, view)
    assert problem is not None
    assert problem.startswith("spec.user: ")
    assert refusal(state) == Refusal(reason=Reason.UNREADABLE, message=problem)
    assert (known(state).spec.user, known(state).spec.nodes, waiting(state)) == (None, 4, [])
    later = job_view(user="a b", nodes=4, version=2, status={"phase": "Pending"})
    assert state.on_job(view, later) is None
    mended = job_view(user="ann", nodes=4, version=3, generation=2)
    assert state.on_job(later, mended) is None
    assert (known(state).spec.user, waiting(state)) == ("ann", ["team/llama"])


def test_a_job_whose_name_its_pods_cannot_have_is_not_scheduled(state: ClusterCache) -> None:
    state.on_job(None, job_view("llama-3.1"))
    verdict = refusal(state, "llama-3.1")
    assert (verdict.reason, waiting(state)) == (Reason.UNREADABLE, [])
    assert not missing(verdict.message, "metadata.name", "TrainingJob", "50")


def test_a_rule_over_a_spec_is_asked_where_no_server_asked_it(state: ClusterCache) -> None:
    state.on_job(None, job_view(gpuPools=["h100", "h100"]))
    assert refusal(state) == Refusal(
        reason=Reason.CONFIG_REFUSED,
        message="spec.gpuPools: gpuPools: a pool is listed twice; keep the first entry",
    )
    assert waiting(state) == []


def test_a_job_whose_every_field_is_wrong_still_has_a_name(state: ClusterCache) -> None:
    fields = {"queue": 7, "nodes": "x", "trainer": {"steps": []}, "template": {"env": [{}]}}
    status = {"assignment": {"nodes": 3}, "conditions": [{}], "generation": "x"}
    view = job_view(**fields, recovery=1, status=status)
    problem = state.on_job(None, view)
    assert problem is not None
    assert problem.startswith("spec.queue: ")
    assert refusal(state).reason is Reason.UNREADABLE
    assert (known(state).spec.queue, waiting(state)) == ("unreadable", [])


@pytest.mark.parametrize("seen_before", [True, False])
def test_an_unreadable_job_that_holds_pods_is_charged_and_keeps_them(
    state: ClusterCache, *, seen_before: bool
) -> None:
    status = assignment("node-0", "node-1")
    good = job_view(status=status)
    if seen_before:
        state.on_job(None, good)
    for index in (0, 1):
        state.on_pod(None, pod_view(index=index, node_name=f"node-{index}"))
    bad = job_view(version=2, generation=2, user="a b", status=status)
    assert state.on_job(good if seen_before else None, bad)
    snapshot = state.scheduling.snapshot(now=NOW)
    assert [(held.gang.queue, held.gpus) for held in snapshot.admitted] == [("research", 4)]
    assert [(node.used.gpus, node.terminating.gpus) for node in snapshot.nodes] == [(2, 0), (2, 0)]


def test_pods_of_a_job_whose_assignment_cannot_be_read_are_not_leaving(state: ClusterCache) -> None:
    state.on_job(None, job_view(status={**assignment("node-0"), "assignment": {"nodes": "x"}}))
    assert refusal(state).message.startswith("status.assignment.")
    state.on_pod(None, pod_view())
    snapshot = state.scheduling.snapshot(now=NOW)
    assert [(node.used.gpus, node.terminating.gpus) for node in snapshot.nodes] == [(2, 0), (0, 0)]
    assert [(held.gang.queue, held.leaving) for held in snapshot.admitted] == [("research", False)]


@pytest.mark.parametrize(
    "odd",
    [
        {"nodes": []},
        {"absent": [7]},
        {"absent": [-1]},
        {"surplus": {"gpuPool": "h100", "indices": [0]}},
        {"nodes": ["node-0", "node-1", "node-1"], "surplus": {"gpuPool": "x", "indices": [1, 1]}},
        {"nodes": ["node-0", "node-1"], "surplus": {"gpuPool": "x", "indices": [5]}},
        {
            "nodes": ["node-0", "node-1"],
            "absent": [0],
            "surplus": {"gpuPool": "x", "indices": [0]},
        },
    ],
)
def test_an_assignment_that_contradicts_itself_is_not_read(
    state: ClusterCache, odd: dict[str, Any]
) -> None:
    written = assignment("node-0")
    written = {**written, "assignment": {**written["assignment"], **odd}}
    state.on_job(None, job_view(status=written))
    assert refusal(state).message.startswith("status.assignment: ")
    state.on_pod(None, pod_view())
    snapshot = state.scheduling.snapshot(now=NOW)
    assert [(held.gang.queue, held.gpus, held.leaving) for held in snapshot.admitted] == [
        ("research", 2, False)
    ]
    planned = plan_job(known(state), Observed(), now=NOW, epoch=1)
    assert (planned.status is None, planned.actions) == (False, ())


def test_a_spec_is_judged_when_it_changes_and_not_in_a_cycle(
    state: ClusterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[str] = []
    judge = job_cache.judge
    monkeypatch.setattr(
        job_cache, "judge", lambda spec, gpus: judged.append(spec.queue) or judge(spec, gpus)
    )
    first = job_view()
    state.on_job(None, first)
    second = job_view(version=2, status={"phase": "Pending"})
    state.on_job(first, second)
    third = job_view(version=3, generation=2, activeDeadlineSeconds=60)
    state.on_job(second, third)
    assert known(state).spec.active_deadline_seconds == 60
    for _ in range(3):
        assert waiting(state) == ["team/llama"]
    assert judged == ["research"]
    state.on_job(third, job_view(version=4, generation=3, trainer={"overrides": {"stepz": 1}}))
    assert (len(judged), waiting(state)) == (2, [])


def test_the_same_generation_of_a_restored_cluster_is_read_again(state: ClusterCache) -> None:
    first = job_view()
    state.on_job(None, first)
    state.on_job(first, job_view(version=2, nodes=1))
    assert known(state).spec.nodes == 1


def test_an_unchanged_waiting_job_costs_a_cycle_a_few_calls(state: ClusterCache) -> None:
    """0.19 ms of decoding and validation before; the calls are counted, as time would mislead."""
    for number in range(50):
        state.on_job(None, job_view(f"job-{number}", uid=f"job-{number}"))
    state.scheduling.pending()
    calls = 0

    def count(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        gangs = state.scheduling.pending()
    finally:
        sys.setprofile(None)
    assert len(gangs) == 50
    assert calls <= 44 * len(gangs)


def test_values_that_do_not_fit_together_are_the_job_s_own_condition(state: ClusterCache) -> None:
    """Here slices that cut each other: a rule of a part of the spec, which the CRD asks alone."""
    slices = [{"level": "rack", "nodes": 3}, {"level": "host", "nodes": 2}]
    fields = {"nodes": 6, "trainer": {"globalBatchSize": 12}, "topology": {"slices": slices}}
    odd = job_view("odd", uid="odd", **fields)
    state.on_job(None, odd)
    state.on_job(None, job_view("fine", uid="fine"))
    assert waiting(state) == ["team/fine"]
    assert refusal(state, "odd").reason is Reason.CONFIG_REFUSED
    assert list(state.scheduling.left_out) == ["team/odd"]
    state.scheduling.left_out.clear()
    state.on_job(odd, job_view("odd", uid="odd", version=2, **fields))
    assert waiting(state) == ["team/fine"]
    assert state.scheduling.left_out == {}


def test_any_error_of_one_job_leaves_the_others_alone(
    state: ClusterCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"status": assignment("node-0", "node-1")}
    state.on_job(None, job_view("bad", uid="bad", **held))
    state.on_job(None, job_view("good", uid="good", **held))
    before = state.scheduling.snapshot(now=NOW)
    gpus = [held.gpus for held in before.admitted]
    positions_of = snapshots.positions_of

    def failing(job: Job) -> Any:
        if job.name == "bad":
            raise RecursionError("deep")
        return positions_of(job)

    monkeypatch.setattr(snapshots, "positions_of", failing)
    for name in ("bad", "good"):
        state.on_job(None, job_view(name, uid=name, version=2, **held))
    after = state.scheduling.snapshot(now=NOW)
    assert [held.gpus for held in after.admitted] == gpus
    assert "RecursionError: deep" in refusal(state, "bad").message
    assert isinstance(known(state, "good").verdict, Schedulable)


def test_a_job_waits_for_its_verdict_and_keeps_it_over_writes() -> None:
    later: list[Job] = []
    state = filled(ClusterCache(nodes=NodeCache(clock=lambda: NOW), judge_later=later.append))
    first = job_view()
    state.on_job(None, first)
    state.on_job(None, job_view("template", uid="t", trainer=None, template={"image": "any:1"}))
    assert waiting(state) == ["team/template"]
    assert [job.key for job in later] == ["team/llama"]
    read = known(state)
    assert read.verdict == Unjudged()
    state.on_job(first, job_view(version=2, status={"phase": "Pending"}))
    assert state.jobs.settle(later[0], Schedulable())
    assert waiting(state) == ["team/llama", "team/template"]
    state.jobs.assume(Job(**{**fields(read), "resource_version": "3"}))
    assert waiting(state) == ["team/llama", "team/template"]
    changed = job_view(version=4, generation=2, nodes=1)
    state.on_job(first, changed)
    assert not state.jobs.settle(later[0], Schedulable())
    assert waiting(state) == ["team/template"]


def test_pools_that_say_what_they_have_have_waiting_jobs_judged_again() -> None:
    later: list[Job] = []
    state = filled(ClusterCache(nodes=NodeCache(clock=lambda: NOW), judge_later=later.append))
    state.on_job(None, job_view())
    assert state.jobs.settle(later.pop(), Schedulable())
    state.on_pool(pool_view(), pool_view())  # says nothing of its GPUs
    assert later == []
    state.on_pool(pool_view(), pool_view(gpu="H100"))
    assert [job.key for job in later] == ["team/llama"]
    assert waiting(state) == ["team/llama"]  # the verdict that it has counts until then
    judged = later.pop()
    assert state.jobs.settle(judged, judge(judged.spec, state.hardware_of(judged)))
    state.on_pool(None, pool_view("smaller", gpu="A100-40GB"))
    assert later == []
    state.on_pool(None, pool_view("larger", gpu="H200"))
    assert [job.key for job in later] == ["team/llama"]


def test_a_pool_that_changes_while_a_job_is_judged_has_it_judged_again() -> None:
    later: list[Job] = []
    state = filled(ClusterCache(nodes=NodeCache(clock=lambda: NOW), judge_later=later.append))
    state.on_job(None, job_view())
    judged = later.pop()
    state.on_pool(pool_view(), pool_view(gpu="H100"))  # it has no verdict that could be old
    assert later == []
    assert state.jobs.settle(judged, judge(judged.spec, None))
    assert [job.key for job in later] == ["team/llama"]
    assert state.jobs.settle(judged, judge(judged.spec, state.hardware_of(judged)))
    assert len(later) == 1
    assert state.jobs.settle(judged, refusal_for(TypeError("a defect")))
    assert len(later) == 1


def fields(job: Job) -> dict[str, Any]:
    return {name: getattr(job, name) for name in Job.__dataclass_fields__}
