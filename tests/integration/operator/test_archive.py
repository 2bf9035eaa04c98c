"""The archiver as a process, with the chart's rights: what is left of jobs and namespaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from drumline_cli.program import main
from tests.integration.operator.chart_rights import token_of
from tests.integration.operator.conftest import Site
from tests.integration.operator.proxy import Proxy
from tests.kube import Kube, phase_is
from tests.operator_process import ROOT
from tests.patience import HANG_SECONDS

pytestmark = [pytest.mark.usefixtures("operator"), pytest.mark.extended(keep=1)]


class ArchiverProcess:
    """`python -m drumline archiver`; its log is read line by line."""

    def __init__(self, kubeconfig: Path, folder: Path, **settings: str) -> None:
        self.url = folder.as_uri()
        self._environment = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}",
            "DRUMLINE_ARCHIVE": self.url,
            "DRUMLINE_ARCHIVE_LOGS": "true",
            "DRUMLINE_HTTP_HOST": "127.0.0.1",
            "DRUMLINE_HTTP_PORT": "0",
            **settings,
        }
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> dict[str, Any]:
        """Start it; returns what it says when it has learned what is archived."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "drumline", "archiver"],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started = self.wait("archiver_started")
        return started | self.wait("archive_settled")

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self._process is not None
        self._process.terminate()
        self._process.communicate(timeout=HANG_SECONDS)
        code, self._process = self._process.returncode, None
        return code

    def wait(self, event: str, **fields: str) -> dict[str, Any]:
        """The next line of its log that says this."""
        assert self._process is not None
        assert self._process.stdout is not None
        seen: list[str] = []
        for line in self._process.stdout:
            seen.append(line)
            said = json.loads(line) if line.startswith("{") else {}
            if said.items() >= {"event": event, **fields}.items():
                return said
        raise AssertionError("".join(seen))


SETTINGS = ("archive.enabled=true", "archive.url=s3://any", "archive.logs=true")


@pytest.fixture
def archiver(api: Kube, tmp_path: Path) -> Iterator[ArchiverProcess]:
    with (
        token_of(api, "drumline-archiver", *SETTINGS) as token,
        Proxy(api.kubeconfig, tmp_path, token=token) as proxy,
    ):
        archiver = ArchiverProcess(proxy.kubeconfig, tmp_path / "archive")
        archiver.start()
        yield archiver
        archiver.stop()
        assert (proxy.refused, proxy.writes) == ([], [])


def history(archiver: ArchiverProcess, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    capsys.readouterr()
    assert main(["history", "--archive", archiver.url, *more]) == 0
    return capsys.readouterr().out


def test_jobs_are_read_when_they_and_their_namespace_are_gone(
    site: Site, archiver: ArchiverProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    def key(name: str) -> str:
        return f"{site.namespace}/{name}"

    for name in ("done", "dropped", "unseen"):
        site.submit(name, nodes=1, gpusPerNode=8)
        site.wait(name, phase_is("Running"))
    site.end_pods("done")
    site.wait("done", phase_is("Succeeded"))
    archiver.wait("job_archived", job=key("done"))
    site.kube.delete("trainingjobs", "dropped", site.namespace)
    archiver.wait("job_archived", job=key("dropped"))
    archiver.stop()
    for name in ("done", "unseen"):
        site.kube.delete("trainingjobs", name, site.namespace)
        site.kube.wait("trainingjobs", name, site.namespace, lambda job: job is None)
    assert archiver.start()["ended"] == 3

    rows = json.loads(history(archiver, capsys, "-n", site.namespace, "-o", "json"))["rows"]
    assert {row["name"]: row["phase"] for row in rows} == {
        "done": "Succeeded",
        "dropped": "Deleted",
        "unseen": "Deleted",
    }
    assert all(row["queue"] == site.queue for row in rows)
    report = history(archiver, capsys, "done", "-n", site.namespace)
    assert "Succeeded" in report
    assert "Z  Completed:" in report  # an event
    lines = history(archiver, capsys, "done", "-n", site.namespace, "--logs")
    assert lines.startswith("==> done-0-g1 on ")


def test_an_archiver_of_some_namespaces_needs_rights_in_these_alone(
    api: Kube, site: Site, tmp_path: Path
) -> None:
    with (
        token_of(
            api,
            "narrow-drumline-archiver",
            *SETTINGS,
            f"watchNamespaces={{{site.namespace}}}",
            release="narrow",
        ) as token,
        Proxy(api.kubeconfig, tmp_path, token=token) as proxy,
    ):
        archiver = ArchiverProcess(
            proxy.kubeconfig, tmp_path / "archive", DRUMLINE_WATCH_NAMESPACES=site.namespace
        )
        archiver.start()
        site.submit("done", nodes=1, gpusPerNode=8)
        site.wait("done", phase_is("Running"))
        site.end_pods("done")
        archiver.wait("job_archived", job=f"{site.namespace}/done")
        archiver.stop()
        assert (proxy.refused, proxy.writes) == ([], [])


def test_probes_say_that_it_is_ready(archiver: ArchiverProcess) -> None:
    archiver.stop()
    port = archiver.start()["port"]
    for probe in ("healthz", "readyz"):
        with urlopen(f"http://127.0.0.1:{port}/{probe}") as answer:
            assert answer.read() == b"ok\n"
