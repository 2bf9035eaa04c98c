"""Which of torch's implementations of NCCL ranks talk over."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from drumline_trainer.preflight import NCCL2_VARIABLE
from drumline_trainer.recovery.rendezvous import prefer_established_nccl

_BACKEND: Any = dist.Backend
_C10D: Any = c10d
"""torch has no public way to ask."""


def maker_of_nccl() -> object:
    """What makes a process group of the name `nccl`, registered at this moment."""
    _BACKEND._ensure_backend_registered("nccl")
    return cast("Any", _BACKEND._plugins["NCCL"]).creator_fn


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(NCCL2_VARIABLE, raising=False)
    for name in ("_plugins", "backend_capability", "backend_type_map"):
        monkeypatch.setattr(dist.Backend, name, dict(getattr(_BACKEND, name)))
    _BACKEND._plugins.pop("NCCL", None)


def test_nccl_is_the_group_that_aborts_and_the_flight_recorder_are_proved_with() -> None:
    prefer_established_nccl()
    assert maker_of_nccl() is _C10D._create_nccl_process_group


def test_the_environment_may_choose_torchs_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NCCL2_VARIABLE, "1")
    prefer_established_nccl()
    assert maker_of_nccl() is _C10D._create_nccl2_process_group
