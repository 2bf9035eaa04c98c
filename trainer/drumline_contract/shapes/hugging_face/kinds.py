"""Their model types, in the order in which an export looks for one that is ours."""

from __future__ import annotations

from typing import Any

from drumline_contract.config import Family
from drumline_contract.config.variants import Activation, AttentionBias, NormPlacement
from drumline_contract.shapes.hugging_face.deepseek import (
    SIGMOID_ROUTING,
    SOFTMAX_ROUTING,
    latent_attention,
    scores_rope,
)
from drumline_contract.shapes.hugging_face.kind import Kind, TensorNames
from drumline_contract.shapes.hugging_face.parts import (
    LAYERS_WITHOUT_ROPE,
    QWEN_MIXTURE,
    QWEN_MOE_WINDOW,
    QWEN_WINDOW,
    SCORE_MULTIPLIER,
    alternating,
    biases,
    caps,
    heads,
    window,
)
from drumline_contract.shapes.hugging_face.rope import GEMMA_3_ROPE, phi_rope, rope
from drumline_contract.shapes.hugging_face.vision import VIT

_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "rms_norm_eps": "norm_epsilon",
    "tie_word_embeddings": "tied_embeddings",
    "max_position_embeddings": "max_positions",
}
# Defaults of transformers' config classes, which files may leave out.
_MEANING = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "max_position_embeddings": 2048}
# Gated feed-forward with SiLU (SwiGLU). Other activations need another `Kind`.
_SILU: dict[str, Any] = {"hidden_act": "silu"}
_DENSE = {"family": Family.LLAMA, "experts": 0}
_MIXTURE = {"family": Family.LLAMA, "shared_experts": 0}

_DEEPSEEK_FIELDS = {
    **_FIELDS,
    "n_routed_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_ffn_size",
    "n_shared_experts": "shared_experts",
    "first_k_dense_replace": "dense_layers",
}
# Every layer after the dense ones is a mixture.
_DEEPSEEK_FIXED: dict[str, Any] = {"attention_bias": False, "moe_layer_freq": 1}
# These keys affect the training loss or the placement of experts, not the logits.
_DEEPSEEK_IGNORED = frozenset({"ep_size", "aux_loss_alpha", "seq_aux"})
_DEEPSEEK: dict[str, Any] = {"family": Family.LLAMA}

_OLMO: dict[str, Any] = {
    **_DENSE,
    "norm_placement": NormPlacement.AFTER,
    "query_key_norm": True,
    # OLMo 2 normalizes queries and keys over all heads.
    "query_key_norm_over_heads": True,
}
_GEMMA: dict[str, Any] = {
    **_DENSE,
    "norm_placement": NormPlacement.AROUND,
    "activation": Activation.GELU_TANH,
    # Gemma multiplies embeddings by the root of the hidden size.
    "scaled_embedding": True,
}
_GEMMA_FIXED = {"hidden_activation": "gelu_pytorch_tanh", "use_bidirectional_attention": False}
_GEMMA_MEANING = {**_MEANING, "tie_word_embeddings": True}

