"""torch's watchdog of NCCL ends no process that an agent looks after."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from drumline_trainer.rank.run import HANDLING, leave_faults_to_the_agent

HEADER = Path(torch.__file__).parent / "include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"


def test_nothing_is_handled_but_what_somebody_has_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, *unset = HANDLING
    for name in unset:
        monkeypatch.setenv(name, "")  # restored afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv(asked, "3")
    leave_faults_to_the_agent()
    assert {name: os.environ[name] for name in HANDLING} == {
        asked: "3",
        **dict.fromkeys(unset, "0"),
    }


@pytest.mark.parametrize("name", HANDLING)
def test_torch_reads_the_variable(name: str) -> None:
    assert f'"{name}"' in HEADER.read_text()
