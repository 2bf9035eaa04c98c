"""Gangs on nodes that the real Karpenter makes: `make test-all WHAT=karpenter`.

KWOK stands for the kubelets. Moments are printed (`-rP`).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.integration.operator.cluster_autoscaler import NAMESPACE
from tests.integration.operator.conftest import HIGH, HIGH_CLASS, Site, a_claim
from tests.integration.operator.growing_pools import keeping_pods
from tests.integration.operator.karpenter.conftest import (
    PATIENCE_SECONDS,
    TAINT,
    KarpenterSite,
    limits,
)
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, phase_is, reason_is

pytestmark = pytest.mark.usefixtures("operator")
Grow = Callable[..., KarpenterSite]
TEMPLATE: Json = {
    "image": "any:1",
    "command": ["true"],
    "tolerations": [{"key": TAINT["key"], "operator": "Exists"}],
}


TOLERATES_ALL: Json = {**TEMPLATE, "tolerations": [{"operator": "Exists"}]}
STARTUP_TAINT: Json = {"key": "drumline.test/agent-not-ready", "effect": "NoSchedule"}


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
    growing = grow(nodes=20)
    site = growing.site
    submit(site, "gang", nodes=32)
    growing.wait_nodes(20)
    late = time.monotonic()
    body = {"spec": {"autoscaling": {"timeoutSeconds": 1}}}
    site.kube.patch("gpupools", site.pool, body)
    growing.wait_placeholders(0)
    growing.wait_nodes(0)
    print(f"its nodes are gone {time.monotonic() - late:.0f} s after the timeout")
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


def test_nodes_that_stand_ready_for_a_gang_stay_until_the_last_is_there(grow: Grow) -> None:
    growing = grow(nodes=3)
    site = growing.site
    submit(site, "gang", nodes=4)
    ready = {node["metadata"]["name"] for node in growing.wait_nodes(3)}
    growing.wait_blocked(ready, by="nominated for a pending pod")  # they are empty since 5 s

    def says_why(job: Json | None) -> bool:
        message = (job or {}).get("status", {}).get("message", "")
        return "has used up its limit of 24 nvidia.com/gpu" in message

    site.wait("gang", says_why, seconds=PATIENCE_SECONDS)
    growing.patch_pool({"limits": limits(4)})
    raised = time.monotonic()
    runs(site, "gang")
    print(f"it runs {time.monotonic() - raised:.0f} s after the limit allows the last node")
    assert {pod["spec"]["nodeName"] for pod in site.pods("gang")} > ready
    assert growing.created == 4


def test_a_free_node_stays_while_a_victim_on_another_one_saves(grow: Grow) -> None:
    growing = grow(nodes=2, max_nodes=2)
    site = growing.site
    site.kube.ensure(HIGH_CLASS)
    site.kube.create(a_claim("checkpoints", namespace=site.namespace))
    with Trainers(site, "slow") as slow:
        slow.submit(nodes=1, tolerations=TEMPLATE["tolerations"])
        submit(site, "quick", nodes=1)
        slow.attend("0-g1", seconds=PATIENCE_SECONDS)
        slow.running(1, seconds=PATIENCE_SECONDS)
        runs(site, "quick")
        (freed,) = {pod["spec"]["nodeName"] for pod in site.pods("quick")}
        site.submit("high", nodes=2, gpusPerNode=8, template=TEMPLATE, priorityClassName=HIGH)
        slow.noticed("0-g1")
        site.kube.wait_all(
            "pods", NAMESPACE, lambda pods: len(keeping_pods(site.namespace, pods)) == 1
        )
        growing.wait_blocked({freed}, by="nominated for a pending pod")  # empty since 5 s
        slow.saved(step=30)
        runs(site, "high")
    used = {pod["spec"]["nodeName"] for pod in site.pods("high")}
    assert used == {node["metadata"]["name"] for node in growing.nodes()}
    assert freed in used
    assert growing.created == 2
    site.kube.wait_all("pods", NAMESPACE, lambda pods: not keeping_pods(site.namespace, pods))


def test_a_node_is_used_once_its_startup_taint_is_gone_and_not_asked_for_twice(
    grow: Grow,
) -> None:
    growing = grow(startup_taints=(STARTUP_TAINT,))
    site = growing.site
    site.submit("gang", nodes=2, gpusPerNode=8, template=TOLERATES_ALL)

    def are_being_set_up(job: Json | None) -> bool:
        message = (job or {}).get("status", {}).get("message", "")
        return "2 nodes of it are being set up" in message

    site.wait("gang", are_being_set_up, seconds=PATIENCE_SECONDS)
    nodes = site.kube.wait_all(
        "nodes", None, are_ready(2), labels=growing.labels, seconds=PATIENCE_SECONDS
    )
    assert site.pods("gang") == []
    for node in nodes:
        left = [each for each in node["spec"]["taints"] if each["key"] != STARTUP_TAINT["key"]]
        site.kube.patch("nodes", node["metadata"]["name"], {"spec": {"taints": left}})
    untainted = time.monotonic()
    runs(site, "gang")
    print(f"it runs {time.monotonic() - untainted:.0f} s after the last startup taint went")
    assert growing.created == 2


def are_ready(count: int) -> Callable[[list[Json]], bool]:
    """Whether as many nodes are Ready, and say how many GPUs they have."""

    def judged(nodes: list[Json]) -> bool:
        ready = [
            node
            for node in nodes
            if "nvidia.com/gpu" in node["status"].get("allocatable", {})
            and any(
                each["type"] == "Ready" and each["status"] == "True"
                for each in node["status"].get("conditions") or ()
            )
        ]
        return len(ready) == count

    return judged


def test_drift_waits_for_the_end_of_the_gang(grow: Grow) -> None:
    growing = grow()
    site = growing.site
    submit(site, "gang", nodes=2)
    runs(site, "gang")
    before = {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in site.pods("gang")}
    growing.patch_pool({"template": {"metadata": {"annotations": {"drumline.test/new": "yes"}}}})
    site.kube.wait_all(
        "nodeclaims", None, have_drifted(set(before.values())), seconds=PATIENCE_SECONDS
    )
    growing.wait_blocked(set(before.values()), by="karpenter.sh/do-not-disrupt")
    after = {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in site.pods("gang")}
    assert after == before
    assert growing.created == 2
    site.end_pods("gang")
    site.wait("gang", phase_is("Succeeded"), seconds=PATIENCE_SECONDS)
    growing.wait_nodes(0)


def have_drifted(nodes: set[str]) -> Callable[[list[Json]], bool]:
    """Whether Karpenter says of the claims of these nodes that their NodePool has changed."""

    def judged(claims: list[Json]) -> bool:
        drifted = {
            claim["status"].get("nodeName")
            for claim in claims
            for each in claim.get("status", {}).get("conditions") or ()
            if (each["type"], each["status"]) == ("Drifted", "True")
        }
        return nodes <= drifted

    return judged


def test_a_gang_leaves_nodes_that_expire_and_goes_on_on_new_ones(grow: Grow) -> None:
    growing = grow(expire_after="40s")
    site = growing.site
    submit(site, "gang", nodes=2)
    old = {node["metadata"]["name"] for node in growing.wait_nodes(2)}
    growing.patch_pool({"template": {"spec": {"expireAfter": "Never"}}})  # for the next ones
    runs(site, "gang")

    def is_expired(node: Json | None) -> bool:
        return node is None or "deletionTimestamp" in node["metadata"]

    site.kube.wait("nodes", min(old), None, is_expired, seconds=PATIENCE_SECONDS)
    expired = time.monotonic()

    def runs_on_new_nodes(pods: list[Json]) -> bool:
        used = {pod["spec"]["nodeName"] for pod in pods}
        ready = all(pod["status"].get("phase") == "Running" for pod in pods)
        return len(pods) == len(used) == 2 and not used & old and ready

    site.kube.wait_all("pods", site.namespace, runs_on_new_nodes, seconds=PATIENCE_SECONDS)
    runs(site, "gang")
    print(f"all runs on new nodes {time.monotonic() - expired:.0f} s after the first one expired")
    for node in old:
        site.kube.wait("nodes", node, None, lambda each: each is None, seconds=PATIENCE_SECONDS)
    growing.wait_placeholders(0)


def test_karpenter_does_not_consolidate_a_node_with_one_used_gpu(grow: Grow) -> None:
    """It said so itself: without the annotation it evicts such a pod within a minute."""
    growing = grow()
    site = growing.site
    submit(site, "small", nodes=1, gpus=1)
    runs(site, "small")
    (pod,) = site.pods("small")
    node = pod["spec"]["nodeName"]

    growing.wait_blocked({node}, by="karpenter.sh/do-not-disrupt")
    (still,) = site.pods("small")
    assert still["metadata"]["uid"] == pod["metadata"]["uid"]
    assert growing.created == 1
