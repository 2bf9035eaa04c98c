"""A notebook on a real API server: a job is made, looked at, stopped, waited for and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

import drumline_console.notebook as dl
from tests.integration.cli.test_report import without_rights
from tests.kube import Kube
from tests.patience import HANG_SECONDS
from tools.cluster import Cluster


def test_the_life_of_a_job_in_a_notebook(
    control_plane: Cluster, kube: Kube, namespace: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    with dl.connect(kubeconfig=control_plane.kubeconfig, namespace=namespace) as cluster:
        job = cluster.run(
            ["python", "train.py"], nodes=2, gpus=8, folder=tmp_path, image="any:1", queue=namespace
        )
        assert [row["name"] for row in cluster.jobs().rows()] == [job.name]
        assert (job.row.gpus, job.row.queue, job.is_over) == (16, namespace, False)
        blocked = {"phase": "Pending", "reason": "QuotaExhausted", "message": "<b>no room</b>"}
        kube.patch_status("trainingjobs", job.name, blocked, namespace)
        assert "&lt;b&gt;no room&lt;/b&gt;" in cluster.why(job.name)._repr_html_()
        assert cluster.job(job.name).position == 1
        assert namespace in [row.queue for row in cluster.queues()]

        job.stop()
        assert kube.get("trainingjobs", job.name, namespace)["spec"]["suspend"] is True
        job.resume()
        assert kube.get("trainingjobs", job.name, namespace)["spec"]["suspend"] is False

        with pytest.raises(TimeoutError):
            job.wait(timeout_seconds=0)
        ended = {"phase": "Succeeded", "finishedAt": "2026-11-21T06:00:00Z", "step": 7}
        kube.patch_status("trainingjobs", job.name, ended, namespace)
        assert job.wait(timeout_seconds=HANG_SECONDS).phase == "Succeeded"
        assert job.steps.done == 7
        assert job.report().report.phase == "Succeeded"
        assert job.logs().rows() == []

        job.delete()
        with pytest.raises(dl.NotAnswered, match="not found in namespace"):
            job.refresh()
        with pytest.raises(dl.NotAnswered, match="not found in namespace"):
            job.wait()


def test_a_later_job_of_the_same_name_is_not_deleted(
    control_plane: Cluster, kube: Kube, namespace: str
) -> None:
    command = ["python", "train.py"]
    with dl.connect(kubeconfig=control_plane.kubeconfig, namespace=namespace) as cluster:

        def made() -> dl.NotebookJob:
            return cluster.run(command, folder=None, image="any:1", queue="q", name="same")

        first = made()
        first.delete()
        made()
        with pytest.raises(dl.NotAnswered):
            first.delete()
        assert kube.get("trainingjobs", "same", namespace)["metadata"]["name"] == "same"


def test_what_may_not_be_read_is_said(
    control_plane: Cluster, namespace: str, tmp_path: Path
) -> None:
    viewer = without_rights(control_plane, tmp_path, namespace)
    refused = pytest.raises(dl.NotAnswered, match=f"trainingjobs of {namespace}: not allowed")
    with dl.connect(kubeconfig=viewer, namespace=namespace) as cluster, refused:
        cluster.jobs()
