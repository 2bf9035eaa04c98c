"""Errors of the first pass through a module whose weights are cut by its plan."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import nn

from drumline_contract.config import ConfigError
from drumline_trainer.models.transformers.module import CausalModule
from drumline_trainer.models.transformers.sight import check_sight


class Failing(nn.Module):
    """A module that cannot compute."""

    replicated = frozenset({"norm.weight"})

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, *_: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("pair.cc:561] Connection closed by peer [10.0.0.1]"),
        dist.DistBackendError("NCCL communicator was aborted on rank 1. "),
        torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered"),
        torch.OutOfMemoryError("CUDA out of memory"),
    ],
)
def test_a_failure_of_the_machine_stays_what_it_is(error: RuntimeError) -> None:
    with pytest.raises(type(error)) as caught:
        check_sight(cast("CausalModule", Failing(error)), words=9, device=torch.device("cpu"))
    assert caught.value is error


def test_shapes_that_do_not_fit_are_refused_by_the_name_of_the_module() -> None:
    module = Failing(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    with pytest.raises(ConfigError, match=r"Failing does not compute with the parts .*mat1"):
        check_sight(cast("CausalModule", module), words=9, device=torch.device("cpu"))
