"""Keys of config.json that change nothing, whatever the model type, with the reason for each.

Publishers, mirrors and training libraries leave notes in the file. A key that is not listed here is
refused: it may be of a variant that our model lacks. Three kinds are harmless:

1. `WITHOUT_EFFECT`: notes, and settings of generation or training. Any value.
2. `_OFF`: variants that ours lacks. Only the value at which the variant is off.
3. `_SAID_AGAIN`: what the model is anyway. Only the value that agrees with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from drumline_contract.config import Family, ModelConfig
from drumline_contract.config.variants import Activation, AttentionBias
from drumline_contract.shapes.hugging_face.parts import layer_types

_NOTES: Final = (
    *("model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "auto_map"),
    *("name_or_path", "finetuning_task", "task_specific_params", "problem_type", "tokenizer_class"),
    *("model_name", "license", "language", "tags", "base_model", "library_name", "pipeline_tag"),
    *("is_llama_config", "unsloth_fixed", "unsloth_version", "transformers.js_config"),
)
"""Notes of publishers and libraries, among them nanotron, Unsloth and Transformers.js."""
_LIMITS: Final = (
    *("model_max_length", "max_sequence_length", "max_seq_length", "max_seq_len", "seq_length"),
    *("tokenizer_model_max_length", "tokenizer_padding_side"),
)
"""Length limits of sequences, which do not change the logits of a sequence."""
_KERNELS: Final = (
    *("attn_implementation", "attn_impl", "use_flash_attn", "use_flash_attention"),
    *("use_flash_attention_2", "use_cache", "use_cache_kernel", "use_liger_kernel"),
    *("cache_implementation", "gradient_checkpointing", "use_reentrant_checkpointing"),
    *("chunk_size_feed_forward", "pretraining_tp", "use_bfloat16", "fp16", "bf16", "fp32"),
    *("torchscript", "tf_legacy_loss", "return_dict", "output_attentions", "output_hidden_states"),
)
"""Choices of kernels and caches, which do not change the result."""
_TOKENS: Final = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token")
_GENERATION: Final = (
    *("bad_words_ids", "temperature", "top_k", "top_p", "min_p", "typical_p", "do_sample"),
    *("max_length", "min_length", "max_new_tokens", "repetition_penalty", "length_penalty"),
    *("diversity_penalty", "num_beams", "num_beam_groups", "num_return_sequences"),
    *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty"),
    *("suppress_tokens", "begin_suppress_tokens", "early_stopping", "prefix", "output_scores"),
    *("return_dict_in_generate", "remove_invalid_values"),
)
_TRAINING: Final = (
    *("initializer_range", "initializer_factor", "init_std", "init_method_std"),
    *("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "embd_pdrop"),
    *("resid_pdrop", "resid_dropout", "residual_dropout", "embedding_dropout", "ffn_dropout"),
    *("hidden_dropout", "hidden_dropout_prob", "dropout", "classifier_dropout", "layerdrop"),
    *("neftune_noise_alpha", "router_jitter_noise", "output_router_logits"),
    *("router_aux_loss_coef", "router_z_loss_coef"),
)
"""The run's own, as in `model.dropout` and `model.balance_weight`."""
_OTHER_TASKS: Final = (
    *("id2label", "label2id", "num_labels", "is_decoder", "is_encoder_decoder"),
    *("tie_encoder_decoder", "cross_attention_hidden_size"),
)
WITHOUT_EFFECT: Final = frozenset(
    (*_NOTES, *_LIMITS, *_KERNELS, *_TOKENS, *_GENERATION, *_TRAINING, *_OTHER_TASKS)
) | {
    f"{kind}_token_id"
    for kind in ("bos", "eos", "pad", "unk", "sep", "cls", "mask", "eod", "decoder_start")
} | {"forced_bos_token_id", "forced_eos_token_id"}  # fmt: skip
"""Keys of every type that do not change logits."""

