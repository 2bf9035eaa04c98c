from __future__ import annotations

import sys
from itertools import pairwise

import pytest

from drumline_trainer.__main__ import configured
from drumline_trainer.profiling.nsys import main, nsys_command


def test_the_command_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print", "--report", "mine", "--", "--set", "profile.start_step=20"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("nsys profile --trace=cuda,nvtx,osrt ")
    assert "--capture-range=cudaProfilerApi" in printed
    assert printed.endswith(
        f"--output=mine {sys.executable} -m drumline_trainer --set profile.nvtx=true"
        " --set profile.start_step=20\n"
    )


def test_the_trainer_takes_its_settings() -> None:
    command = nsys_command(["--set", "profile.start_step=20"], report="mine")
    settings = [value for flag, value in pairwise(command) if flag == "--set"]
    profile = configured(None, preset=None, settings=settings).profile
    assert (profile.nvtx, profile.start_step) == (True, 20)


def test_without_nsys_the_command_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert main(["--", "--ranks", "2"]) == 127
    assert "run: nsys profile" in capsys.readouterr().err
