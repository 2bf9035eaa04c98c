"""`make gpu` where there is no GPU, and a check of it on processors."""

from __future__ import annotations

import json

import pytest

from tools.bench.report import FOLDER
from tools.gpu.__main__ import NO_GPU, main


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On machines that have some, too."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.extended(keep=1, of="make gpu")
def test_without_a_gpu_nothing_is_checked_and_the_exit_code_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == NO_GPU == 3
    assert "no GPU here (torch" in capsys.readouterr().out


@pytest.mark.extended(keep=1, of="make gpu")
def test_a_check_runs_on_processors_and_is_written_down(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--device", "cpu", "devices"]) == 0
    assert "passed   devices" in capsys.readouterr().out
    written = json.loads((FOLDER / "gpu-rehearsal.json").read_text())
    [check] = written["checks"]
    assert (check["name"], check["outcome"], check["rows"][0]["value"]) == ("devices", "passed", 69)
