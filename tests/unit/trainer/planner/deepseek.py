"""DeepSeek's models by their published sizes."""

from __future__ import annotations

from typing import Any

from drumline_contract.config import ModelConfig
from drumline_contract.shapes.hugging_face import to_ours

_LATENTS: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "attention_bias": False,
    "moe_layer_freq": 1,
}
_YARN: dict[str, Any] = {
    "type": "yarn",
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 4096,
}
PUBLISHED: dict[str, dict[str, Any]] = {
    "deepseek-v3": {
        **_LATENTS,
        "model_type": "deepseek_v3",
        "vocab_size": 129_280,
        "hidden_size": 7168,
        "intermediate_size": 18_432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_nextn_predict_layers": 1,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "max_position_embeddings": 163_840,
        "rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        "ep_size": 1,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
    },
    "deepseek-v2": {
        **_LATENTS,
        "model_type": "deepseek_v2",
        "vocab_size": 102_400,
        "hidden_size": 5120,
        "intermediate_size": 12_288,
        "moe_intermediate_size": 1536,
        "num_hidden_layers": 60,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "n_shared_experts": 2,
        "n_routed_experts": 160,
        "num_experts_per_tok": 6,
        "n_group": 8,
        "topk_group": 3,
        "topk_method": "group_limited_greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 16.0,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 163_840,
        "rope_scaling": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        "aux_loss_alpha": 0.001,
        "seq_aux": True,
    },
    "deepseek-v2-lite": {
        **_LATENTS,
        "model_type": "deepseek_v2",
        "vocab_size": 102_400,
        "hidden_size": 2048,
        "intermediate_size": 10_944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "max_position_embeddings": 163_840,
        "rope_scaling": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
}
"""What their config.json says of what they compute."""


def published(name: str) -> ModelConfig:
    """As it is imported."""
    return to_ours(PUBLISHED[name])
