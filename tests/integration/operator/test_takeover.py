"""Two operators: the one that stands by takes over when the other is gone without a word."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operator.conftest import Site
from tests.kube import Json, Kube, phase_is
from tests.operator_process import OperatorProcess

pytestmark = [
    pytest.mark.usefixtures("no_operator"),
    pytest.mark.extended(keep=4, of="operators of a test"),
]

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


def has_nodes(job: Json | None) -> bool:
    return bool((job or {}).get("status", {}).get("assignment"))


def has_reason(job: Json | None) -> bool:
    return bool((job or {}).get("status", {}).get("reason"))


def event_times(process: OperatorProcess, event: str) -> list[str]:
    return [line["time"] for line in process.log if line.get("event") == event]


def test_the_standby_takes_over_within_the_lease(
    site: Site, replicas: list[OperatorProcess]
) -> None:
    site.submit("before", nodes=1, gpusPerNode=8)
    site.wait("before", phase_is("Running"))
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
    (elected,) = [line for line in standby.log if line.get("event") == "elected"]
    assert elected["warm"]
    assert event_times(standby, "synced") < event_times(standby, "elected")


def test_the_standby_knows_the_last_places_of_the_leader_before(
    site: Site, replicas: list[OperatorProcess]
) -> None:
    """Nothing is booked twice, however late the standby's watches were."""
    site.submit("first", nodes=3, gpusPerNode=8)
    site.wait("first", phase_is("Running"))
    (leader,) = [process for process in replicas if has_lines(process, "elected")]
    site.submit("second", nodes=1, gpusPerNode=8)
    site.wait("second", has_nodes)
    leader.kill()
    site.submit("third", nodes=1, gpusPerNode=8)
    site.wait("third", has_reason)
    assert "assignment" not in site.job("third")["status"]
    site.wait("second", phase_is("Running"))
    site.kube.delete("trainingjobs", "first", site.namespace)
    site.wait("third", phase_is("Running"))
