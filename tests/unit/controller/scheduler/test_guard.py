"""The taints of promised nodes: what is promised, and an API server that refuses or is slow."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from drumline.controller.nodes.nodes import NodeCache
from drumline.controller.scheduler.guard import Guard
from drumline.controller.state.cluster import ClusterCache
from drumline.kube.client import KubeClient
from drumline.kube.errors import Forbidden
from drumline.kube.request import Request, Verb
from drumline_api.objects import builtin
from drumline_scheduler.decisions import Decisions, Placed
from drumline_scheduler.guarded_nodes import (
    FIRST_PAUSE_SECONDS,
    FORGET_SECONDS,
    GIVE_UP_SECONDS,
    SETTLE_SECONDS,
)
from tests.unit.controller.views import assignment, job_view, node_view, pod_view, pool_view

TAINT = builtin.Taint(key="drumline.dev/promised", effect="NoSchedule")
STARTS = Decisions(placed=(Placed(key="team/g", uid="g", pool="h100", assignment=("node-0",)),))


@dataclass
class Site(KubeClient):
    """A guarded pool of two nodes; every write takes a while, and may be refused."""

    state: ClusterCache
    refuses: bool = False
    write_seconds: float = 0.0
    now: float = 0.0
    woken: int = 0
    written: list[tuple[str, bool]] = field(default_factory=list[tuple[str, bool]])
    """Names of nodes, and whether they were tainted."""

    def wake(self) -> None:
        self.woken += 1

    async def send(self, request: Request) -> bytes:
        name = request.path.rpartition("/")[2]
        metadata = {"uid": name, "resourceVersion": "1"}
        taints = [{"key": TAINT.key}] if name in self.state.nodes.promised else []
        if request.verb is not Verb.GET:
            self.now += self.write_seconds
            if self.refuses:
                raise Forbidden(code=403, reason="Forbidden", message="no right to patch nodes")
            body: dict[str, Any] = json.loads(request.body or b"")
            self.written.append((name, bool(body["spec"]["taints"])))
        return json.dumps({"metadata": metadata, "spec": {"taints": taints}}).encode()

    def show(self, name: str, *taints: builtin.Taint) -> None:
        """The watch shows a node with these taints."""
        self.state.nodes.on_node(node_view(name), node_view(name, version=2, taints=taints))


@pytest.fixture
def site() -> Site:
    state = ClusterCache(nodes=NodeCache(clock=lambda: 0.0))
    state.on_pool(None, pool_view())
    for name in ("node-0", "node-1"):
        state.nodes.on_node(None, node_view(name))
    return Site(state)


@pytest.fixture
def guard(site: Site) -> Guard:
    return Guard(
        client=site,
        state=site.state,
        pools=frozenset({"h100"}),
        clock=lambda: site.now,
        wake_scheduler=site.wake,
    )


async def test_a_gang_starts_though_its_node_cannot_be_tainted_and_nobody_decides_meanwhile(
    site: Site, guard: Guard
) -> None:
    site.refuses, site.write_seconds = True, GIVE_UP_SECONDS / 2
    assert guard.hold_back(STARTS, pending=()) == Decisions()
    assert await guard.settle() is False
    assert site.woken == 0
    await guard.settle()
    assert site.woken == 1
    assert guard.hold_back(STARTS, pending=()) == STARTS


async def test_who_comes_to_a_node_that_was_refused_waits_no_more_and_it_is_tried_again_later(
    site: Site, guard: Guard
) -> None:
    site.refuses = True
    guard.hold_back(STARTS, pending=())
    for _ in range(2):
        await guard.settle()
        site.now += GIVE_UP_SECONDS
    await guard.settle()
    site.now += FORGET_SECONDS
    await guard.settle()
    assert guard.hold_back(STARTS, pending=()) == STARTS
    site.refuses = False
    await guard.settle()
    assert site.written == []  # it is left alone for a minute
    site.now += FIRST_PAUSE_SECONDS
    assert guard.hold_back(STARTS, pending=()) == STARTS
    await guard.settle()
    assert site.written == [("node-0", True)]
    site.show("node-0", TAINT)
    await guard.settle()
    assert guard.hold_back(STARTS, pending=()) == Decisions()  # it is guarded as any other
    site.now += SETTLE_SECONDS
    assert guard.hold_back(STARTS, pending=()) == STARTS


async def test_a_taint_that_was_long_in_coming_is_secured_and_not_lifted(
    site: Site, guard: Guard
) -> None:
    assert guard.hold_back(STARTS, pending=()) == Decisions()
    site.write_seconds = GIVE_UP_SECONDS - 1
    await guard.settle()
    site.show("node-0", TAINT)
    for seconds in (0.0, SETTLE_SECONDS, FORGET_SECONDS, SETTLE_SECONDS):  # a cycle takes long too
        site.now += seconds
        await guard.settle()
    assert (site.written, site.woken) == ([("node-0", True)], 1)
    assert guard.hold_back(STARTS, pending=()) == STARTS


@pytest.mark.parametrize(
    ("status", "pods", "tainted"),
    [
        ({"phase": "Starting"}, 1, {"node-1"}),
        ({"phase": "Running"}, 1, set[str]()),
        ({"phase": "Starting"}, 2, set[str]()),
    ],
)
async def test_places_of_pods_that_are_to_come_are_promised(
    site: Site, guard: Guard, status: dict[str, str], pods: int, tainted: set[str]
) -> None:
    held = {**assignment("node-0", "node-1"), **status}
    site.state.on_job(None, job_view("llama", status=held))
    for index in range(pods):
        site.state.on_pod(None, pod_view("llama", index, node_name=f"node-{index}"))
    await guard.settle()
    assert {name for name, _ in site.written} == tainted


async def test_the_places_by_which_a_running_gang_grows_are_promised(
    site: Site, guard: Guard
) -> None:
    held = assignment("node-0", "node-1")
    held["assignment"]["joining"] = [1]
    grows = {**held, "phase": "Running"}
    site.state.on_job(None, job_view("llama", status=grows))
    site.state.on_pod(None, pod_view("llama", 0))
    await guard.settle()
    assert site.written == [("node-1", True)]


async def test_a_pod_that_is_not_bound_yet_is_not_there(site: Site, guard: Guard) -> None:
    held = {**assignment("node-0", "node-1"), "phase": "Starting"}
    site.state.on_job(None, job_view("llama", status=held))
    site.state.on_pod(None, pod_view("llama", 0))
    chosen = {"drumline.dev/node": "node-1"}
    site.state.on_pod(None, pod_view("llama", 1, node_name="", annotations=chosen))
    await guard.settle()
    assert site.written == [("node-1", True)]
