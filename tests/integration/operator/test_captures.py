"""A running operator writes a cycle down when asked to, and the command line decides it again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operator.conftest import Site
from tests.kube import Kube, phase_is, reason_is
from tests.operator_process import ROOT, OperatorProcess
from tests.patience import HANG_SECONDS

pytestmark = [
    pytest.mark.usefixtures("no_operator"),
    pytest.mark.extended(keep=4, of="operators of a test"),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "capture.json"


@pytest.fixture
def own_operator(api: Kube, tmp_path: Path, file: Path) -> Iterator[OperatorProcess]:
    operator = OperatorProcess(
        kubeconfig=api.kubeconfig,
        folder=tmp_path,
        settings={
            "DRUMLINE_CAPTURE_FILE": str(file),
            "DRUMLINE_SCHEDULING": '{"waiting": "Strict"}',
        },
    )
    operator.start()
    yield operator
    operator.stop()


def test_a_captured_cycle_is_decided_the_same_again(
    site: Site, own_operator: OperatorProcess, file: Path
) -> None:
    site.submit("runs", nodes=3, gpusPerNode=8)
    site.wait("runs", phase_is("Running"))
    site.submit("waits", nodes=2, gpusPerNode=8)
    site.wait("waits", reason_is("QuotaExhausted"))
    assert own_operator.process is not None
    own_operator.process.send_signal(signal.SIGUSR1)
    site.submit("too", nodes=2, gpusPerNode=8)  # and have one cycle at least
    site.wait("too", reason_is("QuotaExhausted"))
    deadline = time.monotonic() + HANG_SECONDS
    while not file.exists() and time.monotonic() < deadline:
        time.sleep(0.05)  # it is written beside the cycle, by a rename
    capture = json.loads(file.read_text())["capture"]
    held = {admitted["gang"]["key"] for admitted in capture["snapshot"]["admitted"]}
    assert f"{site.namespace}/runs" in held
    assert capture["policy"]["waiting"] == "Strict"
    done = subprocess.run(
        [sys.executable, "-m", "drumline", "replay", str(file)],
        env={"PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'trainer'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("same decisions as captured: ")
