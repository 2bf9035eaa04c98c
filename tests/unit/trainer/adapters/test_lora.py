from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from drumline_contract.config import MODEL_PRESETS, ConfigError, LoraConfig, TrainerConfig
from drumline_contract.config.lora import PROJECTIONS
from drumline_trainer.adapters.base import base_description, check_base
from drumline_trainer.adapters.four_bit import pack
from drumline_trainer.adapters.lora import A, B, merge_adapter, without_adapters
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.initialize import initialize
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.numerics.replaced_linear import replace_projections
from tests.unit.trainer.adapters.parallel_models import (
    TOKENS,
    begun,
    configured,
    logits,
    passed,
    taught,
)


def plain_model(config: TrainerConfig) -> nn.Module:
    """Without adapters."""
    model = build_on_meta(config.model).to_empty(device="cpu")
    initialize(model, seed=config.seed)
    return model


def adapted_weights(config: TrainerConfig, adapters: dict[str, Tensor]) -> dict[str, Tensor]:
    """W + 2 B A, written down plainly."""
    weights = {name: w.detach() for name, w in plain_model(config).named_parameters()}
    for name, a in adapters.items():
        if name.endswith(A):
            layer = name.removesuffix(f".{A}")
            weights[f"{layer}.weight"] = (
                weights[f"{layer}.weight"] + 2.0 * adapters[f"{layer}.{B}"] @ a
            )
    return weights


@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"family": "gpt2", "kv_heads": 4},
        {"experts": 4, "shared_experts": 1, "tied_embeddings": False},
    ],
)
def test_gradients_are_those_of_the_formula(shape: dict[str, Any]) -> None:
    config = configured(model=shape)
    parallel_model = taught(begun(config))
    loss, gradients = passed(parallel_model)
    adapters = {part.name: part.tensor.clone().requires_grad_() for part in parallel_model.slices}
    plain = plain_model(config)
    out = functional_call(plain, adapted_weights(config, adapters), (TOKENS,))
    expected = token_losses_sum(out, TOKENS.roll(-1, 1)) / TOKENS.numel()
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-6, atol=0)
    for name, adapter in adapters.items():
        assert adapter.grad is not None
        torch.testing.assert_close(gradients[name], adapter.grad, rtol=1e-4, atol=1e-7)
        assert gradients[name].any()


def test_a_model_begins_as_its_base() -> None:
    parallel_model = begun(configured())
    assert torch.equal(logits(parallel_model), plain_model(configured())(TOKENS))
    assert all(part.tensor.any() == part.name.endswith(A) for part in parallel_model.slices)


@pytest.mark.parametrize("bits", [16, 4])
def test_without_its_adapters_a_model_is_its_base_again(bits: int) -> None:
    config = configured(lora={"base_bits": bits})
    base, parallel_model = logits(begun(config)), taught(begun(config))
    learned = logits(parallel_model)
    assert (learned - base).abs().max() > 1e-3
    with without_adapters(parallel_model.stages[0]):
        assert torch.equal(logits(parallel_model), base)
    assert torch.equal(logits(parallel_model), learned)


def test_only_adapters_have_gradients_and_optimizer_state() -> None:
    parallel_model = begun(configured(lora={"targets": "query, down"}))
    passed(parallel_model)
    query, down = 3 * (16 + 16), 3 * (40 + 16)
    assert sum(part.tensor.numel() for part in parallel_model.slices) == 2 * (query + down)
    (model,) = parallel_model.stages
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert learning == {part.name for part in parallel_model.slices}
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
    assert {part.name for part in parallel_model.weights.frozen} == {
        name for name, _ in plain_model(configured()).named_parameters()
    }


def test_frozen_weights_are_of_the_type_that_is_computed_in() -> None:
    parallel_model = begun(configured(precision="bf16"))
    assert {part.tensor.dtype for part in parallel_model.weights.frozen} == {torch.bfloat16}
    assert {part.tensor.dtype for part in parallel_model.slices} == {torch.float32}


