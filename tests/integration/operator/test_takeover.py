"""Two operators: the one that stands by takes over when the other is gone without a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operator.conftest import Site
from tests.kube import Kube, phase_is
from tests.operator_process import OperatorProcess

pytestmark = pytest.mark.usefixtures("no_operator")

LEASE_SECONDS = 13
"""The shortest lease that the operator accepts."""


@pytest.fixture
def replicas(api: Kube, tmp_path: Path) -> Iterator[list[OperatorProcess]]:
    """Two operators of one installation."""
    settings = {"DRUMLINE_LEASE_SECONDS": str(LEASE_SECONDS)}
    processes: list[OperatorProcess] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        process = OperatorProcess(
            kubeconfig=api.kubeconfig, folder=tmp_path / name, settings=settings
        )
        process.start()
        processes.append(process)
    yield processes
    for process in processes:
        if process.process is not None:
            process.stop()


def has_lines(process: OperatorProcess, event: str) -> bool:
    return any(line.get("event") == event for line in process.log)


def test_the_standby_takes_over_within_the_lease(
    site: Site, replicas: list[OperatorProcess]
) -> None:
    site.submit("before", nodes=1, gpusPerNode=8)
    site.wait("before", phase_is("Running"), seconds=60)
    leading = [process for process in replicas if has_lines(process, "elected")]
    assert len(leading) == 1
    (leader,) = leading
    (standby,) = [process for process in replicas if process is not leader]
    first = site.job("before")["status"]["epoch"]
    leader.kill()  # as with a dead node: nothing is released
    site.submit("after", nodes=1, gpusPerNode=8)
    after = site.wait("after", phase_is("Running"), seconds=LEASE_SECONDS + 60)
    assert after["status"]["epoch"] > first
    assert site.job("before")["status"]["phase"] == "Running"
    assert has_lines(standby, "elected")