_OFF: Final[Mapping[str, tuple[Any, ...]]] = {
    **dict.fromkeys(
        ("use_mrope", "rope_interleaved", "use_dynamic_ntk", "use_logn_attn"), (False,)
    ),
    **dict.fromkeys(("alibi", "use_alibi", "multi_query", "add_cross_attention"), (False,)),
    **dict.fromkeys(("use_parallel_residual", "parallel_residual", "parallel_attn"), (False,)),
    **dict.fromkeys(("use_resampler", "use_bidirectional_attention"), (False,)),
    **dict.fromkeys(("rope_ratio", "rotary_pct", "rotary_percent", "logit_scale"), (1,)),
    **dict.fromkeys(("rope_scaling_factor", "scale_emb"), (1,)),
    **dict.fromkeys(("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules"), (0,)),
    "shared_expert_intermediate_size": (0,),
    "pruned_heads": ({},),
    "is_causal": (True,),
}
"""With the values at which each is off."""

_Value = Callable[[ModelConfig], Any]


def _has_input_bias(model: ModelConfig) -> bool:
    return model.family is not Family.LLAMA or model.attention_bias is not AttentionBias.NONE


def _has_every_bias(model: ModelConfig) -> bool:
    return model.family is not Family.LLAMA or model.attention_bias is AttentionBias.ALL


_SAID_AGAIN: Final[Mapping[str, _Value]] = {
    **dict.fromkeys(("qkv_bias", "use_qkv_bias", "attention_bias"), _has_input_bias),
    **dict.fromkeys(("attention_out_bias", "attention_output_bias"), _has_every_bias),
    **dict.fromkeys(("bias", "use_bias", "add_bias_linear"), _has_every_bias),
    "no_bias": lambda model: not _has_every_bias(model),
    "mlp_bias": lambda model: model.family is not Family.LLAMA,
    **dict.fromkeys(
        ("use_qk_norm", "qk_norm", "qk_layernorm", "qk_layer_norms"),
        lambda model: model.query_key_norm,
    ),
    "head_dim": lambda model: model.features_per_head,
    "num_key_value_heads": lambda model: model.kv_heads,
    "num_experts": lambda model: model.experts,
    "n_shared_experts": lambda model: model.shared_experts,
    "sliding_window": lambda model: model.sliding_window,
    "use_sliding_window": lambda model: model.sliding_window is not None,
    "layer_types": layer_types,
    "embedding_multiplier": lambda model: model.embedding_multiplier,
    "residual_multiplier": lambda model: model.residual_multiplier,
    "logits_scaling": lambda model: model.logit_divisor,
    "attn_logit_softcapping": lambda model: model.attention_softcap,
    "final_logit_softcapping": lambda model: model.logit_softcap,
    "norm_topk_prob": lambda model: bool(model.experts) and model.routing.normalized,
    "position_embedding_type": lambda model: "rope" if model.family is Family.LLAMA else "absolute",
    "activation": lambda model: "swiglu" if model.activation is Activation.SILU else None,
}
"""With what agrees with a model. Some types translate the key themselves and do not come here."""


def is_off(key: str, value: object) -> bool:
    """Return whether an unknown key has no effect: a note, null, or a disabled variant."""
    # null stands for a setting that is not used.
    if value is None or key.startswith(("_", "unsloth_")) or key in WITHOUT_EFFECT:
        return True
    return _among(value, _OFF.get(key, ()))


def may_agree(key: str) -> bool:
    """Return whether `agrees` can judge an unknown key once the model is known."""
    return key in _SAID_AGAIN


def agrees(key: str, value: object, model: ModelConfig) -> bool:
    """Return whether a key only repeats a property of the model.

    Args:
        key: name in config.json.
        value: its value.
        model: shape of the model.
    """
    return _among(value, (_SAID_AGAIN[key](model),))


def _among(value: object, expected: tuple[Any, ...]) -> bool:
    """Return True if the value equals one of these and is of its kind: 1 is not true."""
    # 1 == True in Python, but a file that says true means something else.
    return any(
        value == same and isinstance(value, bool) is isinstance(same, bool) for same in expected
    )
