from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from drumline_contract.config import MODEL_PRESETS, ConfigError, ModelConfig
from drumline_contract.config.decoding import decode
from drumline_contract.config.rope import RopeScaling
from drumline_contract.shapes.flops import weights
from drumline_trainer.models.build import build_on_meta

LONGROPE: dict[str, Any] = {
    "kind": "longrope",
    "factor": 4.0,
    "short_factors": ",".join("12345678"),
    "long_factors": ",".join("87654321"),
}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            {"hidden_size": 66},
            "heads: hidden_size 66 does not divide by 4 heads; use 3 or 11",
        ),
        ({"kv_heads": 3}, "model.kv_heads: 4 heads do not divide by 3 kv_heads; use 2 or 4"),
        ({"hidden_size": 60}, "a head of 15 is odd, and rotary embedding turns pairs; use 3 or 5"),
        ({"head_size": 15}, "model.head_size: a head of 15 is odd, and rotary"),
        (
            {"hidden_size": 33, "heads": 3, "kv_heads": 3},
            "turns pairs; use a hidden_size of 30 or 36",
        ),
        ({"dropout": 1.0}, "model.dropout: must be at least 0 and below 1, not 1.0"),
        (
            {"experts": 2, "experts_per_token": 3},
            "experts_per_token: 3 are more than the 2 experts",
        ),
        ({"family": "gpt2", "experts": 4}, "model.experts: only llama has them, not gpt2"),
        ({"expert_bias": True}, "model.expert_bias: the model has no experts; set model.experts"),
        ({"shared_experts": 1}, "the model has no experts; set model.experts"),
        ({"family": "vit", "query_key_norm": True}, "query_key_norm: only llama has it, not vit"),
        ({"sliding_window": 0}, "model.sliding_window: must be greater than 0"),
        ({"full_attention_every": 2}, "set model.sliding_window"),
        ({"window_rope_theta": 1e4}, "is for layers with a window; set model.sliding_window"),
        ({"rope_share": 1.5}, "model.rope_share: must be above 0 and at most 1, not 1.5"),
        ({"rope_share": 0.2}, "rope_share 0.2 of 3 is odd"),
        ({"query_key_norm_over_heads": True}, "set model.query_key_norm too"),
        ({"attention_softcap": 0.0}, "model.attention_softcap: must be greater than 0"),
        ({"residual_multiplier": 0.0}, "model.residual_multiplier: must be greater than 0"),
        ({"logit_divisor": -1.0}, "model.logit_divisor: must be greater than 0"),
        ({"no_rope_every": -1}, "model.no_rope_every: must not be negative"),
        ({"family": "gpt2", "no_rope_every": 2}, "no_rope_every: only llama has it, not gpt2"),
        ({"family": "gpt2", "norm_placement": "after"}, "norm_placement: only llama has it"),
        ({"family": "gpt2", "activation": "gelu_tanh"}, "activation: only llama has it, not gpt2"),
        (
            {"rope_scaling": {"kind": "yarn", "factor": 4.0, "beta_fast": 1.0}},
            "beta_fast: must be above beta_slow 1.0, not 1.0",
        ),
        ({"family": "gpt2", "sliding_window": 4}, "sliding_window: only llama has it, not gpt2"),
        ({"family": "gpt2", "attention_bias": "all"}, "gpt2 always has all biases"),
        ({"family": "vit", "patch_size": 7}, "image_size 32 does not divide by 7"),
        ({"family": "bert"}, "must be one of llama, gpt2, vit, transformers, not 'bert'"),
        ({"expert_ffn_size": 0}, "model.expert_ffn_size: must be greater than 0"),
        ({"layers": 0}, "model.layers: must be greater than 0"),
        ({"balance_weight": -1.0}, "model.balance_weight: must not be negative"),
        (
            {"rope_scaling": {"factor": 8.0, "high_frequency_factor": 1.0}},
            "high_frequency_factor: must be above low_frequency_factor 1.0, not 1.0",
        ),
        ({"rope_scaling": {"factor": 0.0}}, "rope_scaling.factor: must be greater than 0"),
        (
            {"rope_scaling": {"factor": 2.0, "short_factors": "1"}},
            "short_factors: longrope has them, and no other kind",
        ),
        ({"rope_scaling": LONGROPE | {"long_factors": ""}}, "long_factors: longrope has them"),
        ({"rope_scaling": LONGROPE | {"long_factors": "1,2"}}, "turns 8 pairs, and these are of 2"),
        ({"rope_scaling": LONGROPE | {"short_factors": "1,x"}}, "must be numbers above 0"),
        ({"rope_scaling": LONGROPE | {"short_factors": "1,nan"}}, "must be numbers above 0"),
        ({"rope_scaling": LONGROPE | {"short_factors": "0," * 7 + "1"}}, "must be numbers above 0"),
        ({"rope_scaling": LONGROPE | {"short_factors": "1," * 20_000}}, "at most 32768 characters"),
        ({"rope_scaling": LONGROPE | {"original_positions": 1}}, "must be at least 2"),
        ({"max_positions": 0}, "model.max_positions: must be greater than 0"),
    ],
)
def test_a_shape_that_cannot_be_is_refused_with_a_sentence(
    wrong: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        decode(ModelConfig, wrong, path="model.")
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "odd", [{"family": "gpt2", "hidden_size": 60}, {"head_size": 32}, {"family": "vit"}]
)
def test_what_a_family_does_not_ask_for_is_not_refused(odd: dict[str, Any]) -> None:
    decode(ModelConfig, odd, path="model.")


def test_a_shape_is_the_same_after_its_way_through_json() -> None:
    config = ModelConfig(rope_scaling=RopeScaling(factor=8.0), experts=2, head_size=8)
    assert decode(ModelConfig, json.loads(json.dumps(asdict(config))), path="model.") == config


VIT_CLASS_TOKEN = 2 * 768
"""The published ViT has a class token and a position for it; ours averages over the patches."""


def test_a_vit_with_a_class_token_is_the_published_one() -> None:
    published = replace(MODEL_PRESETS["vit-b16"], class_token=True)
    model = build_on_meta(published)
    assert sum(p.numel() for p in model.parameters()) == weights(published) == 86_567_656
    assert (published.patches, published.image_positions) == (196, 197)


@pytest.mark.parametrize(
    ("preset", "parameters"),
    [
        ("gpt2-124m", 124_439_808),
        ("gpt2-1.5b", 1_557_611_200),
        ("llama-1b", 1_235_814_400),
        ("llama-1.3b", 1_345_423_360),
        ("llama-8b", 8_030_261_248),
        ("llama-70b", 70_553_706_496),
        ("llama-405b", 405_853_388_800),
        ("qwen-moe", 30_532_122_624),
        ("vit-b16", 86_567_656 - VIT_CLASS_TOKEN),
    ],
)
def test_published_shapes_have_the_published_number_of_parameters(
    preset: str, parameters: int
) -> None:
    model = build_on_meta(MODEL_PRESETS[preset])
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_the_toys_are_small() -> None:
    for preset in ("tiny", "small", "toy-gpt2", "toy-moe", "toy-vit"):
        model = build_on_meta(MODEL_PRESETS[preset])
        assert 1e5 < sum(p.numel() for p in model.parameters()) < 1e6, preset
