"""Gangs on nodes that the real Karpenter makes: `make test-all WHAT=karpenter`.

KWOK stands for the kubelets. Moments are printed (`-rP`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.integration.operator.conftest import Site
from tests.integration.operator.karpenter.conftest import (
    PATIENCE_SECONDS,
    TAINT,
    KarpenterSite,
)
from tests.kube import Json, phase_is, reason_is

pytestmark = pytest.mark.usefixtures("operator")
Grow = Callable[..., KarpenterSite]
TEMPLATE: Json = {
    "image": "any:1",
    "command": ["true"],
    "tolerations": [{"key": TAINT["key"], "operator": "Exists"}],
}


def submit(site: Site, name: str, *, nodes: int, gpus: int = 8) -> None:
    site.submit(name, nodes=nodes, gpusPerNode=gpus, template=TEMPLATE)


def runs(site: Site, name: str) -> Json:
    return site.wait(name, phase_is("Running"), seconds=PATIENCE_SECONDS)


def test_a_gang_of_32_gets_exactly_32_nodes_and_its_end_takes_them_away(grow: Grow) -> None:
    growing = grow(quota=256)
    site = growing.site
    submit(site, "over", nodes=33)
    submitted = time.monotonic()
    submit(site, "gang", nodes=32)
    runs(site, "gang")
    print(f"a gang of 32 runs {time.monotonic() - submitted:.0f} s after it was submitted")
    used = {pod["spec"]["nodeName"] for pod in site.pods("gang")}
    assert used == {node["metadata"]["name"] for node in growing.nodes()}
    assert len(used) == 32
    growing.wait_placeholders(0)
    site.wait("over", reason_is("ExceedsQuota"))
    ended = time.monotonic()
    site.end_pods("gang")
    site.wait("gang", phase_is("Succeeded"), seconds=PATIENCE_SECONDS)
    growing.wait_nodes(0)
    print(f"its nodes are gone {time.monotonic() - ended:.0f} s after its end")
    assert growing.created == 32


def test_20_of_32_nodes_are_given_back_at_the_timeout(grow: Grow) -> None:
    growing = grow(nodes=20, timeout=20)
    site = growing.site
    submitted = time.monotonic()
    submit(site, "gang", nodes=32)
    growing.wait_nodes(20)
    growing.wait_placeholders(0)
    print(f"given up {time.monotonic() - submitted:.0f} s after it was submitted")
    growing.wait_nodes(0)
    print(f"its nodes are gone {time.monotonic() - submitted:.0f} s after it was submitted")
    assert site.job("gang")["status"]["phase"] == "Pending"
    assert site.pods("gang") == []


def test_of_two_gangs_that_race_for_four_nodes_one_runs_and_then_the_other(grow: Grow) -> None:
    growing = grow(nodes=4)
    site = growing.site
    for name in ("left", "right"):
        submit(site, name, nodes=4)
    jobs = site.kube.wait_all(
        "trainingjobs",
        site.namespace,
        lambda jobs: any(map(phase_is("Running"), jobs)),
        seconds=PATIENCE_SECONDS,
    )
    names = {job["metadata"]["name"]: phase_is("Running")(job) for job in jobs}
    assert sorted(names.values()) == [False, True]
    first, second = sorted(names, key=lambda name: not names[name])
    assert site.pods(second) == []
    site.end_pods(first)
    site.wait(first, phase_is("Succeeded"), seconds=PATIENCE_SECONDS)
    runs(site, second)
    growing.wait_placeholders(0)
    assert len(growing.nodes()) == 4


def test_a_reclaimed_node_is_replaced_and_the_gang_goes_on(grow: Grow) -> None:
    growing = grow()
    site = growing.site
    submit(site, "gang", nodes=3)
    runs(site, "gang")
    (lost, *kept) = sorted(pod["spec"]["nodeName"] for pod in site.pods("gang"))
    (claim,) = [
        each["metadata"]["name"]
        for each in site.kube.list("nodeclaims")
        if each["status"].get("nodeName") == lost
    ]
    reclaimed = time.monotonic()
    site.kube.delete("nodeclaims", claim)  # as its provider does when a spot machine is taken back
    site.kube.wait("nodes", lost, None, lambda node: node is None, seconds=PATIENCE_SECONDS)

    def runs_elsewhere(pods: list[Json]) -> bool:
        used = {pod["spec"]["nodeName"] for pod in pods}
        ready = all(pod["status"].get("phase") == "Running" for pod in pods)
        return len(pods) == len(used) == 3 and lost not in used and ready

    site.kube.wait_all("pods", site.namespace, runs_elsewhere, seconds=PATIENCE_SECONDS)
    runs(site, "gang")
    print(f"the gang runs again {time.monotonic() - reclaimed:.0f} s after its node was reclaimed")
    assert {pod["spec"]["nodeName"] for pod in site.pods("gang")} >= set(kept)
    assert growing.created == 4
    growing.wait_placeholders(0)


def test_karpenter_does_not_consolidate_a_node_with_one_used_gpu(grow: Grow) -> None:
    """It said so itself: without the annotation it evicts such a pod within a minute."""
    growing = grow()
    site = growing.site
    submit(site, "small", nodes=1, gpus=1)
    runs(site, "small")
    (pod,) = site.pods("small")
    node = pod["spec"]["nodeName"]

    def was_asked(events: list[Json]) -> bool:
        return any(
            each["reason"] == "DisruptionBlocked"
            and each["involvedObject"]["name"] == node
            and "karpenter.sh/do-not-disrupt" in each["message"]
            for each in events
        )

    site.kube.wait_all("events", None, was_asked, seconds=PATIENCE_SECONDS)
    (still,) = site.pods("small")
    assert still["metadata"]["uid"] == pod["metadata"]["uid"]
    assert growing.created == 1