KINDS = (
    Kind(
        model_type="llama",
        architecture="LlamaForCausalLM",
        fields=_FIELDS,
        fixed={**_SILU, "mlp_bias": False},
        meaning=_MEANING,
        ours=_DENSE,
        parts=(heads(), rope(), biases()),
    ),
    Kind(
        model_type="mistral",
        architecture="MistralForCausalLM",
        fields=_FIELDS,
        fixed=_SILU,
        meaning=_MEANING,
        ours=_DENSE,
        parts=(heads(), rope(), window(missing=4096)),
    ),
    Kind(
        model_type="qwen2",
        architecture="Qwen2ForCausalLM",
        fields=_FIELDS,
        fixed=_SILU,
        meaning=_MEANING,
        ours={**_DENSE, "attention_bias": AttentionBias.INPUTS},
        parts=(heads(), rope(), QWEN_WINDOW),
    ),
    Kind(
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        fields=_FIELDS,
        fixed=_SILU,
        meaning=_MEANING,
        ours={**_DENSE, "query_key_norm": True},
        # Qwen 3's config class has heads of 128 features, whatever hidden_size / heads is.
        parts=(heads(size=128), rope(), biases(), QWEN_WINDOW),
    ),
    Kind(
        model_type="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        fields={
            **_FIELDS,
            "num_experts": "experts",
            "num_experts_per_tok": "experts_per_token",
            "moe_intermediate_size": "expert_ffn_size",
        },
        # A step of 1 means a mixture in every layer.
        fixed={**_SILU, "decoder_sparse_step": 1},
        meaning=_MEANING,
        ours={**_MIXTURE, "query_key_norm": True},
        parts=(heads(), rope(), biases(), QWEN_MOE_WINDOW, QWEN_MIXTURE),
    ),
    Kind(
        model_type="mixtral",
        architecture="MixtralForCausalLM",
        names=TensorNames.MIXTRAL,
        fields={
            **_FIELDS,
            "num_local_experts": "experts",
            "num_experts_per_tok": "experts_per_token",
        },
        fixed=_SILU,
        meaning={**_MEANING, "rms_norm_eps": 1e-5},
        ours=_MIXTURE,
        parts=(heads(), rope(theta=1_000_000.0), window(missing=None)),
    ),
    Kind(
        model_type="deepseek_v3",
        architecture="DeepseekV3ForCausalLM",
        fields=_DEEPSEEK_FIELDS,
        fixed={
            **_SILU,
            **_DEEPSEEK_FIXED,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
        },
        # DeepSeek-V3's config class has 3 dense layers by default, V2's has none.
        meaning={**_MEANING, "first_k_dense_replace": 3},
        ours=_DEEPSEEK,
        parts=(latent_attention(says_order=True), scores_rope(), SIGMOID_ROUTING),
        ignored=_DEEPSEEK_IGNORED | {"num_mtp_layers"},
        # Multi-token prediction layers follow the last layer. Import leaves them out.
        further_layers="num_nextn_predict_layers",
        unpacked=("fp8",),
    ),
    Kind(
        model_type="deepseek_v2",
        architecture="DeepseekV2ForCausalLM",
        fields=_DEEPSEEK_FIELDS,
        fixed={
            **_SILU,
            **_DEEPSEEK_FIXED,
            "scoring_func": "softmax",
            "norm_topk_prob": False,
            "mlp_bias": False,
        },
        meaning={**_MEANING, "first_k_dense_replace": 0},
        ours=_DEEPSEEK,
        parts=(latent_attention(says_order=False), scores_rope(), SOFTMAX_ROUTING),
        ignored=_DEEPSEEK_IGNORED,
    ),
    Kind(
        model_type="gpt_oss",
        architecture="GptOssForCausalLM",
        names=TensorNames.GPT_OSS,
        fields={
            **_FIELDS,
            "num_local_experts": "experts",
            "num_experts_per_tok": "experts_per_token",
        },
        # Constants of the clamped SwiGLU that our activation has built in.
        fixed={**_SILU, "swiglu_alpha": 1.702, "swiglu_limit": 7.0},
        meaning={**_MEANING, "rms_norm_eps": 1e-5},
        ours={
            **_MIXTURE,
            "attention_sinks": True,
            "expert_bias": True,
            "activation": Activation.CLAMPED_SWIGLU,
        },
        parts=(
            heads(size=64),
            rope(theta=150_000.0, required=True),
            biases(missing=True),
            alternating(every=2, missing=128),
        ),
        ignored=frozenset({"experts_per_token", "initial_context_length"}),  # said twice
        unpacked=("mxfp4",),
    ),
    Kind(
        model_type="phi3",
        architecture="Phi3ForCausalLM",
        names=TensorNames.PHI,
        fields=_FIELDS,
        fixed={**_SILU, "attention_bias": False},
        meaning={**_MEANING, "rms_norm_eps": 1e-5},
        ours=_DENSE,
        # Phi-3 packs queries, keys and values in one tensor, so it has its own names.
        parts=(heads(), phi_rope(), window(missing=None)),
    ),
    Kind(
        model_type="olmo2",
        architecture="Olmo2ForCausalLM",
        names=TensorNames.OLMO,
        fields=_FIELDS,
        fixed=_SILU,
        meaning={**_MEANING, "rms_norm_eps": 1e-5},
        ours=_OLMO,
        parts=(heads(), rope(), biases()),
    ),
    Kind(
        model_type="smollm3",
        architecture="SmolLM3ForCausalLM",
        fields=_FIELDS,
        fixed={**_SILU, "mlp_bias": False, "use_sliding_window": False},
        meaning={**_MEANING, "tie_word_embeddings": True, "max_position_embeddings": 32768},
        ours=_DENSE,
        # SmolLM3 leaves rotary positions out of every fourth layer.
        parts=(heads(), rope(theta=2_000_000.0), biases(), LAYERS_WITHOUT_ROPE),
        # of windows, which it has only where use_sliding_window says so
        ignored=frozenset({"sliding_window", "max_window_layers"}),
    ),
    Kind(
        model_type="granite",
        architecture="GraniteForCausalLM",
        fields={
            **_FIELDS,
            "embedding_multiplier": "embedding_multiplier",
            "residual_multiplier": "residual_multiplier",
            "logits_scaling": "logit_divisor",
        },
        fixed={**_SILU, "mlp_bias": False},
        meaning={
            **_MEANING,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
        ours=_DENSE,
        parts=(heads(), rope(), biases(), SCORE_MULTIPLIER),
    ),
    Kind(
        model_type="gemma2",
        architecture="Gemma2ForCausalLM",
        names=TensorNames.GEMMA,
        fields=_FIELDS,
        fixed=_GEMMA_FIXED,
        meaning=_GEMMA_MEANING,
        ours=_GEMMA,
        parts=(
            heads(size=256),
            rope(),
            biases(),
            # Gemma 2 alternates: every second layer sees all positions.
            alternating(every=2),
            caps(attention=50.0, logits=30.0),
        ),
        # older words that their code does not read
        ignored=frozenset({"hidden_act", "sliding_window_size"}),
    ),
    Kind(
        model_type="gemma3_text",
        architecture="Gemma3ForCausalLM",
        names=TensorNames.GEMMA,
        fields=_FIELDS,
        # Gemma 3 has the key of scores from Gemma 2, and its code does not read it.
        fixed={**_GEMMA_FIXED, "attn_logit_softcapping": None},
        meaning=_GEMMA_MEANING,
        ours={**_GEMMA, "query_key_norm": True},
        parts=(
            heads(size=256),
            GEMMA_3_ROPE,
            biases(),
            # Gemma 3: every sixth layer.
            alternating(every=6, has_pattern=True),
            caps(attention=None, logits=None),
        ),
    ),
    Kind(
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
        names=TensorNames.GPT2,
        fields={
            "vocab_size": "vocab_size",
            "n_embd": "hidden_size",
            "n_inner": "ffn_size",
            "n_layer": "layers",
            "n_head": "heads",
            "n_positions": "max_positions",
            "layer_norm_epsilon": "norm_epsilon",
            "tie_word_embeddings": "tied_embeddings",
        },
        fixed={
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        },
        meaning={"n_inner": None, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
        # GPT-2 has no head_dim key.
        ours={"family": Family.GPT2, "head_size": None},
        ignored=frozenset(
            {
                *("n_ctx", "reorder_and_upcast_attn", "summary_activation"),
                *("summary_first_dropout", "summary_proj_to_labels", "summary_type"),
                "summary_use_proj",
            }
        ),
    ),
    VIT,
)
