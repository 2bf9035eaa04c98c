"""Jobs that start after other jobs, on a real API server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.operator.conftest import Site
from tests.kube import phase_is, reason_is

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=1)]

ALL: dict[str, Any] = {"nodes": 1, "gpusPerNode": 8}


def test_a_job_starts_when_its_predecessor_has_succeeded_and_outlives_it(site: Site) -> None:
    site.submit("second", **ALL, after=[{"job": "first"}])
    site.wait("second", reason_is("PredecessorNotFound"))
    site.submit("first", **ALL)
    site.wait("first", phase_is("Running"))
    job = site.wait("second", reason_is("WaitingForJobs"))
    assert job["status"]["message"] == f"starts after {site.namespace}/first has succeeded"
    assert site.pods("second") == []
    site.end_pods("first", exit_code=0)
    job = site.wait("second", phase_is("Running"))
    assert job["status"]["after"] == [{"job": "first", "condition": "Succeeded"}]


def test_a_job_that_has_no_room_yet_does_not_wait_again_for_one_that_was_deleted(
    site: Site,
) -> None:
    site.submit("first", **ALL, ttlSecondsAfterFinished=0)
    site.wait("first", phase_is("Running"))
    site.submit("other", nodes=3, gpusPerNode=8)
    site.wait("other", phase_is("Running"))
    site.submit("second", nodes=4, gpusPerNode=8, after=[{"job": "first"}])
    site.wait("second", reason_is("WaitingForJobs"))
    site.end_pods("first", exit_code=0)
    site.kube.wait("trainingjobs", "first", site.namespace, lambda job: job is None)
    site.wait("second", lambda job: bool((job or {}).get("status", {}).get("after")))
    site.end_pods("other", exit_code=0)
    site.wait("second", phase_is("Running"))


def test_a_failed_predecessor_says_what_to_do(site: Site) -> None:
    site.submit("first", **ALL, recovery={"maxRestarts": 0})
    site.submit("second", **ALL, after=[{"job": "first"}])
    site.submit("anyway", **ALL, after=[{"job": "first", "condition": "Finished"}])
    site.wait("first", phase_is("Running"))
    site.end_pods("first", exit_code=1)
    site.wait("anyway", phase_is("Running"))
    job = site.wait("second", reason_is("PredecessorFailed"))
    assert "delete it and create it again" in job["status"]["message"]
    site.kube.delete("trainingjobs", "first", site.namespace)
    site.wait("second", reason_is("PredecessorNotFound"))


def test_of_a_sweep_so_many_run_at_a_time(site: Site) -> None:
    once = {"name": "lr", "maxParallel": 1}
    site.submit("lr-0", **ALL, sweep=once)
    site.wait("lr-0", phase_is("Running"))
    for name in ("lr-1", "lr-2"):
        site.submit(name, **ALL, sweep=once)
        job = site.wait(name, reason_is("SweepLimit"))
        assert job["status"]["message"].endswith(f"waits for one of {site.namespace}/lr-0")
    # The limit is a field like any other: it may grow while the job waits.
    body = {"spec": {"sweep": {"maxParallel": 2}}}
    site.kube.patch("trainingjobs", "lr-2", body, site.namespace)
    site.wait("lr-2", phase_is("Running"))
    for name in ("lr-0", "lr-2"):
        assert site.job("lr-1")["status"]["reason"] == "SweepLimit"
        site.end_pods(name, exit_code=0)
    site.wait("lr-1", phase_is("Running"))


def test_the_second_job_of_a_checkpoint_folder_waits_for_the_end_of_the_first(site: Site) -> None:
    def placed(job: dict[str, Any] | None) -> bool:
        return bool((job or {}).get("status", {}).get("assignment"))

    folder = {
        "trainer": {"globalBatchSize": 96},
        "checkpoint": {"claimName": "checkpoints", "path": "shared"},
    }
    site.submit("first", **ALL, **folder)
    site.wait("first", placed)
    site.submit("second", **ALL, **folder)
    job = site.wait("second", reason_is("CheckpointFolderInUse"))
    assert f"held by {site.namespace}/first" in job["status"]["message"]
    site.kube.delete("trainingjobs", "first", site.namespace)
    site.wait("second", placed)


def test_a_job_whose_queue_is_deleted_is_told_at_once_and_until_it_is_back(site: Site) -> None:
    def orphaned(truth: str) -> Callable[[dict[str, Any] | None], bool]:
        return lambda job: any(
            (each["type"], each["status"]) == ("Orphaned", truth)
            for each in (job or {}).get("status", {}).get("conditions", ())
        )

    site.submit("stays", **ALL)
    site.wait("stays", phase_is("Running"))
    queue = site.kube.get("trainingqueues", site.queue, None)
    site.kube.delete("trainingqueues", site.queue, None)
    job = site.wait("stays", orphaned("True"))
    assert job["status"]["phase"] == "Running"
    metadata = {"name": site.queue}
    site.kube.create({**queue, "metadata": metadata, "status": {}})
    site.wait("stays", orphaned("False"))
