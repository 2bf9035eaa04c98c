"""Keys of a config.json that transformers does not read in a model type, and sections it prefers.

A model that heeds them would compute something else in silence, so they are refused. Nor does an
export have values that transformers cannot build.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from drumline_contract.config import ModelConfig
from drumline_contract.config.rope import RopeScaling
from drumline_contract.config.variants import Activation, AttentionBias, NormPlacement
from drumline_contract.shapes.hugging_face import HuggingFaceError, kind_of, to_ours, to_theirs
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import export_hugging_face
from drumline_trainer.models.hugging_face.files import write_json
from drumline_trainer.models.initialize import initialize

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
GEMMA_3 = {"model_type": "gemma3_text", **SIZES}


def theirs(values: dict[str, Any], folder: Path) -> Any:
    """The configuration as transformers reads it from a folder."""
    write_json(folder / "config.json", values)
    return AutoConfig.from_pretrained(folder)


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss"])
def test_a_pattern_of_windows_is_refused_where_transformers_ignores_it(
    kind: str, tmp_path: Path
) -> None:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2} if kind == "gpt_oss" else {}
    values = {
        "model_type": kind,
        **SIZES,
        **experts,
        "sliding_window": 8,
        "rope_scaling": {"rope_type": "default"},
    }
    plain = theirs(values, tmp_path).layer_types
    assert theirs({**values, "sliding_window_pattern": 3}, tmp_path).layer_types == plain
    with pytest.raises(HuggingFaceError, match=r"sliding_window_pattern is 3.*write layer_types"):
        to_ours({**values, "sliding_window_pattern": 3})
    assert to_ours({**values, "sliding_window_pattern": 2}) == to_ours(values)
    assert to_ours({**values, "layer_types": plain}) == to_ours(values)


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "head_dim": 8}
ONE_WINDOW: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    "phi3": {"pad_token_id": 0},
    # Qwen 2 and 3 begin the windows at a layer, and its mixtures do not
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "use_sliding_window": True, "max_window_layers": 1},
}


@pytest.mark.parametrize("kind", sorted(ONE_WINDOW))
def test_layer_types_are_refused_where_transformers_gives_all_layers_one_window(
    kind: str, tmp_path: Path
) -> None:
    sizes = {key: size for key, size in SIZES.items() if key != "head_dim"}
    values = {"model_type": kind, **sizes, **ONE_WINDOW[kind], "num_hidden_layers": 1}
    values |= {"sliding_window": 3}
    plain = {**values, "layer_types": ["full_attention"]}
    module = AutoModelForCausalLM.from_config(theirs(plain, tmp_path))
    with torch.no_grad():
        first, second = (module(torch.tensor([[n, 2, 3, 4]])).logits[:, -1] for n in (1, 7))
    assert torch.allclose(first, second, atol=1e-5)
    assert to_ours(values).window(0) == 3
    assert to_ours({**values, "layer_types": ["sliding_attention"]}) == to_ours(values)
    with pytest.raises(HuggingFaceError, match="'layer_types' is"):
        to_ours(plain)


def test_windows_of_smollm3_that_only_its_layer_types_have_are_refused() -> None:
    values = {"model_type": "smollm3", **SIZES, "sliding_window": 3, "use_sliding_window": False}
    plain = ["full_attention"] * 6
    assert to_ours({**values, "layer_types": plain}) == to_ours(values)
    with pytest.raises(HuggingFaceError, match="'layer_types' is"):
        to_ours({**values, "layer_types": ["sliding_attention", *plain[1:]]})


def test_gemma_3_has_a_pattern_of_windows(tmp_path: Path) -> None:
    values = {**GEMMA_3, "sliding_window": 8, "sliding_window_pattern": 3}
    assert theirs(values, tmp_path).layer_types[2] == "full_attention"
    assert to_ours(values).full_attention_every == 3


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"rope_parameters": YARN}, "rope_parameters has factor.*write it in full_attention"),
        ({"rope_parameters": {"rope_theta": 500.0}}, "rope_parameters has rope_theta"),
        ({"rope_scaling": {"type": "linear", "factor": 8.0}}, "type and no rope_type"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0; only None"),
    ],
)
def test_gemma_3_of_keys_that_transformers_ignores_is_refused(
    changed: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    read = theirs({**GEMMA_3, **changed}, tmp_path).rope_parameters
    assert read["full_attention"]["rope_type"] == "default"
    assert read["full_attention"]["rope_theta"] == 1_000_000
    with pytest.raises(HuggingFaceError, match=sentence):
        to_ours({**GEMMA_3, **changed})


def test_gemma_3_scales_the_section_of_layers_that_see_everything(tmp_path: Path) -> None:
    sections = {
        "full_attention": {"rope_type": "default", "rope_theta": 500.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    }
    linear = {"rope_type": "linear", "factor": 8.0}
    values = {**GEMMA_3, "rope_parameters": sections, "rope_scaling": linear}
    assert theirs(values, tmp_path).rope_parameters["full_attention"] == {
        "rope_theta": 500.0,
        **linear,
    }
    ours = to_ours(values)
    assert (ours.rope_theta, ours.window_rope_theta) == (500.0, 100.0)
    assert ours.rope_scaling is not None
    assert ours.rope_scaling.factor == 8


def test_a_ramp_of_yarn_between_two_pairs_is_none_of_gemma_3(tmp_path: Path) -> None:
    """transformers looks for truncate beside the sections of its layer types."""
    values = {**GEMMA_3, "rope_scaling": {**YARN, "truncate": False}}
    rotate = ROPE_INIT_FUNCTIONS["yarn"]
    ignored, heeded = (
        rotate(theirs({**GEMMA_3, "rope_scaling": each}, tmp_path), layer_type="full_attention")[0]
        for each in (values["rope_scaling"], YARN)
    )
    assert torch.equal(ignored, heeded)
    with pytest.raises(HuggingFaceError, match="truncate of full_attention is False"):
        to_ours(values)
    ours = to_ours({**GEMMA_3, "rope_scaling": {**YARN, "truncate": True}})
    assert ours.rope_scaling is not None
    between = replace(ours, rope_scaling=replace(ours.rope_scaling, whole_pairs=False))
    with pytest.raises(HuggingFaceError, match="no layout there"):
        to_theirs(between, dtype="float32")


LATENT = {
    **{key: size for key, size in SIZES.items() if key != "head_dim"},
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "n_group": 1,
    "topk_group": 1,
}


@pytest.mark.parametrize("kind", ["llama", "qwen3", "deepseek_v3"])
def test_two_sections_of_rotary_positions_must_say_the_same(kind: str, tmp_path: Path) -> None:
    values = {
        "model_type": kind,
        **(LATENT if kind == "deepseek_v3" else SIZES),
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
    }
    scaling = {"rope_type": "linear", "factor": 2.0}
    read = theirs({**values, "rope_scaling": scaling}, tmp_path).rope_parameters
    assert read["rope_type"] == "linear"
    assert read["rope_theta"] != 500
    with pytest.raises(HuggingFaceError, match="describe different rotations"):
        to_ours({**values, "rope_scaling": scaling})
    same = {"type": "default", "rope_theta": 500}
    assert to_ours({**values, "rope_scaling": same}) == to_ours(values)


def test_growth_of_scores_must_be_the_same_in_both_sections() -> None:
    values = {
        "model_type": "deepseek_v2",
        **LATENT,
        "rope_parameters": {**YARN, "attention_factor": 1.0, "mscale_all_dim": 0.5},
        "rope_scaling": {**YARN, "attention_factor": 1.0},
    }
    with pytest.raises(HuggingFaceError, match="describe different rotations"):
        to_ours(values)


def test_longrope_of_phi_must_be_the_same_in_both_sections() -> None:
    longrope = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    sizes = {key: size for key, size in SIZES.items() if key != "head_dim"}
    values = {
        "model_type": "phi3",
        **sizes,
        "original_max_position_embeddings": 32,
        "rope_parameters": longrope,
    }
    with_factor = {**longrope, "factor": 4.0}
    assert to_ours({**values, "rope_scaling": with_factor}) == to_ours(values)
    with pytest.raises(HuggingFaceError, match="describe different rotations"):
        to_ours({**values, "rope_scaling": {**longrope, "long_factor": [3.0] * 4}})


TINY: dict[str, Any] = {
    "vocab_size": 64,
    "layers": 4,
    "hidden_size": 32,
    "ffn_size": 48,
    "heads": 4,
    "kv_heads": 2,
    "max_positions": 64,
}
AROUND: dict[str, Any] = {
    "norm_placement": NormPlacement.AROUND,
    "activation": Activation.GELU_TANH,
    "scaled_embedding": True,
}
WINDOWS = {"sliding_window": 8, "full_attention_every": 2}
SINKS: dict[str, Any] = {
    "attention_sinks": True,
    "expert_bias": True,
    "activation": Activation.CLAMPED_SWIGLU,
    "attention_bias": AttentionBias.ALL,
    "experts": 4,
    "experts_per_token": 2,
}


@torch.no_grad()
@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("gemma2", AROUND),
        ("gemma3_text", {**AROUND, "query_key_norm": True}),
        ("gemma3_text", {**AROUND, **WINDOWS, "query_key_norm": True}),
        ("gpt_oss", SINKS),
    ],
    ids=["gemma 2", "gemma 3", "gemma 3 with one base", "sinks"],
)
def test_a_model_without_windows_or_their_base_is_loaded_by_transformers(
    kind: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    config = ModelConfig(**TINY, **changed)
    ours = build_on_meta(config).to_empty(device="cpu")
    initialize(ours, seed=1)
    export_hugging_face(dict(ours.named_parameters()), config, tmp_path)
    assert kind_of(config).model_type == kind
    tokens_BS = torch.arange(40).reshape(2, 20)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.testing.assert_close(ours(tokens_BS), loaded(tokens_BS).logits, rtol=1e-4, atol=1e-5)


def test_one_base_of_rotary_positions_is_none_of_gemma_3_where_it_is_scaled() -> None:
    changed = {**AROUND, **WINDOWS, "query_key_norm": True, "rope_scaling": RopeScaling(factor=8.0)}
    with pytest.raises(HuggingFaceError, match="has no layout there"):
        kind_of(ModelConfig(**TINY, **changed))
