"""What looks for faults finds them: operators that are broken on purpose are caught."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from drumline.controller.jobs import status_writer as writer
from drumline.controller.reconciler import executor
from drumline.kube import writes
from drumline.kube.client import KubeClient
from drumline.kube.kinds import Resource
from drumline.kube.writes import Written
from tests.integration.operator.conftest import HIGH_CLASS
from tests.integration.operator.loss.gate import Flavor, Point, Spot
from tests.integration.operator.loss.lanes import MARKS, Lane, Outcome, lanes
from tests.kube import Kube

pytestmark = MARKS
STATUS = "/apis/drumline.dev/v1alpha1/namespaces/~/trainingjobs/life/status"


async def crashed(api: Kube, life: str, *points: Point, broken: Any = None) -> list[Outcome]:
    """What becomes of a life with each of these crashes, by operators that are broken from then."""
    api.ensure(HIGH_CLASS)
    async with lanes(api.kubeconfig, count=len(points)) as among:
        expected, outcome = await among[0].observe(life)
        assert not outcome.wrong
        if broken is not None:
            broken()
            for lane in among:
                lane.patience = lane.corner.mirror.patience = 8.0

        async def crash(lane: Lane, point: Point) -> Outcome:
            return await lane.crash(life, [point], expected.picture)

        return list(await asyncio.gather(*map(crash, among, points)))


async def test_pods_before_the_status_that_decides_on_them_are_noticed(
    api: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator that goes on from a status that it never wrote."""

    async def assumed(client: KubeClient, resource: Resource, **rest: Any) -> Written:
        del client, resource
        later = int(rest["resource_version"]) + 1_000_000
        return Written(uid=rest["uid"], resource_version=str(later))

    def broken() -> None:
        monkeypatch.setattr(writer.writes, "replace_status", assumed)

    point = Point(Spot("POST", "/api/v1/namespaces/~/secrets", 0), Flavor.AFTER)
    (outcome,) = await crashed(api, "finish (trainer)", point, broken=broken)
    assert "is in no status before it" in "; ".join(outcome.wrong)


async def test_a_status_that_does_not_ask_for_its_version_is_noticed(
    api: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write of a dead operator arrives, and undoes what its successor did."""

    async def unconditional(
        client: KubeClient,
        resource: Resource,
        *,
        name: str,
        uid: str,
        resource_version: str,
        status: Mapping[str, Any],
        namespace: str | None = None,
    ) -> Written:
        del uid, resource_version
        return await writes.merge_patch(
            client,
            resource,
            name=name,
            body={"status": status},
            namespace=namespace,
            subresource="status",
        )

    def broken() -> None:
        monkeypatch.setattr(writer.writes, "replace_status", unconditional)

    points = [Point(Spot("PATCH", STATUS, nth), Flavor.LATE) for nth in range(1, 6)]
    outcomes = await crashed(api, "recover: pod (trainer)", *points, broken=broken)
    assert any(outcome.wrong for outcome in outcomes)


async def test_names_that_differ_from_life_to_life_are_noticed(
    api: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gang whose pods are named at random is created twice."""
    right = executor.pod_manifests

    def at_random(*args: Any, **rest: Any) -> list[Any]:
        manifests = right(*args, **rest)
        for manifest in manifests:
            manifest["metadata"]["name"] += f"-{id(manifest):x}"
        return manifests

    def broken() -> None:
        monkeypatch.setattr(executor, "pod_manifests", at_random)

    spot = Spot("POST", "/api/v1/namespaces/~/secrets", 0)
    (outcome,) = await crashed(api, "finish (template)", Point(spot, Flavor.AFTER), broken=broken)
    assert outcome.wrong


async def test_a_right_operator_is_not_blamed(api: Kube) -> None:
    points = [Point(Spot("PATCH", STATUS, 0), flavor) for flavor in Flavor]
    outcomes = await crashed(api, "finish (template)", *points)
    assert [(outcome.struck, outcome.wrong) for outcome in outcomes] == [(True, ())] * len(Flavor)
