from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_contract.config import MODEL_PRESETS, ModelConfig, TrainerConfig
from drumline_contract.shapes.flops import (
    flops_of_run,
    flops_per_token,
    matmul_weights,
    mfu,
    mfu_of_run,
    peak_flops,
    weights,
)
from drumline_trainer.models.build import build_on_meta


@pytest.mark.parametrize("name", ["tiny", "llama-8b", "gpt2-124m"])
def test_weights_in_products_are_all_but_norms_and_the_looked_up_embedding(name: str) -> None:
    config: ModelConfig = MODEL_PRESETS[name]
    model = build_on_meta(config)
    matrices = {name: p.numel() for name, p in model.named_parameters() if p.dim() > 1}
    looked_up = ["position_embedding.weight"]
    if not config.tied_embeddings:
        looked_up.append("embedding.weight")
    assert matmul_weights(config) == sum(
        size for name, size in matrices.items() if name not in looked_up
    )


@pytest.mark.parametrize("name", MODEL_PRESETS)
def test_all_weights_are_those_of_the_model_that_is_built(name: str) -> None:
    built = build_on_meta(MODEL_PRESETS[name]).parameters()
    assert weights(MODEL_PRESETS[name]) == sum(weight.numel() for weight in built)


def test_an_untied_head_of_gpt2_is_counted() -> None:
    config = replace(MODEL_PRESETS["toy-gpt2"], tied_embeddings=False)
    assert weights(config) == sum(weight.numel() for weight in build_on_meta(config).parameters())


def test_of_a_mixture_only_the_experts_a_token_sees_count() -> None:
    qwen = MODEL_PRESETS["qwen-moe"]  # its authors count 3.3 of 30.5 billion, embedding included
    assert matmul_weights(qwen) + qwen.vocab_size * qwen.hidden_size == pytest.approx(
        3.3e9, rel=0.02
    )
    shared = replace(qwen, shared_experts=2)
    assert matmul_weights(shared) - matmul_weights(qwen) == 48 * 2 * 3 * 2048 * 768


def test_a_window_costs_what_its_positions_see() -> None:
    windowed = ModelConfig(layers=3, sliding_window=4, full_attention_every=3)
    length, size = 64, windowed.heads * windowed.features_per_head
    in_window = sum(min(position + 1, 4) for position in range(length)) / length
    everywhere = length / 2
    exact = 12 * size * (2 * in_window + everywhere)
    counted = flops_per_token(windowed, sequence_length=length) - 6 * matmul_weights(windowed)
    assert counted == pytest.approx(exact, rel=0.01)


def test_an_image_costs_what_torchvision_says() -> None:
    vit = MODEL_PRESETS["vit-b16"]
    per_image = vit.patches * flops_per_token(vit, sequence_length=vit.patches)
    assert per_image == pytest.approx(3 * 2 * 17.56e9, rel=0.01)  # forward and backward, 2 per MAC


def test_eight_billion_weights_cost_what_the_paper_says() -> None:
    per_token = flops_per_token(MODEL_PRESETS["llama-8b"], sequence_length=8192)
    assert per_token == 6 * matmul_weights(MODEL_PRESETS["llama-8b"]) + 6 * 32 * 4096 * 8192
    assert mfu(6700, flops=per_token, devices=1, peak=989e12) == pytest.approx(0.349, abs=0.01)


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA GeForce RTX 4090", None),
        ("cpu", None),
    ],
)
def test_a_device_without_a_figure_has_no_peak(device: str, peak: float | None) -> None:
    assert peak_flops(device) == peak
    assert mfu(1.0, flops=1, devices=1, peak=None) is None


def test_a_class_token_costs_what_another_patch_would() -> None:
    toy = MODEL_PRESETS["toy-vit"]
    config = TrainerConfig(model=replace(toy, class_token=True))
    assert config.tokens_per_sample == 17
    flops = flops_per_token(config.model, sequence_length=17)
    assert flops == flops_per_token(toy, sequence_length=17)


def test_a_token_of_an_image_is_a_patch() -> None:
    config = TrainerConfig(model=MODEL_PRESETS["toy-vit"])
    assert config.tokens_per_sample == config.model.patches == 16
    flops = flops_per_token(config.model, sequence_length=config.model.patches)
    assert mfu_of_run(config, 10.0, devices=1, peak=100.0 * flops) == pytest.approx(0.1)


def test_preferences_cost_their_references_forward_pass_as_well() -> None:
    plain = TrainerConfig()
    preferences = TrainerConfig.from_dict({"dpo": {}})
    assert flops_of_run(preferences) == flops_of_run(plain) * 4 // 3
    speeds = [
        mfu_of_run(config, 10.0, devices=1, peak=1e12) or 0.0 for config in (plain, preferences)
    ]
    assert speeds[1] == pytest.approx(speeds[0] * 4 / 3)
