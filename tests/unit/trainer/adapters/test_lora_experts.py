"""Adapters of experts: the formula's gradients, the merge, and who may have them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.layout_validation import ViolationReason, violations
from drumline_trainer.adapters.lora import merge_adapter, without_adapters
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.loss import token_losses_sum
from tests.unit.trainer.adapters.parallel_models import (
    TOKENS,
    begun,
    configured,
    logits,
    passed,
    taught,
)

MIXTURE = {"experts": 4, "experts_per_token": 2, "tied_embeddings": False}
EXPERTS = "experts_gate_up,experts_down"


def adapted(targets: str = EXPERTS, **changes: Any) -> TrainerConfig:
    return configured(model=MIXTURE, lora={"targets": targets}, **changes)


def base_weights(config: TrainerConfig) -> dict[str, Tensor]:
    model = build_on_meta(config.model).to_empty(device="cpu")
    initialize(model, seed=config.seed)
    return {name: weight.detach() for name, weight in model.named_parameters()}


def merged(config: TrainerConfig, adapters: dict[str, Tensor]) -> dict[str, Tensor]:
    """W + 2 B A of every expert, written down plainly."""
    weights = base_weights(config)
    for name, a in adapters.items():
        if not name.endswith("lora_a"):
            continue
        b = adapters[name.removesuffix("a") + "b"]
        added = [2.0 * b_OR @ a_RI for a_RI, b_OR in zip(a, b, strict=True)]
        path, _, beside = name.removesuffix(".lora_a").rpartition(".")
        if beside == "down_adapter":
            weights[f"{path}.down"] = weights[f"{path}.down"] + torch.stack(added)
        else:
            half = added[0].shape[0] // 2
            for part, rows in (("gate", slice(half)), ("up", slice(half, None))):
                each = torch.stack([whole[rows] for whole in added])
                weights[f"{path}.{part}"] = weights[f"{path}.{part}"] + each
    return weights


@pytest.mark.parametrize("targets", [EXPERTS, "experts_down", f"query,value,{EXPERTS}"])
def test_gradients_are_those_of_the_formula(targets: str) -> None:
    config = adapted(targets)
    parallel_model = taught(begun(config))
    loss, gradients = passed(parallel_model)
    own = [part for part in parallel_model.slices if ".experts." in part.name]
    assert len(own) == 4 * targets.count("experts")
    adapters = {part.name: part.tensor.clone().requires_grad_() for part in own}
    weights = merged(config, adapters)
    for part in parallel_model.slices:
        if part not in own and part.name.endswith("lora_a"):
            layer = part.name.removesuffix(".lora_a")
            b = next(each for each in parallel_model.slices if each.name == f"{layer}.lora_b")
            weights[f"{layer}.weight"] = weights[f"{layer}.weight"] + 2.0 * b.tensor @ part.tensor
    plain = build_on_meta(config.model).to_empty(device="cpu")
    out = functional_call(plain, weights, (TOKENS,))
    expected = token_losses_sum(out, TOKENS.roll(-1, 1)) / TOKENS.numel()
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=0)
    for name, adapter in adapters.items():
        assert adapter.grad is not None
        torch.testing.assert_close(gradients[name], adapter.grad, rtol=1e-4, atol=1e-7)
        assert gradients[name].any()


def test_merged_weights_are_the_formulas_and_without_adapters_it_is_the_base() -> None:
    config = adapted()
    assert config.lora is not None
    parallel_model = taught(begun(config))
    learned = {part.name: part.tensor for part in parallel_model.slices}
    base, expected = base_weights(config), merged(config, learned)
    for name, weight in base.items():
        made = merge_adapter(name, weight, learned, config=config.lora)
        torch.testing.assert_close(made, expected[name], rtol=1e-6, atol=1e-7)
        assert torch.equal(made, weight) is (".experts." not in name)
    plain = build_on_meta(config.model).to_empty(device="cpu")
    with without_adapters(parallel_model.stages[0]):
        assert torch.equal(logits(parallel_model), functional_call(plain, base, (TOKENS,)))
    assert not torch.equal(logits(parallel_model), functional_call(plain, base, (TOKENS,)))


def test_experts_have_adapters_only_where_targets_names_them() -> None:
    names = {part.name for part in begun(configured(model=MIXTURE)).slices}
    assert names
    assert not any(".experts." in name for name in names)


def test_a_model_without_experts_has_none() -> None:
    with pytest.raises(ConfigError, match=r"lora\.targets"):
        begun(configured(lora={"targets": EXPERTS}))


def test_the_tensor_axis_does_not_cut_them() -> None:
    config = adapted(parallelism={"tensor": 2}, global_batch_size=4)
    assert [each.reason for each in violations(config, world_size=2)] == [
        ViolationReason.ADAPTED_EXPERTS
    ]
    apart = adapted(parallelism={"expert": 2}, global_batch_size=4)
    assert not violations(apart, world_size=2)
