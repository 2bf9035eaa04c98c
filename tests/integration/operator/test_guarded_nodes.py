"""Nodes of a guarded pool while a gang is promised places there: kube-scheduler binds nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.integration.operator import patient_guard
from tests.integration.operator.chart_rights import NAMESPACE, token_of
from tests.integration.operator.conftest import HIGH_CLASS, Site, release_lease
from tests.integration.operator.guard_race import (
    Race,
    end_deployments,
    tainted,
    untainted,
    watching,
)
from tests.kube import Json, Kube
from tests.operator_process import OperatorProcess
from tests.patience import HANG_SECONDS
from tools.cluster.rest import ApiStatusError

pytestmark = [
    pytest.mark.usefixtures("no_operator"),
    pytest.mark.extended(keep=4, of="operators of a test"),
]

ROUNDS = int(os.environ.get("DRUMLINE_RACE_ROUNDS") or 2)
SEED = int(os.environ.get("DRUMLINE_RACE_SEED") or 17)
SETTLE_SECONDS = float(os.environ.get("DRUMLINE_RACE_SETTLE_SECONDS") or 5)
"""The product's second is for a kube-scheduler that no test starves."""
IS_GUARDED = os.environ.get("DRUMLINE_RACE_GUARDED") != "false"
"""False: to count what the gang loses without the taint. The test fails then."""


@pytest.fixture(autouse=True)
def high_class(api: Kube) -> None:
    api.ensure(HIGH_CLASS)


@contextmanager
def guarding(site: Site, folder: Path, *, settle_seconds: float = 1) -> Generator[OperatorProcess]:
    settings = {"DRUMLINE_GUARDED_POOLS": site.pool} if IS_GUARDED else {}
    operator = OperatorProcess(
        kubeconfig=site.kube.kubeconfig,
        folder=folder,
        settings=settings,
        program=(patient_guard.__name__, str(settle_seconds)),
    )
    operator.start()
    try:
        yield operator
    finally:
        if operator.process is not None:
            operator.stop()


def test_a_preempting_gang_wins_against_a_deployment_that_scales(
    site: Site, tmp_path: Path
) -> None:
    race = Race(site=site, random=Random(SEED), patience=HANG_SECONDS if IS_GUARDED else 10)
    with guarding(site, tmp_path, settle_seconds=SETTLE_SECONDS), watching(site) as bound:
        race.prepare()
        won = sum(race.round(number) for number in range(ROUNDS))
        end_deployments(site)
        site.kube.wait_all("nodes", None, untainted, labels=f"drumline.test/site={site.namespace}")
    print(f"{won} of {ROUNDS} rounds won, {len(bound.excesses)} moments of overcommitment")
    assert (won, bound.excesses, bound.refused) == (ROUNDS, [], [])


def all_are_tainted(nodes: list[Json]) -> bool:
    return sum(map(tainted, nodes)) == 4


def test_taints_outlive_neither_the_promise_nor_a_leader_that_crashes(
    site: Site, tmp_path: Path
) -> None:
    labels = f"drumline.test/site={site.namespace}"
    other = {"key": "drumline.test/other", "effect": "PreferNoSchedule", "value": "kept"}
    with guarding(site, tmp_path, settle_seconds=600) as operator:  # nothing starts meanwhile
        body = {"spec": {"taints": [other]}}
        site.kube.patch("nodes", site.nodes[0], body)
        site.submit("gang", nodes=4, gpusPerNode=8)
        site.kube.wait_all("nodes", None, all_are_tainted, labels=labels)
        operator.kill()
        release_lease(site.kube)
        site.kube.delete("trainingjobs", "gang", site.namespace)
    with guarding(site, tmp_path):
        nodes = site.kube.wait_all("nodes", None, untainted, labels=labels)
    assert [node["spec"]["taints"] for node in nodes if node["spec"].get("taints")] == [[other]]


def test_the_right_to_patch_nodes_is_for_this_taint_alone(site: Site, api: Kube) -> None:
    account = f"system:serviceaccount:{NAMESPACE}:drumline-operator"
    name, other = site.nodes[0], {"key": "drumline.test/other", "effect": "NoSchedule"}
    promised = {"key": "drumline.dev/promised", "effect": "NoSchedule"}
    with token_of(api, "drumline-operator", f"guardedPools={{{site.pool}}}"):
        operator = Kube(api.kubeconfig, user=account)

        def answer(body: Json) -> int:
            try:
                operator.patch("nodes", name, body)
            except ApiStatusError as error:
                return error.code
            return 200

        def is_refused(body: Json) -> bool:
            code = answer(body)
            assert code in (200, 422)
            return code == 422

        def spec(**fields: object) -> Json:
            return {"spec": fields}

        label = {"metadata": {"labels": {"drumline.test/mark": "made"}}}
        deadline = time.monotonic() + HANG_SECONDS
        while answer(label) != 422:  # the API server takes rights and policies in silently
            assert time.monotonic() < deadline
            time.sleep(0.1)
            site.kube.patch("nodes", name, {"metadata": {"labels": {"drumline.test/mark": None}}})
        assert is_refused(spec(unschedulable=True))
        assert is_refused(spec(taints=[other]))
        assert is_refused(spec(taints=[{**promised, "effect": "NoExecute"}]))
        assert is_refused({"metadata": {"annotations": {"drumline.test/mark": "made"}}})
        site.kube.patch("nodes", name, spec(taints=[other]))
        assert is_refused(spec(taints=[promised]))  # and the other is gone
        assert not is_refused(spec(taints=[other, promised]))
        assert not is_refused(spec(taints=[other]))
        operator.close()
