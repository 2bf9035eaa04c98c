"""What an owner may ask for beyond whole victims: surplus first, and jobs that move."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from drumline_contract import Progress
from tests.integration.operator.conftest import HIGH, HIGH_CLASS, Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, Kube, phase_is
from tests.operator_process import OperatorProcess
from tools.cluster.kwok import fake_node

pytestmark = [
    pytest.mark.usefixtures("no_operator"),
    pytest.mark.extended(keep=4, of="operators of a test"),
]

SAVED = Progress(step=30, total_steps=100, checkpoint_step=30, checkpoint_digest="digest-30")
CHOICES = {"surplus": True, "moveBack": True, "moves": {"gpuSeconds": 1_000_000}}


@pytest.fixture(autouse=True)
def willing_operator(api: Kube, tmp_path: Path) -> Iterator[None]:
    """An operator whose owner allows all of it."""
    api.ensure(HIGH_CLASS)
    operator = OperatorProcess(
        kubeconfig=api.kubeconfig,
        folder=tmp_path,
        settings={"DRUMLINE_SCHEDULING": json.dumps(CHOICES)},
    )
    operator.start()
    yield
    operator.stop()


def places(job: Json | None) -> dict[str, Any]:
    return (job or {}).get("status", {}).get("assignment") or {}


def test_an_elastic_gang_gives_its_surplus_up_and_trains_on(site: Site) -> None:
    with Trainers(site, "gang", saves=SAVED) as gang:
        gang.submit(nodes=4, minNodes=2)
        gang.attend("0-g1", "1-g1", "2-g1", "3-g1")
        gang.running(1)
        site.submit("high", nodes=2, gpusPerNode=8, priorityClassName=HIGH)
        assert not gang.noticed("0-g1").leave
        smaller = gang.running(2)
        assert smaller["status"]["ready"] == "2/2"
        assert smaller["status"]["checkpoint"]["step"] == SAVED.checkpoint_step
        site.wait("high", phase_is("Running"))
        assert len(gang.agents["gang-0-g1"].records[-1].members) == 2


@pytest.fixture
def spare_pool(site: Site) -> Iterator[str]:
    """A pool of one node, that the site's queue may use too."""
    name = f"{site.pool}-spare"
    last = max(int(node.rpartition("-")[2]) for node in site.nodes)
    node = fake_node(last + 100, gpus=8, nodes_per_rack=2)
    node["metadata"]["labels"]["drumline.test/spare"] = site.pool
    site.kube.create(node)
    site.kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "GpuPool",
            "metadata": {"name": name},
            "spec": {"nodeSelector": {"drumline.test/spare": site.pool}},
        }
    )
    quotas = [{"gpuPool": pool, "nominalGpus": 32} for pool in (site.pool, name)]
    site.kube.patch("trainingqueues", site.queue, {"spec": {"quotas": quotas}})
    yield name
    site.kube.delete("gpupools", name)
    site.kube.delete("nodes", node["metadata"]["name"])


def test_a_job_moves_to_the_pool_it_would_rather_have(site: Site, spare_pool: str) -> None:
    site.submit("holder", nodes=4, gpusPerNode=8)
    site.wait("holder", phase_is("Running"))
    site.kube.create(
        {
            "apiVersion": "drumline.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "mover", "namespace": site.namespace},
            "spec": {
                "queue": site.queue,
                "gpuPools": [site.pool, spare_pool],
                "gpusPerNode": 8,
                "template": {"image": "any:1", "command": ["true"]},
            },
        }
    )
    before = site.wait("mover", phase_is("Running"))
    assert places(before)["gpuPool"] == spare_pool
    site.kube.delete("trainingjobs", "holder", site.namespace)
    after = site.wait(
        "mover", lambda job: phase_is("Running")(job) and places(job).get("gpuPool") == site.pool
    )
    assert "nominated" not in after["status"]
    assert "disruption" not in after["status"]
