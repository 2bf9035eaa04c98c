"""A tiny random configuration of any model of transformers: its default one with small sizes.

Sizes are known by their names, which the library's configurations share. What remains is written
for single model types below.
"""

from __future__ import annotations

from typing import Any, Final

WORDS: Final = 96
SIZES: Final[dict[str, Any]] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embedding_size"), 32),
    **dict.fromkeys(("word_embed_proj_dim", "hidden_dim", "embed_dim", "lru_width"), 32),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 2
    ),
    **dict.fromkeys(("encoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "n_head_kv", "num_kv_heads", "kv_n_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_ff", "ffn_hidden_size"), 48),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "inner_dim"), 48),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 24),
    **dict.fromkeys(("shared_intermediate_size", "expert_ffn_hidden_size"), 24),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("moe_top_k", "top_k", "n_activated_experts", "router_top_k"), 2),
    **dict.fromkeys(("head_dim", "attention_head_dim", "kv_channels"), 8),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("vocab_size", "n_words"), WORDS),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 128),
    **dict.fromkeys(("sliding_window", "attention_window_size", "local_attention_window"), 8),
    **dict.fromkeys(("pad_token_id", "padding_idx"), 0),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "decoder_start_token_id", "mask_token_id"), 1),
    **dict.fromkeys(
        ("linear_key_head_dim", "linear_value_head_dim", "mamba_d_head", "mamba_head_dim"), 8
    ),
    **dict.fromkeys(("linear_num_key_heads",), 2),
    "linear_num_value_heads": 4,
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    "vocab_size_per_layer_input": WORDS,
    "hidden_size_per_layer_input": 8,
    "num_kv_shared_layers": 0,
    **dict.fromkeys(("mamba_d_state", "ssm_state_size", "state_size"), 8),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "mamba_ngroups"), 1),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 8),
}
DROPOUTS: Final = ("drop", "jitter")
"""Parts of the names of rates that are set to 0, so that two programs draw nothing."""


def tiny(kind: type[Any], special: dict[str, Any] | None = None) -> Any:
    """An instance of a configuration class with small sizes."""
    default = kind()
    special = SPECIAL.get(kind.model_type, {}) | (special or {})
    return kind(**(_small(default) | special))


def _small(default: Any) -> dict[str, Any]:
    values = default.to_dict()
    changed: dict[str, Any] = {}
    for name, value in values.items():
        if name in SIZES and isinstance(value, int | None) and not isinstance(value, bool):
            if value is not None or name == "pad_token_id":
                changed[name] = SIZES[name]
        elif isinstance(value, float) and any(part in name for part in DROPOUTS):
            changed[name] = 0.0
    for name in default.sub_configs:
        inner = getattr(default, name, None)
        if inner is not None and hasattr(inner, "to_dict"):
            changed[name] = {**_small(inner), "model_type": inner.model_type}
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        kinds = values.get(name)
        if isinstance(kinds, list) and kinds:
            changed[name] = _each_kind(kinds)
            changed["num_hidden_layers"] = max(2, len(set(kinds)))
    if "qk_rope_head_dim" in values and "num_key_value_heads" in changed:
        changed["num_key_value_heads"] = 4  # latent attention gives each head keys of its own
    if changed.get("is_decoder", values.get("is_decoder")) is False:
        changed["is_decoder"] = True
    return changed


def _each_kind(kinds: list[str]) -> list[str]:
    """Two layers, of different kinds where there are several."""
    different = list(dict.fromkeys(kinds))
    return (different + different)[: max(2, len(different))]


_ROPE: Final = {
    kind: {"rope_type": "default", "rope_theta": 10_000.0}
    for kind in ("full_attention", "sliding_attention")
}
SPECIAL: Final[dict[str, dict[str, Any]]] = {
    "cohere_compass_text": {"rope_parameters": _ROPE},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "xlm": {"causal": True},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {"num_key_value_heads": 4},
    "dots3_note_text": {"num_key_value_heads": 4},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "reformer": {
        "axial_pos_shape": (4, 4),
        "axial_pos_embds_dim": (16, 16),
        "attn_layers": ["local", "local"],
        "local_attn_chunk_length": 16,
        "attention_head_size": 8,
        "feed_forward_size": 48,
    },
    "xmod": {"default_language": "en_XX", "languages": ["en_XX"]},
    "zaya": {"num_experts_per_tok": 1},
    "zamba": {
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "num_hidden_layers": 4,
    },
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_d_head": 8},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10_000.0},
        "ffn_config": {
            "hidden_size": 32,
            "ffn_hidden_size": 48,
            "moe_num_experts": 4,
            "moe_top_k": 2,
            "ffn_act_fn": {"name": "silu"},
        },
    },
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 4,
        "hc_lowrank": 8,
    },
}
"""What single model types need besides, by type."""
