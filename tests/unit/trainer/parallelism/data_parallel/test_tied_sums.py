"""A tied embedding learns from both its ends, and what both say is added in fp32."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from drumline_contract.config import TrainerConfig
from tests.unit.trainer.adapters.parallel_models import TOKENS, begun, configured, passed

TIED = "embedding.weight"


def learned(data_parallel: str, **changes: Any) -> torch.Tensor:
    """The gradient of the embedding."""
    raw = {"lora": None, "parallelism": {"data_parallel": data_parallel}, **changes}
    config: TrainerConfig = configured(**raw)
    _, gradients = passed(begun(config))
    return gradients[TIED]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("model", [{}, {"family": "gpt2", "kv_heads": 4}])
def test_every_kind_of_data_parallelism_has_the_same_sum(
    precision: str, model: dict[str, Any]
) -> None:
    expected = learned("ddp", precision=precision, model=model)
    words = TOKENS.unique()
    assert expected.dtype is torch.float32
    assert expected[words].abs().min() > 0
    assert torch.equal(learned("fsdp", precision=precision, model=model), expected)
    whole = learned("ddp", model=model)
    assert (expected - whole).abs().max() < 0.02 * whole.abs().max()
