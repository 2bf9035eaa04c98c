"""The planner and the operator: sizes and layouts that ranks choose, measured step parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drumline_contract import Progress, StepPart, StepPartSeconds
from tests.integration.operator.conftest import Site
from tests.integration.operator.trainers import Trainers
from tests.kube import Json, Kube
from tests.operator_process import OperatorProcess

pytestmark = pytest.mark.extended(keep=5, of="corners of a cluster")

LLAMA: Json = {
    "model": "llama-8b",
    "precision": "bf16",
    "sequenceLength": 8192,
    "globalBatchSize": 8,
    "parallelism": {"mode": "Auto"},
}
LARGE = Progress(step=1, total_steps=100, layout="FSDP32, predicted")
SMALL = Progress(step=2, total_steps=100, layout="FSDP4 · TP4, predicted")
SLOW_NETWORK = (
    StepPartSeconds(part=StepPart.COMPUTE, measured=1.0, predicted=1.0),
    StepPartSeconds(part=StepPart.DATA, measured=0.5, predicted=0.25),
)


@pytest.fixture
def prompt(
    api: Kube, session_operator: OperatorProcess, tmp_path: Path
) -> Iterator[OperatorProcess]:
    """Instead of the usual operator one that writes figures every second."""
    if session_operator.process is not None:
        session_operator.stop()
    settings = {"DRUMLINE_PROGRESS_SECONDS": "1"}
    operator = OperatorProcess(kubeconfig=api.kubeconfig, folder=tmp_path, settings=settings)
    operator.start()
    yield operator
    operator.stop()


@pytest.mark.usefixtures("operator")
def test_a_gang_shrinks_to_a_size_that_has_a_layout_which_its_status_follows(site: Site) -> None:
    """Of 4 nodes one is lost. On 3 no layout splits the 8 samples; on 2 tensors share them.

    Figures are due once a minute; the layout of another size is not waited for so long.
    """
    with Trainers(site, "gang", saves=Progress(step=30, checkpoint_step=30)) as gang:
        gang.submit(nodes=4, minNodes=1, trainer=LLAMA)
        gang.attend("0-g1", "1-g1", "2-g1", "3-g1")
        first = gang.running(1)
        leader = gang.agents["gang-0-g1"]
        leader.change(progress=LARGE)
        site.wait("gang", lambda job: (job or {})["status"].get("layout") == LARGE.layout)
        places = first["status"]["assignment"]
        site.kube.delete("nodes", places.get("prefix", "") + places["nodes"][3])
        smaller = gang.running(2)
        assert len(smaller["status"]["assignment"]["nodes"]) == 2
        leader.change(progress=SMALL)
        site.wait("gang", lambda job: (job or {})["status"].get("layout") == SMALL.layout)


@pytest.mark.usefixtures("prompt")
def test_measured_step_parts_of_a_running_job_reach_its_pool(site: Site) -> None:
    with Trainers(site, "gang") as gang:
        gang.submit(nodes=1)
        gang.attend("0-g1")
        gang.running(1)
        gang.agents["gang-0-g1"].change(progress=Progress(step=5, step_parts=SLOW_NETWORK))
        wanted = [{"part": "compute", "percent": 100}, {"part": "data", "percent": 200}]
        site.kube.wait(
            "gpupools",
            site.pool,
            None,
            lambda pool: (pool or {}).get("status", {}).get("stepParts") == wanted,
        )
