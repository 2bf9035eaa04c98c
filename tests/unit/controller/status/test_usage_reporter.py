"""The gauges over all jobs: goodput, and the keys of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
from msgspec.structs import replace

from drumline.controller.nodes.health import NodeHealthBook
from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.queues.budget_gauges import MOST_USERS
from drumline.controller.queues.usage_history import QueueUsageHistory
from drumline.controller.state.cluster import ClusterCache
from drumline.controller.usage.platform_conditions import PodEvictions
from drumline.controller.usage.reporter import UsageReporter
from drumline.kube.client import KubeClient
from drumline.kube.events import EventRecorder
from drumline.kube.informer import Informer
from drumline.kube.views import Key, ObjectView, PodPhase
from drumline.lifecycle.model.signing_keys import KeyState, SigningKeys
from drumline.lifecycle.model.timestamps import timestamp
from drumline.telemetry.metrics import Metrics
from tests.builders import T0
from tests.unit.controller.app.fake_api import FakeApi
from tests.unit.controller.views import (
    assignment,
    foreign_pod,
    job_view,
    node_view,
    pool_view,
    queue_view,
)

KEYS = SigningKeys(current=b"b" * 32, previous=b"a" * 32)
JOBS = 50


def running(
    name: str, *, key: str = KEYS.current_id, user: str | None = None, **figures: float
) -> Any:
    """A job of 4 GPUs: 10 s of starting were counted by T0, and it is productive since then."""
    status = {
        **assignment("node-0", "node-0"),
        "admittedAt": timestamp(T0),
        "signingKey": key,
        **figures,
        "gpuSeconds": {"until": timestamp(T0), "starting": 40},
        "conditions": [
            {
                "type": "Running",
                "status": "True",
                "reason": "AllMembersReady",
                "message": "",
                "lastTransitionTime": timestamp(T0),
            }
        ],
    }
    return job_view(name, uid=name, status=status, **({"user": user} if user else {}))


def reporter(
    state: ClusterCache,
    metrics: Metrics,
    *,
    now: list[float],
    most_jobs: int = 5000,
    client: KubeClient | None = None,
    pools: Mapping[Key, ObjectView] = {},
    autoscaling: Callable[[str], dict[str, Any]] = lambda _: {},
) -> UsageReporter:
    nothing = cast("Informer[ObjectView]", dict[Key, ObjectView]())
    return UsageReporter(
        client=cast("KubeClient", client),
        state=state,
        queues=nothing,
        pools=cast("Informer[ObjectView]", pools),
        metrics=metrics,
        job_metrics=most_jobs,
        usage=QueueUsageHistory(half_life=3600.0),
        health=NodeHealthBook(
            jobs=state.jobs.all,
            pools=lambda: state.pools.by_name,
            nodes=state.nodes,
            status_of=lambda _: None,
            recorder=cast("EventRecorder", None),
            uid_of=lambda _: None,
            wake_scheduler=lambda: None,
            metrics=metrics,
        ),
        signing_keys=KEYS,
        progress=lambda _: None,
        autoscaling=autoscaling,
        expected=lambda _: None,
        evictions=PodEvictions(),
        recorder=cast("EventRecorder", None),
        clock=lambda: now[0],
    )


def gauge(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


async def test_a_pool_whose_status_cannot_be_made_keeps_no_other_from_its_own() -> None:
    state, api = ClusterCache(nodes=NodeCache(clock=lambda: T0)), FakeApi()

    def autoscaling(pool: str) -> dict[str, Any]:
        if pool == "bad":
            raise ValueError("more days than the schema has")
        return {}

    pools: dict[Key, ObjectView] = {}
    for name in ("bad", "good"):
        stored = api.put("gpupools", {"metadata": {"name": name}})
        version = stored["metadata"]["resourceVersion"]
        view = replace(pool_view(name), uid=stored["metadata"]["uid"], resource_version=version)
        pools[Key("", name)] = view
        state.on_pool(None, view)
    async with api.serving() as credentials, KubeClient(credentials) as client:
        each = reporter(
            state, Metrics(), now=[T0], client=client, pools=pools, autoscaling=autoscaling
        )
        await each.report()
    written = {pool["metadata"]["name"]: "status" in pool for pool in api.objects("gpupools")}
    assert written == {"bad": False, "good": True}


@pytest.fixture
def state() -> ClusterCache:
    state = ClusterCache(nodes=NodeCache(clock=lambda: T0))
    state.on_queue(None, queue_view())
    for number in range(JOBS):
        key = KEYS.current_id if number % 5 < 3 else "unknown"
        state.on_job(None, running(f"job-{number}", key=key))
    return state


async def test_goodput_goes_on_while_no_status_is_written(state: ClusterCache) -> None:
    metrics, now = Metrics(), [T0 + 90]
    report = reporter(state, metrics, now=now).report
    await report()
    assert gauge(metrics, "drumline_queue_goodput_ratio", queue="research") == pytest.approx(0.9)
    now[0] = T0 + 990
    await report()
    assert gauge(metrics, "drumline_queue_goodput_ratio", queue="research") == pytest.approx(0.99)
    for number in range(JOBS):
        state.on_job(running(f"job-{number}", key=KEYS.current_id), None)
    await report()
    assert gauge(metrics, "drumline_queue_goodput_ratio", queue="research") is None


async def test_gangs_are_counted_by_what_is_known_of_their_key(state: ClusterCache) -> None:
    metrics = Metrics()
    await reporter(state, metrics, now=[T0 + 90]).report()
    counts = {key: gauge(metrics, "drumline_gangs_by_signing_key", key=key) for key in KeyState}
    assert counts == {KeyState.CURRENT: 30, KeyState.PREVIOUS: 0, KeyState.MISSING: 20}


async def test_what_is_spent_of_a_budget_is_a_metric_while_the_queue_has_one() -> None:
    state, metrics, now = ClusterCache(nodes=NodeCache(clock=lambda: T0)), Metrics(), [T0]
    plain = queue_view()
    limited = replace(plain, spec={**plain.spec, "budget": {"gpuHours": 10, "windowDays": 1}})
    state.on_queue(None, limited)
    state.on_job(None, running("runs", key=KEYS.current_id))
    report = reporter(state, metrics, now=now).report
    await report()
    now[0] = T0 + 900
    await report()
    budget = "drumline_queue_budget_gpu_seconds", "drumline_queue_budget_spent_gpu_seconds"
    assert [gauge(metrics, name, queue="research") for name in budget] == [36_000, 3600]
    in_money = replace(plain, spec={**plain.spec, "budget": {"cost": "9", "windowDays": 1}})
    state.on_queue(limited, in_money)
    await report()
    assert [gauge(metrics, name, queue="research") for name in budget] == [None, 3600]
    state.on_queue(in_money, plain)
    await report()
    assert [gauge(metrics, name, queue="research") for name in budget] == [None, None]


async def test_money_and_users_are_metrics_of_the_users_with_most() -> None:
    state, metrics, now = ClusterCache(nodes=NodeCache(clock=lambda: T0)), Metrics(), [T0]
    priced = pool_view()
    state.on_pool(None, replace(priced, spec={**priced.spec, "capacity": {"pricePerGpuHour": "2"}}))
    limit = {"cost": "9", "userGpuHours": 3, "windowDays": 1, "gpuHours": 9}
    view = queue_view()
    state.on_queue(None, replace(view, spec={**view.spec, "budget": limit}))
    for number in range(MOST_USERS + 4):
        state.on_job(None, running(f"job-{number:02}", user=f"user-{number:02}"))
    report = reporter(state, metrics, now=now).report
    await report()
    now[0] = T0 + 90
    await report()
    hours = (MOST_USERS + 4) * 4 * 90 / 3600
    assert gauge(metrics, "drumline_queue_budget_cost", queue="research") == 9
    spent = gauge(metrics, "drumline_queue_budget_spent_cost", queue="research")
    assert spent == pytest.approx(2 * hours)
    assert gauge(metrics, "drumline_queue_budget_credit_gpu_seconds", queue="research") == 0
    of_each = "drumline_queue_budget_user_gpu_seconds"
    assert gauge(metrics, of_each, queue="research") == 3 * 3600
    by_user = "drumline_queue_budget_user_spent_gpu_seconds"

    def named() -> list[str]:
        samples = (each for family in metrics.registry.collect() for each in family.samples)
        return [each.labels["user"] for each in samples if each.name == by_user]

    assert named() == [f"user-{number:02}" for number in range(MOST_USERS)]
    assert gauge(metrics, by_user, queue="research", user="user-00") == 360
    # Readers who are not restricted see no name of a user.
    await reporter(state, metrics, now=now, most_jobs=0).report()
    assert named() == []


async def test_what_foreign_pods_hold_is_spent_too() -> None:
    state, metrics, now = ClusterCache(nodes=NodeCache(clock=lambda: T0)), Metrics(), [T0]
    plain = queue_view()
    limited = replace(plain, spec={**plain.spec, "budget": {"gpuHours": 10, "windowDays": 1}})
    state.on_queue(None, limited)
    state.on_pool(None, pool_view())
    state.nodes.on_node(None, node_view())
    labels = {"drumline.dev/queue": "research"}
    state.on_pod(None, foreign_pod("notebook", gpus=2, labels=labels, phase=PodPhase.RUNNING))
    report = reporter(state, metrics, now=now).report
    await report()
    now[0] = T0 + 3600
    await report()
    name = "drumline_queue_budget_spent_gpu_seconds"
    assert gauge(metrics, name, queue="research") == 7200


async def test_how_far_off_the_planner_is_is_a_metric_while_jobs_say_it() -> None:
    state, metrics = ClusterCache(nodes=NodeCache(clock=lambda: T0)), Metrics()
    job = running("slow", key=KEYS.current_id, tokensPerSecond=100, predictedTokensPerSecond=120)
    state.on_job(None, job)
    report = reporter(state, metrics, now=[T0]).report
    await report()
    assert gauge(metrics, "drumline_pool_step_time_ratio", gpu_pool="h100") == 1.2
    state.on_job(job, None)
    await report()
    assert gauge(metrics, "drumline_pool_step_time_ratio", gpu_pool="h100") is None


async def test_gpus_of_a_pool_with_parts_are_gpus_as_metrics_and_in_sums() -> None:
    state, metrics = ClusterCache(nodes=NodeCache(clock=lambda: T0)), Metrics()
    part = {"resource": "nvidia.com/mig-1g.10gb", "parts": 1}
    mixed = pool_view("mixed", gpu=None, mig="mixed")
    partitions = {"partsPerGpu": 7, "resources": [part]}
    state.on_pool(None, replace(mixed, spec={**mixed.spec, "partitions": partitions}))
    state.on_pool(None, pool_view())
    whole = queue_view()
    quotas = [*whole.spec["quotas"], {"gpuPool": "mixed", "nominalGpus": 10}]
    state.on_queue(None, replace(whole, spec={**whole.spec, "quotas": quotas}))
    job = job_view(
        "probe",
        uid="probe",
        nodes=3,
        gpusPerNode=1,
        gpuPool="mixed",
        gpuPartition="nvidia.com/mig-1g.10gb",
        status={
            **assignment("node-0", "node-0", "node-0", pool="mixed"),
            "gpuSeconds": {"until": timestamp(T0), "parts": 1, "partsPerGpu": 7},
        },
    )
    state.on_job(None, job)
    written = reporter(state, metrics, now=[T0 + 90])
    await written.report()
    name = "drumline_queue_gpus"
    used = gauge(metrics, name, queue="research", gpu_pool="mixed", kind="used")
    assert used == pytest.approx(3 / 7)
    quota = gauge(metrics, name, queue="research", gpu_pool="mixed", kind="nominal")
    assert quota == pytest.approx(10 / 7)
    assert gauge(metrics, name, queue="research", gpu_pool="h100", kind="nominal") == 64
    held = gauge(
        metrics, "drumline_job_gpus", namespace="team", training_job="probe", queue="research"
    )
    assert held == pytest.approx(3 / 7)
    figures = written._queue_figures(state.scheduling.snapshot(now=T0 + 90))
    status = figures["trainingqueues", "research"]
    assert status["gpus"] == "0.43/65.43"
    assert status["usage"][1] == {"gpuPool": "mixed", "nominalGpus": 10, "usedGpus": 3}