@pytest.mark.parametrize("doubly", [False, True])
def test_four_bits_train_as_adapters_on_the_unpacked_weights_do(doubly: bool) -> None:
    four_bits = {"base_bits": 4, "double_quantization": doubly}
    packed = taught(begun(configured(lora=four_bits)))
    plain = begun(configured())
    projections = {part.name.rpartition(".")[0] for part in plain.slices}
    for part in plain.weights.frozen:
        if part.name.removesuffix(".weight") in projections:
            under = pack(part.tensor, doubly=doubly)
            part.tensor.copy_(under.weight(features=part.shape[1], dtype=torch.float32))
    loss, gradients = passed(packed)
    expected, wanted = passed(taught(plain))
    assert torch.equal(loss, expected)
    assert all(torch.equal(gradients[name], wanted[name]) for name in wanted)


def test_four_bits_keep_no_weight_of_the_adapted_layers() -> None:
    (model,) = begun(configured(lora={"base_bits": 4})).stages
    names = [name for name, _ in model.named_parameters() if name.startswith("layers.")]
    assert {name.rpartition(".")[2] for name in names if "norm" not in name} == {A, B}
    assert {b.dtype for _, b in model.named_buffers()} == {torch.uint8, torch.float32}


@pytest.mark.parametrize(("bits", "doubly"), [(16, False), (4, False), (4, True)])
def test_merged_weights_do_what_weights_and_adapters_did(bits: int, doubly: bool) -> None:
    config = configured(lora={"base_bits": bits, "double_quantization": doubly})
    parallel_model = taught(begun(config))
    plain = plain_model(config)
    adapters = {part.name: part.tensor for part in parallel_model.slices}
    assert config.lora is not None
    merged = {
        name: merge_adapter(name, weight, adapters, config=config.lora)
        for name, weight in plain.named_parameters()
    }
    out = functional_call(plain, merged, (TOKENS,))
    assert not torch.allclose(out, plain(TOKENS), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(out, logits(parallel_model), rtol=1e-4, atol=1e-5)


def test_adapters_that_the_model_has_no_place_for_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"lora\.targets: .* it has down,key,"):
        begun(configured(model={"family": "gpt2", "kv_heads": 4}, lora={"targets": "gate"}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lora": {"base_bits": 8}}, r"lora\.base_bits: must be 16 or 4, not 8"),
        ({"lora": {"targets": "query,head"}}, r"lora\.targets: no projection is called 'head'"),
        ({"lora": {"double_quantization": True}}, "packs the scales of 4 bits; set lora.base_bits"),
        ({"lora": {"rank": 0}}, r"lora\.rank: must be greater than 0"),
        ({"fp8": True, "lora": None}, "fp8: works beside precision bf16, not fp32"),
        ({"fp8": True, "precision": "bf16"}, "fp8: leaves out what adapters lie beside"),
        ({"model_from": ""}, "model_from: must not be empty"),
    ],
)
def test_what_cannot_work_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        configured(**changes)


@pytest.mark.parametrize("name", sorted(MODEL_PRESETS))
def test_the_default_targets_are_the_projections_of_the_model(name: str) -> None:
    dense = min(MODEL_PRESETS[name].dense_layers, 1)
    model = replace(MODEL_PRESETS[name], layers=2, dense_layers=dense)
    adapted: set[str] = set()

    def seen(name: str, layer: nn.Linear) -> nn.Module:
        adapted.add(name)
        return layer

    replace_projections(build_on_meta(model), PROJECTIONS, seen)
    assert {layer.rpartition(".")[2] for layer in adapted} == LoraConfig().projections_of(model)


def test_rank_stabilized_adapters_are_divided_by_the_root() -> None:
    plain, stable = (
        taught(begun(configured(lora={"alpha": alpha, "rslora": rslora})))
        for alpha, rslora in ((6.0 * 3**0.5, False), (6.0, True))
    )
    torch.testing.assert_close(logits(stable), logits(plain))
    with pytest.raises(
        ConfigError, match=r"another base; alpha: 6\.0 there and 6, rank-stabilized"
    ):
        check_base(
            {"base": base_description(configured())}, config=configured(lora={"rslora": True})
        )
