"""Views -> the values that are decided on."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.api.load import ApiError
from drumline.api.policy import MovesPolicy, SchedulingPolicy
from drumline.api.trainingqueue import TrainingQueueSpec
from drumline.controller.conversion.jobs import (
    facts_of,
    gang_of,
    job_of,
    platform_tolerations,
    policy_of,
    queue_of,
)
from drumline.kube.views import ContainerView, PodPhase, PodView
from drumline.lifecycle.model.observed import PodEnd, PodFacts
from drumline.scheduling.model import (
    MoveBudget,
    Ordering,
    Policy,
    PreemptionRule,
    Queue,
    Reclaim,
    Slice,
    TaintEffect,
    Toleration,
    TolerationOperator,
    WaitingRule,
    WithinQueue,
)
from drumline.scheduling.resources import Resources
from tests.builders import T0
from tests.unit.controller.views import assignment, job_view, pod_view

GPU_TOLERATION = Toleration(key="nvidia.com/gpu", operator=TolerationOperator.EXISTS)


def test_a_job() -> None:
    job = job_of(job_view(version=7, generation=3, status={"step": 5}))
    assert (job.key, job.uid, job.resource_version, job.object_generation) == (
        "team/llama",
        "job-1",
        "7",
        3,
    )
    assert job.created_at == T0
    assert (job.spec.nodes, job.status.step) == (2, 5)


def test_a_job_that_breaks_the_api_is_named() -> None:
    with pytest.raises(ApiError, match="nodes"):
        job_of(job_view(nodes=0))


def container(**state: Any) -> ContainerView:
    return ContainerView(name="trainer", **state)


def facts(pod: PodView) -> PodFacts:
    found = facts_of(pod)
    assert found is not None
    return found


def test_a_running_member() -> None:
    pod = pod_view(index=1, generation=2, pod_ip="10.0.0.1", ready=True, containers=(container(),))
    assert facts(pod) == PodFacts(
        name="llama-1-g2",
        uid="job-1-1-2",
        index=1,
        generation=2,
        node="node-0",
        ip="10.0.0.1",
        ready=True,
    )


@pytest.mark.parametrize(
    ("state", "joining"),
    [
        ({}, True),
        ({"waiting_reason": "PodInitializing"}, False),
        ({"exit_code": 0}, False),
    ],
)
def test_joining_is_the_time_its_container_runs(state: dict[str, Any], joining: bool) -> None:
    join = ContainerView(name="drumline-join", **state)
    assert facts(pod_view(init_containers=(join,))).joining is joining


def test_the_first_container_that_waits_says_why() -> None:
    waits = container(waiting_reason="ImagePullBackOff", waiting_message="not found " * 50)
    text = facts(pod_view(containers=(waits,))).waiting
    assert text.startswith("ImagePullBackOff: not found")
    assert len(text) < 250


@pytest.mark.parametrize(
    ("pod", "end"),
    [
        ({}, None),
        ({"phase": PodPhase.PENDING}, None),
        (
            {
                "phase": PodPhase.SUCCEEDED,
                "containers": (
                    container(exit_code=0, exit_reason="Completed", termination_message="bye"),
                ),
            },
            PodEnd(succeeded=True, exit_code=0, reason="Completed", message="bye"),
        ),
        (
            {
                "phase": PodPhase.FAILED,
                "containers": (
                    container(
                        exit_code=137,
                        exit_reason="OOMKilled",
                        finished_time="2023-11-14T22:13:20Z",
                    ),
                ),
                "init_containers": (ContainerView(name="drumline-join", exit_code=0),),
            },
            PodEnd(succeeded=False, exit_code=137, reason="OOMKilled", ended_at=T0),
        ),
        (
            {
                "phase": PodPhase.FAILED,
                "containers": (container(),),
                "init_containers": (ContainerView(name="drumline-join", exit_code=64),),
            },
            PodEnd(succeeded=False, exit_code=64),
        ),
        (
            {"phase": PodPhase.FAILED, "reason": "OutOfcpu", "message": "no room"},
            PodEnd(succeeded=False, reason="OutOfcpu", message="no room"),
        ),
        (
            {
                "phase": PodPhase.FAILED,
                "reason": "Evicted",
                "containers": (container(exit_code=143, exit_reason="Error"),),
            },
            PodEnd(succeeded=False, exit_code=143, reason="Evicted"),
        ),
    ],
)
def test_how_a_pod_ended(pod: dict[str, Any], end: PodEnd | None) -> None:
    assert facts(pod_view(**pod)).end == end


@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"drumline.dev/index": "x"},
        {"drumline.dev/index": "-1"},
        {"drumline.dev/index": "7"},
        {"drumline.dev/generation": ""},
    ],
)
def test_a_pod_whose_labels_do_not_fit_its_name_is_none_of_ours(labels: dict[str, str]) -> None:
    right = pod_view()
    wrong = PodView(
        namespace="team",
        name=right.name,
        uid="u",
        resource_version="1",
        owner_uid="job-1",
        labels={**right.labels, **labels} if labels else {},
    )
    assert facts_of(wrong) is None


def test_a_queue() -> None:
    spec = TrainingQueueSpec.model_validate(
        {
            "quotas": [{"gpuPool": "h100", "nominalGpus": 16}],
            "maxPriority": 100,
            "namespaces": ["team"],
        }
    )
    assert queue_of("research", spec) == Queue(
        name="research",
        nominal={"h100": 16},
        max_priority=100,
        namespaces=frozenset({"team"}),
        borrowing_limit={},
        lending_limit={},
        preemption=PreemptionRule(within_queue=WithinQueue.LOWER_PRIORITY, reclaim=Reclaim.ANY),
        user_limit={},
    )


def test_a_queue_of_a_cohort() -> None:
    quota = {"nominalGpus": 16, "borrowingLimitGpus": 8, "lendingLimitGpus": 4}
    quota["userLimitGpus"] = 2
    spec = TrainingQueueSpec.model_validate(
        {
            "parent": "all",
            "quotas": [{"gpuPool": "h100", **quota}, {"gpuPool": "a100", "nominalGpus": 0}],
            "preemption": {"withinQueue": "Never", "reclaim": "FairShare"},
            "minRuntimeSeconds": 60,
            "weight": 3,
        }
    )
    assert queue_of("research", spec) == Queue(
        name="research",
        nominal={"h100": 16, "a100": 0},
        parent="all",
        borrowing_limit={"h100": 8},
        lending_limit={"h100": 4},
        preemption=PreemptionRule(within_queue=WithinQueue.NEVER, reclaim=Reclaim.FAIR_SHARE),
        min_runtime_seconds=60.0,
        weight=3.0,
        user_limit={"h100": 2},
    )


def test_the_owner_s_choices() -> None:
    assert policy_of(SchedulingPolicy()) == Policy()
    chosen = SchedulingPolicy(
        waiting="Strict",
        order="FairShare",
        reservations=3,
        history_half_life_seconds=60,
        history_weight=0.5,
        restart_seconds=1,
        priority_seconds=2,
        surplus=True,
        repairs_preempt=True,
        moves=MovesPolicy(jobs=2, gpu_seconds=5),
        move_back=True,
    )
    assert policy_of(chosen) == Policy(
        waiting=WaitingRule.STRICT,
        order=Ordering.FAIR_SHARE,
        reservations=3,
        history_seconds=60.0,
        history_weight=0.5,
        restart_seconds=1.0,
        priority_seconds=2.0,
        surplus=True,
        repairs_preempt=True,
        moves=MoveBudget(gangs=2, gpu_seconds=5.0),
        move_back=True,
    )


def test_a_gang_that_may_shrink_and_one_that_is_promised_places() -> None:
    checkpoint = {"claimName": "c"}
    elastic = job_of(job_view(nodes=4, minNodes=1, gpusPerNode=1, checkpoint=checkpoint))
    assert gang_of(elastic, priority=0).sizes == (1, 2, 4)
    places = {"gpuPool": "h100", "prefix": "node-", "nodes": ["4", "5"]}
    promised = gang_of(job_of(job_view(status={"nominated": places})), priority=0)
    assert (promised.sizes, promised.nominated) == ((), ("node-4", "node-5"))
    assert promised.nominated_pool == "h100"


def test_a_gang() -> None:
    job = job_of(
        job_view(
            gpuPool="h100",
            topology={"required": "rack", "preferred": "host"},
            resources={"cpu": "2", "memory": "1Gi", "rdma/hca": "1"},
            nodeSelector={"zone": "a"},
            tolerations=[{"key": "team", "operator": "Exists", "effect": "NoExecute"}],
            status={"queuedAt": "2023-11-14T22:15:00Z"},
        )
    )
    extra = platform_tolerations([{"key": "rdma", "operator": "Exists"}])
    gang = gang_of(
        job, priority=5, platform_tolerations=extra, retry_at=T0 + 9, retry_cause="quota"
    )
    assert (gang.key, gang.uid, gang.queue, gang.nodes) == ("team/llama", "job-1", "research", 2)
    assert gang.per_pod == Resources(
        gpus=2, cpu_millis=2000, memory_bytes=1 << 30, pods=1, extended=(("rdma/hca", 1),)
    )
    assert (gang.pool, gang.required_level, gang.preferred_level) == ("h100", "rack", "host")
    assert (gang.priority, gang.queued_at, gang.retry_at, gang.retry_cause) == (
        5,
        T0 + 100,
        T0 + 9,
        "quota",
    )
    assert gang.selector == {"zone": "a"}
    assert gang.tolerations == (
        GPU_TOLERATION,
        Toleration(key="team", operator=TolerationOperator.EXISTS, effect=TaintEffect.NO_EXECUTE),
        *extra,
    )


def test_a_gang_of_slices_in_pools_of_its_choice() -> None:
    slices = [{"level": "host", "nodes": 2, "required": False}, {"level": "rack", "nodes": 4}]
    job = job_of(
        job_view(
            nodes=8,
            gpuPools=["h100", "a100"],
            topology={"slices": slices, "balanced": "rack"},
            user="ann",
            activeDeadlineSeconds=60,
        )
    )
    gang = gang_of(job, priority=0)
    assert (gang.pool, gang.pools) == (None, ("h100", "a100"))
    assert gang.slices == (
        Slice(level="rack", pods=4),
        Slice(level="host", pods=2, required=False),
    )
    assert (gang.balanced_level, gang.user, gang.max_runtime_seconds) == ("rack", "ann", 60.0)


def test_a_group_starts_together_once() -> None:
    group = {"name": "rl", "jobs": 2}
    fresh = gang_of(job_of(job_view(group=group)), priority=0)
    assert (fresh.group, fresh.group_gangs) == ("rl", 2)
    runs = gang_of(job_of(job_view(group=group, status=assignment("a", "b"))), priority=0)
    assert (runs.group, runs.group_gangs) == ("rl", 2)
    again = gang_of(job_of(job_view(group=group, status={"generation": 1})), priority=0)
    assert (again.group, again.group_gangs) == ("", 1)


def test_a_job_that_never_waited_stands_where_it_was_made() -> None:
    assert gang_of(job_of(job_view()), priority=0).queued_at == T0


def test_a_template_gang_asks_for_what_its_join_container_needs() -> None:
    own = job_of(job_view(trainer=None, template={"image": "any:1"}, resources={"cpu": "50m"}))
    per_pod = gang_of(own, priority=0).per_pod
    assert (per_pod.cpu_millis, per_pod.memory_bytes) == (100, 64 << 20)
