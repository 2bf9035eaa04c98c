"""A job that the scheduler cannot decide about holds up no other job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operator.conftest import Site, next_nodes
from tests.integration.operator.trainers import Trainers
from tests.kube import Kube, phase_is, reason_is
from tests.operator_process import ROOT, OperatorProcess
from tools.cluster.kwok import fake_node

pytestmark = pytest.mark.extended(keep=4, of="operators of a test")

BLOCKS = {"drumline.test/block": "b0"}


@pytest.fixture
def faulty_operator(api: Kube, no_operator: None, tmp_path: Path) -> Iterator[OperatorProcess]:
    del no_operator
    operator = OperatorProcess(
        kubeconfig=api.kubeconfig,
        folder=tmp_path,
        settings={"DRUMLINE_CAPTURE_FILE": str(tmp_path / "drumline-capture.json")},
        program=("tests.integration.operator.faulty_operator",),
    )
    operator.start()
    yield operator
    operator.stop()


@pytest.fixture
def blocks(site: Site) -> Site:
    """The site with blocks above its racks: the four nodes in block b0, the last one alone there
    in its rack.
    """
    for i, name in enumerate(site.nodes):
        labels = {"drumline.test/block": "b0", "drumline.dev/rack": "r1" if i == 0 else "r9"}
        site.kube.patch("nodes", name, {"metadata": {"labels": labels}})
    levels = [
        {"name": "block", "nodeLabel": "drumline.test/block"},
        {"name": "rack", "nodeLabel": "drumline.dev/rack"},
    ]
    site.kube.patch("gpupools", site.pool, {"spec": {"topologyLevels": levels}})
    quotas = [{"gpuPool": site.pool, "nominalGpus": 100}]
    site.kube.patch("trainingqueues", site.queue, {"spec": {"quotas": quotas}})
    return site


def add_node(site: Site, *, block: str, rack: str) -> str:
    node = fake_node(next_nodes(), gpus=8, nodes_per_rack=2)
    node["metadata"]["labels"] |= {
        "drumline.test/site": site.namespace,
        "drumline.test/block": block,
        "drumline.dev/rack": rack,
    }
    site.kube.create(node)
    return str(node["metadata"]["name"])


@pytest.mark.usefixtures("operator")
def test_a_job_with_slices_that_lost_a_rack_is_repaired_and_others_start(blocks: Site) -> None:
    """Position 1 needs a node of the block, and the rack with two nodes is for the other slice."""
    site = blocks
    with Trainers(site, "sliced") as gang:
        gang.submit(nodes=4, topology={"slices": [{"level": "block", "nodes": 2}]})
        gang.attend("0-g1", "1-g1", "2-g1", "3-g1")
        gang.running(1)
        new = [add_node(site, block="b0", rack=rack) for rack in ("r1", "r1", "r0")]
        for name in site.nodes[1:]:
            site.kube.delete("nodes", name)
        try:
            gang.attend("0-g1", "1-g2", "2-g2", "3-g2")
            gang.running(2)
            new.append(add_node(site, block="b1", rack="r5"))
            site.submit("other", nodes=1, gpusPerNode=8)
            site.wait("other", phase_is("Running"))
        finally:
            for name in new:
                site.kube.delete("nodes", name)


def test_an_exception_on_one_job_is_its_condition_and_all_others_start(
    site: Site, faulty_operator: OperatorProcess, tmp_path: Path
) -> None:
    site.submit("unlucky-start", nodes=1, gpusPerNode=8)
    site.submit("good", nodes=1, gpusPerNode=8)
    site.wait("good", phase_is("Running"))
    job = site.wait("unlucky-start", reason_is("SchedulerError"))
    message = job["status"]["message"]
    assert "stage admit: PlantedError: no start (faulty_operator.py:" in message
    placed = next(each for each in job["status"]["conditions"] if each["type"] == "Placed")
    assert (placed["status"], placed["reason"]) == ("False", "SchedulerError")

    site.submit("unlucky-write", nodes=1, gpusPerNode=8)
    site.submit("later", nodes=1, gpusPerNode=8)
    site.wait("later", phase_is("Running"))
    assert site.job("unlucky-write").get("status", {}).get("phase") != "Running"
    faults = [line for line in faulty_operator.log if line["event"] == "scheduler_fault"]
    assert {line["stage"] for line in faults} == {"admit", "commit"}
    assert len(faults) == 2, "each is set aside after its first exception"
    assert not [line for line in faulty_operator.log if line["event"] == "cycle_failed"]

    capture = tmp_path / f"drumline-fault-{faults[0]['seed']}.json"
    document = json.loads(capture.read_text())["capture"]
    assert faults[0]["seed"] in message
    assert [fault["key"] for fault in document["decisions"]["faults"]] == [
        f"{site.namespace}/unlucky-start"
    ]
    done = subprocess.run(  # the replay has no planted exception: it says what would be decided
        [sys.executable, "-m", "drumline", "replay", str(capture)],
        env={"PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "placed[" in done.stdout
    assert "unlucky-start" in done.stdout


def test_an_exception_on_a_broken_job_leaves_it_as_it_is_and_all_others_start(
    site: Site, faulty_operator: OperatorProcess
) -> None:
    with Trainers(site, "unlucky-repair") as gang:
        gang.submit(nodes=2)
        gang.attend("0-g1", "1-g1")
        gang.running(1)
        before = gang.uids()
        site.kube.delete("pods", "unlucky-repair-1-g1", site.namespace, grace=0)
        site.wait("unlucky-repair", reason_is("SchedulerError"))
        site.submit("good", nodes=2, gpusPerNode=8)
        site.wait("good", phase_is("Running"))
        assert gang.uids().keys() == {"unlucky-repair-0-g1"}
        assert gang.uids()["unlucky-repair-0-g1"] == before["unlucky-repair-0-g1"]
    faults = [line for line in faulty_operator.log if line["event"] == "scheduler_fault"]
    assert [line["stage"] for line in faults] == ["repair"]
