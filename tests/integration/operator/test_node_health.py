"""A node that agents of two tenants call slow takes no new pods; on the word of one it does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drumline_contract import SlowMember
from tests.integration.operator.chart_rights import NAMESPACE, token_of
from tests.integration.operator.conftest import Site, a_claim, a_volume_for, next_nodes
from tests.integration.operator.proxy import Proxy
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, phase_is
from tests.operator_process import OperatorProcess
from tests.patience import HANG_SECONDS
from tools.cluster.kwok import fake_node

pytestmark = pytest.mark.usefixtures("operator")


@pytest.fixture
def roomy(site: Site) -> Iterator[Site]:
    """A pool of five nodes, three of which take pods: one may be quarantined."""
    node = fake_node(next_nodes(), gpus=8, nodes_per_rack=2)
    node["metadata"]["labels"]["drumline.test/site"] = site.pool
    node["spec"] = {**node.get("spec", {}), "unschedulable": True}
    site.kube.create(node)
    site.kube.patch("nodes", site.nodes[3], {"spec": {"unschedulable": True}})
    yield site
    site.kube.delete("nodes", node["metadata"]["name"])


@pytest.fixture
def neighbour(roomy: Site) -> Iterator[Site]:
    """Another tenant of the same pool."""
    name = f"{roomy.namespace}-neighbour"
    api = roomy.kube
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    claim = a_claim("checkpoints", namespace=name)
    api.create(a_volume_for(claim))
    api.create(claim)
    yield replace(roomy, namespace=name)
    for job in api.list("trainingjobs", name):
        api.delete("trainingjobs", job["metadata"]["name"], name)


def entry_of(site: Site, node: str, until: Callable[[Json], bool]) -> Json:
    """What the pool's status says of a node, once it is so."""

    def known(pool: Json | None) -> Json:
        entries: list[Json] = (pool or {}).get("status", {}).get("nodeHealth", [])
        return next((entry for entry in entries if entry["node"] == node), {})

    return known(
        site.kube.wait(
            "gpupools", site.pool, None, lambda pool: bool(known(pool)) and until(known(pool))
        )
    )


def run_slowly(site: Site, node: str, until: Callable[[Json], bool]) -> Json:
    """A gang that finds this node slow trains, and ends once its pool's status is so."""
    with Trainers(site, "gang") as gang:
        gang.submit(nodes=3)
        gang.attend("0-g1", "1-g1", "2-g1")
        places = gang.running(1)["status"]["assignment"]
        names = [places.get("prefix", "") + rest for rest in places["nodes"]]
        slow = (SlowMember(index=names.index(node), percent=34, steps=60),)
        gang.agents["gang-0-g1"].change(slow=slow)
        entry = entry_of(site, node, until)
        gang.running(1)  # nothing is ended for it
        site.kube.delete("trainingjobs", "gang", site.namespace)
        site.kube.wait("trainingjobs", "gang", site.namespace, lambda job: job is None)
    return entry


def says(text: str) -> Callable[[Any], bool]:
    return lambda job: text in ((job or {}).get("status") or {}).get("message", "")


def is_placed(job: Any) -> bool:
    return bool(((job or {}).get("status") or {}).get("assignment"))


def test_a_node_that_is_slow_for_two_tenants_takes_no_new_pods(
    roomy: Site, neighbour: Site, session_operator: OperatorProcess
) -> None:
    slow = roomy.nodes[0]
    entry = run_slowly(roomy, slow, lambda _: True)
    assert "quarantinedAt" not in entry
    assert [each["by"] for each in entry["evidence"]] == [roomy.namespace]

    entry = run_slowly(neighbour, slow, lambda entry: "quarantinedAt" in entry)
    assert entry["message"].count("Slow (by 30 %) for jobs in ") == 2
    roomy.kube.wait_all(
        "events", "default", lambda events: any(_is_about(event, slow) for event in events)
    )

    # Another leader knows it from the pool's status, and the pool's owner has the last word.
    session_operator.stop()
    session_operator.start()
    roomy.submit("all", nodes=3, gpusPerNode=8)
    message = "3 of 5 nodes cannot be used (2 cordoned, 1 quarantined)"
    roomy.wait("all", says(message))
    trusted = {"spec": {"nodeHealth": {"trustedNodes": [slow]}}}
    roomy.kube.patch("gpupools", roomy.pool, trusted)
    roomy.wait("all", is_placed)


def _is_about(event: Json, node: str) -> bool:
    about = event.get("regarding") or event.get("involvedObject") or {}
    return (event.get("reason"), about.get("name")) == ("NodeQuarantined", node)


def test_a_check_takes_idle_nodes_alone_and_leaves_no_job_when_it_is_stopped(
    site: Site, tmp_path: Path
) -> None:
    """With the rights of the chart's CronJob, which sees that a Pod outside of jobs has a node."""
    devices = {"limits": {"nvidia.com/gpu": "8"}}
    container = {"name": "main", "image": "any:1", "resources": devices}
    site.kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "foreign", "namespace": site.namespace},
            "spec": {"nodeName": site.nodes[0], "containers": [container]},
        }
    )

    def is_charged(pool: Json | None) -> bool:
        return (pool or {}).get("status", {}).get("usedGpus") == 8

    site.kube.wait("gpupools", site.pool, None, is_charged)
    account, rights = "drumline-node-checks", f"nodeChecks.pools={{{site.pool}}}"
    schedule = "nodeChecks.schedule=@daily"
    with (
        token_of(site.kube, account, schedule, rights) as token,
        Proxy(site.kube.kubeconfig, tmp_path, token=token) as proxy,
    ):
        options = ("--queue", site.queue, "--image", "trainer:1", "-n", NAMESPACE)
        check = subprocess.Popen(
            (sys.executable, "-m", "drumline", "check-nodes", site.pool, *options),
            env={**os.environ, "KUBECONFIG": str(proxy.kubeconfig)},
            stderr=subprocess.PIPE,
        )
        (job,) = site.kube.wait_all(
            "trainingjobs", NAMESPACE, lambda jobs: any(map(phase_is("Running"), jobs))
        )
        check.terminate()
        _, said = check.communicate(timeout=HANG_SECONDS)
    assert b"was stopped" in said
    assert job["spec"]["nodes"] == len(site.nodes) - 1
    assert job["spec"]["user"] == f"system:serviceaccount:{NAMESPACE}:{account}"
    site.kube.wait_all("trainingjobs", NAMESPACE, lambda jobs: not jobs)
    site.kube.delete("pods", "foreign", site.namespace, grace=0)
