"""Foreign pods are evicted before anything else happens for a preemption, or nothing does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs

from drumline.controller.state.cluster import ClusterCache
from drumline.controller.workloads import evictions as module
from drumline.controller.workloads.evictions import (
    MAX_STAYS_SECONDS,
    STAYS_SECONDS,
    ForeignEvictions,
)
from drumline.controller.workloads.held import ForeignPod
from drumline.controller.workloads.suspension import WorkloadSuspension
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials, Token
from drumline.kube.events import EventRecorder
from drumline.kube.kinds import JOBS
from drumline_api.base import ANNOTATION_ADMITTED
from drumline_scheduler.decisions import Preemption, Victim, VictimReason
from tests.patience import HANG_SECONDS
from tests.unit.controller.views import foreign_pod
from tests.unit.controller.workload_bodies import QUEUE, a_job, view
from tests.unit.controller.workload_state import two_nodes, workloads

NOW = 1000.0
READY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
UNREADY = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
MARK = '{"":{"pool":"h100","nodes":{"node-0":2}}}'


@dataclass
class Site:
    """An API server that answers evictions, and what became of them."""

    evictions: ForeignEvictions
    state: ClusterCache
    job: dict[str, Any] = field(default_factory=dict[str, Any])
    """The only Job there is."""
    answers: dict[str, int] = field(default_factory=dict[str, int])
    """By pod: the code where it is not 201."""
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    rehearsed: list[str] = field(default_factory=list[str])
    """Pods that got a dry-run eviction."""
    groups: dict[str, list[ForeignPod]] = field(default_factory=dict[str, list[ForeignPod]])
    budgets: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    selected: list[str] = field(default_factory=list[str])
    """Pods that a budget selects."""
    statuses: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Status by pod. Absent: it is ready."""
    lists_pods: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: pods are not listed until it is set."""
    without: set[str] = field(default_factory=set[str])
    """Namespaces without budgets."""
    stay: dict[str, float] = field(default_factory=dict[str, float])
    tainted: set[str] = field(default_factory=lambda: {"n"})


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    app = web.Application()
    runner = web.AppRunner(app)

    async def evict(request: web.Request) -> web.Response:
        if request.query.get("dryRun") == "All":
            made.rehearsed.append(request.match_info["name"])
        else:
            made.asked.append(json.loads(await request.read()))
        code = made.answers.get(request.match_info["name"], 201)
        return web.json_response({"message": "no", "code": code}, status=code)

    async def budgets(request: web.Request) -> web.Response:
        items = [] if request.match_info["namespace"] in made.without else made.budgets
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def pods(request: web.Request) -> web.Response:
        assert request.query["labelSelector"] == "app=ray,tier in (a,b),!old"
        await made.lists_pods.wait()
        items = [
            {
                "metadata": {"name": name, "namespace": "team"},
                "status": made.statuses.get(name, READY),
            }
            for name in made.selected
        ]
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": items})

    async def read(_: web.Request) -> web.Response:
        return web.json_response(made.job)

    async def write(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        if made.answers.get("train", 200) != 200:
            return web.json_response({"message": "no", "code": 409}, status=409)
        made.job = body
        return web.json_response(body)

    app.router.add_post("/api/v1/namespaces/{namespace}/pods/{name}/eviction", evict)
    app.router.add_get("/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", budgets)
    app.router.add_get("/api/v1/namespaces/{namespace}/pods", pods)
    app.router.add_get("/apis/batch/v1/namespaces/team/jobs/train", read)
    app.router.add_put("/apis/batch/v1/namespaces/team/jobs/train", write)
    async with AsyncExitStack() as stack:
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server = f"http://127.0.0.1:{runner.addresses[0][1]}"
        credentials = Credentials(server=server, token=Token(lambda: None))
        client = await stack.enter_async_context(KubeClient(credentials))
        stay: dict[str, float] = {}
        groups: dict[str, list[ForeignPod]] = {}
        tainted = {"n"}
        state = two_nodes(quota=16)
        recorder = EventRecorder(client, instance="test")
        evictions = ForeignEvictions(
            client=client,
            pools={"shared"},
            is_tainted=tainted.__contains__,
            stays=stay.__setitem__,
            members=lambda uid: groups.get(uid, ()),
            workloads=workloads(state),
            suspension=WorkloadSuspension(client=client, recorder=recorder),
        )
        made = Site(evictions, state, groups=groups, stay=stay, tainted=tainted)
        made.lists_pods.set()
        yield made


def preemption(*names: str, pool: str = "shared") -> Preemption:
    victims = [
        Victim(
            key=f"team/pods/{name}",
            uid=f"pods/uid-{name}/pods-0",
            gpus=1,
            gpu_seconds_lost=0.0,
            why=VictimReason.BORROWED,
        )
        for name in names
    ]
    job = Victim(
        key="team/job", uid="1-2-3", gpus=1, gpu_seconds_lost=0.0, why=VictimReason.BORROWED
    )
    return Preemption(key="t/p", uid="p", pool=pool, assignment=("n",), victims=(job, *victims))


async def test_the_very_pods_are_evicted_and_jobs_are_left_to_others(site: Site) -> None:
    assert await site.evictions.evict(preemption("chat-1"), now=NOW)
    (eviction,) = site.asked
    assert eviction["kind"] == "Eviction"
    assert eviction["metadata"] == {"name": "chat-1", "namespace": "team"}
    assert eviction["deleteOptions"] == {"preconditions": {"uid": "uid-chat-1"}}
    assert site.stay == {}


@pytest.mark.parametrize("code", [429, 403])
async def test_a_pod_that_stays_is_asked_once_and_is_no_victim_for_a_while(
    site: Site, code: int
) -> None:
    site.answers["chat-1"] = code
    assert not await site.evictions.evict(preemption("chat-1", "chat-2"), now=NOW)
    assert site.asked == [], "chat-2 would leave in vain"
    assert site.stay == {"uid-chat-1": NOW + STAYS_SECONDS}
    for _ in range(9):
        assert not await site.evictions.evict(preemption("chat-1"), now=NOW)
    assert site.stay == {"uid-chat-1": NOW + MAX_STAYS_SECONDS}
    del site.answers["chat-1"]
    assert await site.evictions.evict(preemption("chat-1"), now=NOW)
    site.answers["chat-1"] = code
    assert not await site.evictions.evict(preemption("chat-1"), now=NOW)
    assert site.stay == {"uid-chat-1": NOW + STAYS_SECONDS}


@pytest.mark.parametrize("code", [404, 409])
async def test_a_pod_that_is_gone_needs_no_eviction(site: Site, code: int) -> None:
    site.answers["chat-1"] = code
    assert await site.evictions.evict(preemption("chat-1"), now=NOW)


async def test_pods_of_pools_that_are_not_guarded_stay(site: Site) -> None:
    assert not await site.evictions.evict(preemption("chat-1", pool="open"), now=NOW)
    assert (site.asked, list(site.stay)) == ([], ["uid-chat-1"])


async def test_pods_stay_while_kube_scheduler_may_give_their_places_away(site: Site) -> None:
    """A guarded node that could not be tainted is used as one that nobody guards."""
    site.tainted.clear()
    assert not await site.evictions.evict(preemption("chat-1"), now=NOW)
    assert (site.asked, list(site.stay)) == ([], ["uid-chat-1"])
    site.tainted.add("n")
    assert await site.evictions.evict(preemption("chat-1"), now=NOW)


def let_go(site: Site) -> None:
    """The Job was let go, and has the pods a and b."""
    site.job = a_job(parallelism=2)
    site.job["metadata"] |= {"resourceVersion": "7", "annotations": {ANNOTATION_ADMITTED: MARK}}
    site.job["spec"]["suspend"] = False
    site.state.on_workload(JOBS, None, view(site.job))
    for name in ("a", "b"):
        labels = {**QUEUE, "drumline.dev/workload": "j"}
        pod = foreign_pod(name, gpus=4, uid=f"uid-{name}", owner_uid="j", labels=labels)
        site.state.on_pod(None, structs.replace(pod, namespace="team"))


async def test_a_job_that_was_let_go_is_suspended_as_a_whole_in_place_of_its_pods(
    site: Site,
) -> None:
    let_go(site)
    assert await site.evictions.evict(preemption("a", "b", "chat"), now=NOW)
    assert [each["metadata"]["name"] for each in site.asked] == ["chat"]
    assert site.job["spec"]["suspend"] is True
    assert site.job["metadata"]["annotations"] == {}
    assert site.job["metadata"]["resourceVersion"] == "7"  # of the version that was read


async def test_a_job_that_its_owner_changed_meanwhile_goes_on_for_now(site: Site) -> None:
    let_go(site)
    site.answers["train"] = 409
    assert not await site.evictions.evict(preemption("a"), now=NOW)
    assert (site.asked, site.job["spec"]["suspend"]) == ([], False)
    assert list(site.stay) == ["uid-a"]


async def test_in_a_pool_that_is_not_guarded_no_job_is_suspended(site: Site) -> None:
    let_go(site)
    assert not await site.evictions.evict(preemption("a", pool="open"), now=NOW)
    assert site.job["spec"]["suspend"] is False


async def test_a_job_without_the_mark_of_the_operator_goes_on_and_is_no_victim(site: Site) -> None:
    """Nothing was written, so nothing may be nominated for its GPUs."""
    let_go(site)
    site.job["metadata"]["annotations"] = {}
    assert not await site.evictions.evict(preemption("a"), now=NOW)
    assert list(site.stay) == ["uid-a"]


@pytest.mark.parametrize("change", [{"uid": "its-successor"}, {}])
async def test_a_job_that_is_gone_or_suspended_already_needs_no_write(
    site: Site, change: dict[str, str]
) -> None:
    let_go(site)
    site.job["metadata"] |= change
    site.job["spec"]["suspend"] = not change
    before = json.dumps(site.job)
    assert await site.evictions.evict(preemption("a"), now=NOW)
    assert json.dumps(site.job) == before


def for_group(site: Site, *names: str) -> Preemption:
    """Return a preemption. Its victims are a group of these pods and the single pod chat."""
    pods = [ForeignPod(namespace="team", name=name, uid=f"uid-{name}") for name in names]
    site.groups["pod-groups/g"] = pods
    group = Victim(
        key="team/pods/ring",
        uid="pod-groups/g",
        gpus=len(names),
        gpu_seconds_lost=0.0,
        why=VictimReason.BORROWED,
    )
    single = preemption("chat")
    return replace(single, victims=(*single.victims, group))


def a_budget(*, allowed: int, selector: dict[str, Any] | None = None) -> dict[str, Any]:
    expressions = [
        {"key": "tier", "operator": "In", "values": ["a", "b"]},
        {"key": "old", "operator": "DoesNotExist"},
    ]
    chosen = {"matchLabels": {"app": "ray"}, "matchExpressions": expressions}
    return {
        "metadata": {"name": "ring", "namespace": "team"},
        "spec": {"selector": selector or chosen},
        "status": {"disruptionsAllowed": allowed},
    }


async def test_a_group_is_evicted_as_a_whole_after_a_dry_run_of_all_its_pods(site: Site) -> None:
    assert await site.evictions.evict(for_group(site, "r-0", "r-1", "r-2"), now=NOW)
    assert sorted(site.rehearsed) == ["chat", "r-0", "r-1", "r-2"]
    assert {each["metadata"]["name"] for each in site.asked} == {"chat", "r-0", "r-1", "r-2"}


@pytest.mark.parametrize(
    ("allowed", "selected", "leaves"),
    [(1, ["r-0", "r-1", "r-2"], False), (1, ["r-0", "x"], True), (0, ["x"], True),
     (2, ["r-0", "r-1", "r-2"], False), (3, ["r-0", "r-1", "r-2"], True)],
)  # fmt: skip
async def test_a_group_leaves_only_if_its_budgets_let_all_of_it_go(
    site: Site, allowed: int, selected: list[str], *, leaves: bool
) -> None:
    site.budgets, site.selected = [a_budget(allowed=allowed)], selected
    assert await site.evictions.evict(for_group(site, "r-0", "r-1", "r-2"), now=NOW) is leaves
    if not leaves:
        assert (site.asked, site.rehearsed) == ([], ["chat"])
        assert site.stay.keys() == {"uid-r-0", "uid-r-1", "uid-r-2"}


@pytest.mark.parametrize(
    ("status", "budget", "leaves"),
    [
        ({"phase": "Pending"}, {}, True),
        (UNREADY, {}, False),
        (UNREADY, {"currentHealthy": 2, "desiredHealthy": 2}, True),
        (UNREADY, {"currentHealthy": 1, "desiredHealthy": 2}, False),
        (UNREADY, {"unhealthyPodEvictionPolicy": "AlwaysAllow"}, True),
        (READY, {"unhealthyPodEvictionPolicy": "AlwaysAllow"}, False),
    ],
)
async def test_a_budget_keeps_no_pod_that_the_api_server_would_evict(
    site: Site, status: dict[str, Any], budget: dict[str, Any], *, leaves: bool
) -> None:
    """Pods that are not ready may go if others are healthy, or the budget says so."""
    made = a_budget(allowed=0)
    made["spec"] |= budget
    made["status"] |= budget
    site.budgets, site.selected = [made], ["r-0", "r-1"]
    site.statuses = dict.fromkeys(site.selected, status)
    assert await site.evictions.evict(for_group(site, "r-0", "r-1"), now=NOW) is leaves


@pytest.mark.parametrize(("allowed", "stays"), [(0, {"a", "b"}), (1, {"b"}), (2, set[str]())])
async def test_single_pods_of_one_budget_leave_together_or_not_at_all(
    site: Site, allowed: int, stays: set[str]
) -> None:
    """A dry run counts each of them alone. The first one would leave in vain."""
    site.budgets, site.selected = [a_budget(allowed=allowed)], ["a", "b"]
    assert await site.evictions.evict(preemption("a", "b", "chat"), now=NOW) is (not stays)
    assert len(site.asked) == (0 if stays else 3)
    assert site.stay.keys() == {f"uid-{name}" for name in stays}


async def test_a_group_of_which_one_pod_may_not_be_evicted_stays_whole(site: Site) -> None:
    site.answers["r-1"] = 403
    assert not await site.evictions.evict(for_group(site, "r-0", "r-1"), now=NOW)
    assert site.asked == []
    assert site.stay.keys() == {"uid-r-0", "uid-r-1"}


async def test_a_budget_that_cannot_be_read_lets_no_group_go(site: Site) -> None:
    site.budgets = [a_budget(allowed=3) | {"status": {"disruptionsAllowed": "many"}}]
    assert not await site.evictions.evict(for_group(site, "r-0", "r-1"), now=NOW)
    assert site.asked == []
    assert site.stay.keys() == {"uid-chat", "uid-r-0", "uid-r-1"}


async def test_thousands_of_budgets_do_not_hold_up_the_cycle(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant may create a budget for each pod, and each budget costs a request."""
    monkeypatch.setattr(module, "CHECK_SECONDS", 0.05)
    site.budgets = [a_budget(allowed=0)]
    site.lists_pods.clear()
    assert not await site.evictions.evict(for_group(site, "r-0", "r-1"), now=NOW)
    assert site.asked == []
    assert site.stay.keys() == {"uid-chat", "uid-r-0", "uid-r-1"}
    monkeypatch.setattr(module, "CHECK_SECONDS", HANG_SECONDS)
    site.lists_pods.set()
    assert await site.evictions.evict(for_group(site, "r-0", "r-1"), now=NOW)


async def test_budgets_of_one_namespace_do_not_keep_the_pods_of_another(site: Site) -> None:
    site.budgets = [a_budget(allowed=3) | {"status": {"disruptionsAllowed": "many"}}]
    wanted = for_group(site, "r-0", "r-1")
    site.groups["pod-groups/g"] = [
        replace(pod, namespace="other") for pod in site.groups["pod-groups/g"]
    ]
    site.without = {"other"}
    assert not await site.evictions.evict(wanted, now=NOW)
    assert site.stay.keys() == {"uid-chat"}
