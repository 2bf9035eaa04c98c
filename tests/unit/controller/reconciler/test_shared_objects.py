"""A namespace's budget and policy: made once, made again, changed, and deleted when unused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from aiohttp import web

from drumline.controller.reconciler.shared_objects import (
    FRESH_SECONDS,
    SharedObjects,
    namespaces_in_need,
)
from drumline.kube.client import KubeClient
from drumline.kube.errors import Forbidden
from drumline.kube.kinds import NETWORK_POLICIES, POD_DISRUPTION_BUDGETS, Resource
from drumline.kube.views import PodPhase, PodView
from drumline.lifecycle.manifests.pod_settings import PodSettings
from drumline.lifecycle.manifests.shared_objects import SHARED_NAME
from drumline.scope import InstallationScope
from tests.unit.controller.app.fake_api import FakeApi
from tests.unit.controller.views import pod_view

BOTH = (NETWORK_POLICIES, POD_DISRUPTION_BUDGETS)


BOTH_LABELS = {"drumline.dev/protected": "true", "drumline.dev/gang-network": "true"}


def a_pod(namespace: str, *, labels: dict[str, str] = BOTH_LABELS, **fields: Any) -> PodView:
    """A pod that needs both, if its labels are not others."""
    return msgspec.structs.replace(pod_view(**fields), namespace=namespace, labels=labels)


@dataclass(kw_only=True)
class Bench:
    """Shared objects on a fake API server, under a clock that stands."""

    api: FakeApi
    client: KubeClient
    pods: list[PodView] = field(default_factory=list[PodView])
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.shared = self.leader()

    def leader(
        self, *, namespace_uid: Callable[[str], str] = lambda _: "", **settings: Any
    ) -> SharedObjects:
        return SharedObjects(
            client=self.client,
            settings=PodSettings(trainer_image="t:1", join_image="j:1", **settings),
            pods=lambda: self.pods,
            clock=lambda: self.now,
            namespace_uid=namespace_uid,
        )

    @property
    def writes(self) -> list[str]:
        return [request for request in self.api.requests if "lease" not in request]

    @property
    def kinds(self) -> list[str]:
        return [
            plural
            for plural in ("networkpolicies", "poddisruptionbudgets")
            if any(each["metadata"]["name"] == SHARED_NAME for each in self.api.objects(plural))
        ]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    api = FakeApi()
    async with api.serving() as credentials, KubeClient(credentials) as client:
        yield Bench(api=api, client=client)


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.plural)
async def test_a_full_quota_fails_only_where_the_object_is_missing(
    bench: Bench, kind: Resource
) -> None:
    """The API server refuses a create before it looks for the name."""
    await bench.shared.ensure("team", (kind,))
    message = "exceeded quota: few, requested: count=1"
    bench.api.refusals = {kind.plural: (403, "Forbidden", message)}
    await bench.shared.ensure("team", (kind,), asks=True)
    await bench.leader().ensure("team", (kind,))
    bench.api.remove(kind.plural, "team", SHARED_NAME)
    with pytest.raises(Forbidden):
        await bench.shared.ensure("team", (kind,), asks=True)


async def test_a_thousand_jobs_that_start_at_once_cost_one_write_each_kind(bench: Bench) -> None:
    await asyncio.gather(*(bench.shared.ensure("team", BOTH) for _ in range(1000)))
    assert len(bench.writes) == 2
    assert bench.kinds == ["networkpolicies", "poddisruptionbudgets"]


async def test_a_lone_template_makes_no_policy(bench: Bench) -> None:
    await bench.shared.ensure("team", (POD_DISRUPTION_BUDGETS,))
    assert bench.kinds == ["poddisruptionbudgets"]


async def test_a_gang_that_starts_again_finds_what_somebody_deleted(bench: Bench) -> None:
    await bench.shared.ensure("team", BOTH)
    bench.api.remove("poddisruptionbudgets", "team", SHARED_NAME)
    await bench.shared.ensure("team", BOTH)
    assert bench.kinds == ["networkpolicies"]
    await bench.shared.ensure("team", BOTH, asks=True)
    assert bench.kinds == ["networkpolicies", "poddisruptionbudgets"]


async def test_what_was_said_long_ago_is_asked_again(bench: Bench) -> None:
    await bench.shared.ensure("team", BOTH)
    for plural in ("poddisruptionbudgets", "networkpolicies"):  # its namespace was made again
        bench.api.remove(plural, "team", SHARED_NAME)
    bench.now += FRESH_SECONDS
    await bench.shared.ensure("team", BOTH)
    assert bench.kinds == ["networkpolicies", "poddisruptionbudgets"]


async def test_a_namespace_that_is_created_again_gets_its_objects_at_once(bench: Bench) -> None:
    uids = {"team": "first"}
    shared = bench.leader(namespace_uid=lambda name: uids[name])
    await shared.ensure("team", BOTH)
    for plural in ("poddisruptionbudgets", "networkpolicies"):
        bench.api.remove(plural, "team", SHARED_NAME)
    uids["team"] = "second"
    await shared.ensure("team", BOTH)
    assert bench.kinds == ["networkpolicies", "poddisruptionbudgets"]
    written = len(bench.writes)
    await shared.ensure("team", BOTH)
    assert len(bench.writes) == written


async def test_the_next_leader_says_what_its_settings_are(bench: Bench) -> None:
    await bench.shared.ensure("team", BOTH)
    successor = bench.leader(operator_namespace="elsewhere")
    await successor.ensure("team", BOTH)
    await successor.ensure("team", BOTH, asks=True)
    assert [write.partition(" ")[0] for write in bench.writes] == [
        *["POST"] * 2,
        *["POST", "PATCH"] * 2,
        *["POST"] * 2,
    ]


async def test_a_sweep_makes_what_pods_need_and_deletes_what_none_does(bench: Bench) -> None:
    await bench.shared.ensure("idle", BOTH)
    bench.pods = [a_pod("busy"), a_pod("over", phase=PodPhase.SUCCEEDED)]
    bench.now += 2 * FRESH_SECONDS
    for kind in BOTH:
        await bench.shared.sweep(kind)
        there = {each["metadata"]["namespace"] for each in bench.api.objects(kind.plural)}
        assert there == {"busy"}


async def test_a_sweep_spares_what_was_made_a_moment_ago(bench: Bench) -> None:
    await bench.shared.ensure("team", BOTH)  # its pods are on their way
    await bench.shared.sweep(POD_DISRUPTION_BUDGETS)
    assert bench.kinds == ["networkpolicies", "poddisruptionbudgets"]


async def test_a_namespace_that_may_not_be_read_stops_no_sweep_of_the_others() -> None:
    class Refusing(FakeApi):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            if "/namespaces/gone/" in request.path:
                return web.json_response({"code": 403, "reason": "Forbidden"}, status=403)
            return await super().handle(request)

    api = Refusing()
    async with api.serving() as credentials, KubeClient(credentials) as client:
        shared = SharedObjects(
            client=client,
            settings=PodSettings(trainer_image="t:1", join_image="j:1"),
            pods=lambda: [a_pod("gone"), a_pod("busy")],
            clock=lambda: 1000.0,
            scope=InstallationScope(namespaces=("gone", "busy")),
        )
        await shared.sweep(POD_DISRUPTION_BUDGETS)
    budgets = api.objects("poddisruptionbudgets")
    assert [each["metadata"]["namespace"] for each in budgets] == ["busy"]


async def test_a_namespace_that_refuses_the_object_stops_no_sweep_of_the_others() -> None:
    class Full(FakeApi):
        async def handle(self, request: web.Request) -> web.StreamResponse:
            if request.method != "GET" and "/namespaces/full-" in request.path:
                return web.json_response({"code": 403, "reason": "Forbidden"}, status=403)
            return await super().handle(request)

    api, namespaces = Full(), [f"full-{number}" for number in range(8)]
    async with api.serving() as credentials, KubeClient(credentials) as client:
        shared = SharedObjects(
            client=client,
            settings=PodSettings(trainer_image="t:1", join_image="j:1"),
            pods=lambda: [a_pod(namespace) for namespace in (*namespaces, "busy")],
            clock=lambda: 1000.0,
        )
        await shared.sweep(NETWORK_POLICIES)
    policies = api.objects("networkpolicies")
    assert [each["metadata"]["namespace"] for each in policies] == ["busy"]


async def test_what_was_swept_is_made_for_the_next_job(bench: Bench) -> None:
    await bench.shared.ensure("team", BOTH)
    bench.now += 2 * FRESH_SECONDS
    await bench.shared.sweep(POD_DISRUPTION_BUDGETS)
    assert bench.kinds == ["networkpolicies"]
    await bench.shared.ensure("team", BOTH)
    assert bench.kinds == ["networkpolicies", "poddisruptionbudgets"]


def test_only_pods_with_the_label_need_the_object() -> None:
    alone = a_pod("alone", labels={"drumline.dev/protected": "false"})
    pods = [a_pod("gang"), alone, a_pod("old", labels={})]
    assert namespaces_in_need(pods, POD_DISRUPTION_BUDGETS) == {"gang", "alone"}
    assert namespaces_in_need(pods, NETWORK_POLICIES) == {"gang"}
