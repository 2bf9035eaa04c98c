"""Views -> the values that are decided on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline.controller.jobs.conversion import gang_of, job_of, platform_tolerations
from drumline_api.load import ApiError
from drumline_scheduler.model import (
    NodeOperator,
    NodeRequirement,
    PriceRule,
    Slice,
    SpotRule,
    TaintEffect,
    Toleration,
    TolerationOperator,
)
from drumline_scheduler.placement.eligibility import QUARANTINE
from drumline_scheduler.resources import Resources
from tests.builders import T0
from tests.unit.controller.views import assignment, job_view

GPU_TOLERATIONS = tuple(
    Toleration(key=taint, operator=TolerationOperator.EXISTS)
    for taint in ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi")
)


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
    with pytest.raises(ApiError, match="choose a shorter name") as error:
        job_of(job_view("llama-3.1"))
    assert error.value.path == "metadata.name"


def test_a_gang_that_may_shrink_and_a_nominated_gang() -> None:
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
        *GPU_TOLERATIONS,
        Toleration(key="team", operator=TolerationOperator.EXISTS, effect=TaintEffect.NO_EXECUTE),
        *extra,
    )


@pytest.mark.parametrize("may_check", [True, False])
def test_quarantined_nodes_are_for_jobs_that_may_check_them(*, may_check: bool) -> None:
    tolerations = [{"key": key, "operator": "Exists"} for key in (QUARANTINE, "team")]
    gang = gang_of(job_of(job_view(tolerations=tolerations)), priority=0, may_check=may_check)
    asked = [QUARANTINE, "team"] if may_check else ["team"]
    assert [each.key for each in gang.tolerations] == [
        *(each.key for each in GPU_TOLERATIONS),
        *asked,
    ]


def test_a_gang_avoids_nodes_on_which_a_gpu_failed_it() -> None:
    entry = {"node": "node-b", "until": "2023-11-14T23:15:00Z", "cause": "rank 1: ECC"}
    job = job_of(job_view(status={"avoidedNodes": [entry]}))
    assert gang_of(job, priority=0).excluded_nodes == {"node-b"}


def test_a_gang_with_conditions_on_its_nodes() -> None:
    away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["a", "b"]}
    new = {"key": "driver", "operator": "Gt", "values": ["570"]}
    required = [{"matchExpressions": [away, new]}, {"matchExpressions": [{**new, "key": "old"}]}]
    gang = gang_of(job_of(job_view(nodeAffinity={"required": required})), priority=0)
    newer = NodeRequirement(key="driver", operator=NodeOperator.GREATER_THAN, values=("570",))
    assert gang.affinity == (
        (
            NodeRequirement(
                key="kubernetes.io/hostname", operator=NodeOperator.NOT_IN, values=("a", "b")
            ),
            newer,
        ),
        (replace(newer, key="old"),),
    )
    assert gang_of(job_of(job_view()), priority=0).affinity == ()


def test_a_gang_of_slices_in_pools_of_its_choice() -> None:
    slices = [{"level": "host", "nodes": 2, "required": False}, {"level": "rack", "nodes": 4}]
    job = job_of(
        job_view(
            nodes=8,
            gpuPools=["h100", "a100"],
            spot="Never",
            topology={"slices": slices, "balanced": "rack"},
            user="ann",
            activeDeadlineSeconds=60,
        )
    )
    gang = gang_of(job, priority=0)
    assert (gang.pool, gang.pools) == (None, ("h100", "a100"))
    assert gang.price_rule == PriceRule(spot=SpotRule.NEVER)
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
    assert (per_pod.cpu_millis, per_pod.memory_bytes) == (500, 256 << 20)


@pytest.mark.parametrize(
    ("spec", "may_share"),
    [
        ({"nodes": 1, "gpusPerNode": 1}, True),
        ({"nodes": 1, "gpusPerNode": 2}, False),
        ({"nodes": 2, "gpusPerNode": 1}, False),
    ],
)
def test_a_job_of_one_gpu_may_share_it(spec: dict[str, int], *, may_share: bool) -> None:
    assert gang_of(job_of(job_view(**spec)), priority=0).may_share is may_share
