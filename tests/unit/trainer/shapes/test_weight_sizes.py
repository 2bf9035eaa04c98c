"""The weights that are counted without torch are those of the models."""

from __future__ import annotations

import string
import sys
from dataclasses import replace
from typing import Any

import pytest

from drumline_contract.config import MODEL_PRESETS, ModelConfig, TrainerConfig
from drumline_contract.shapes.weight_sizes import learning_shares, weight_sizes
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.sharding.slices import named_weights

LATENT: dict[str, Any] = {
    "kv_heads": 4,
    "latent_attention": {"query_rank": 8, "key_value_rank": 6, "turned_size": 4, "value_size": 8},
    "experts": 4,
    "dense_layers": 1,
    "shared_experts": 2,
    "routing": {"scores": "sigmoid"},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "gemma": {"norm_placement": "around", "query_key_norm": True, "attention_bias": "all"},
    "olmo": {
        "norm_placement": "after",
        "query_key_norm": True,
        "query_key_norm_over_heads": True,
    },
    "gpt-oss": {"experts": 4, "expert_bias": True, "attention_sinks": True},
    "qwen": {"attention_bias": "inputs", "tied_embeddings": False, "head_size": 32},
    "deepseek": LATENT,
    "deepseek lite": {
        **LATENT,
        "latent_attention": {**LATENT["latent_attention"], "query_rank": None},
    },
    "vit": {"family": "vit", "kv_heads": 4, "class_token": True},
}
MODELS: dict[str, ModelConfig] = {
    **{name: replace(model, layers=2) for name, model in MODEL_PRESETS.items()},
    **{name: TrainerConfig.from_dict({"model": raw}).model for name, raw in VARIANTS.items()},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_weight_is_counted_by_its_name(name: str) -> None:
    model = MODELS[name]
    there = {each: weight.numel() for each, weight in named_weights(build_on_meta(model))}
    assert dict(weight_sizes(model)) == there


def test_the_share_that_learns_is_counted_for_experts_apart() -> None:
    model = MODELS["deepseek"]
    assert learning_shares(model, trainable=None, freeze=None) == (1.0, 1.0)
    assert learning_shares(model, trainable=None, freeze="*.experts.*")[1] == 0.0
    dense, experts = learning_shares(model, trainable="layers.1.*", freeze=None)
    assert experts == 1.0
    assert 0 < dense < 1


def test_a_stranger_s_patterns_take_no_longer_than_a_plain_one() -> None:
    """The operator bills many tenants' jobs in one thread."""
    model = replace(MODELS["qwen-moe"], layers=1024)
    letters = [*string.ascii_letters[:32]]
    worst = ("*" + "?" * 20, "*a" * 31, "[!z]*" * 12, "z")
    plain = calls_of_billing(model, "norm.weight")
    for form in worst:
        assert calls_of_billing(model, ",".join(form + end for end in letters)) < 1.2 * plain


def calls_of_billing(model: ModelConfig, freeze: str) -> int:
    """Of functions, those of libraries in C included."""
    calls = 0

    def count(_frame: object, event: str, _of: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    config = TrainerConfig(model=model, freeze=freeze)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        learning_shares(config.model, trainable=None, freeze=config.freeze)
    finally:
        sys.setprofile(before)
    return calls
