from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from drumline_trainer.rank.run import choose_kernels

NAMES = ("CUBLAS_WORKSPACE_CONFIG", "TORCHINDUCTOR_DETERMINISTIC")


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.mark.parametrize("deterministic", [True, False])
def test_kernels_are_the_same_each_time_only_where_it_is_asked_for(deterministic: bool) -> None:
    choose_kernels(deterministic=deterministic)
    assert torch.get_deterministic_debug_mode() == (2 if deterministic else 0)
    assert {name in os.environ for name in NAMES} == {deterministic}
