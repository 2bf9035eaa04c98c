"""Their config.json and our `ModelConfig`, as tables: what has which name, and what must be how.

A key of theirs that changes what a model computes is translated, or must have the one value that
our model stands for: nothing is silently ignored that would give other logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from drumline_trainer.config import ConfigError, Family, ModelConfig
from drumline_trainer.config.decoding import decode


class HuggingFaceError(ConfigError):
    """A folder that cannot be read, or a model that has no layout there; says which part."""


_MISSING: Any = object()
_OTHER_NAMES = {"num_experts": "num_local_experts"}
"""What versions of `transformers` from 5 on write for some keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of their model types."""

    model_type: str
    architecture: str
    fields: Mapping[str, str]
    """Their key -> our field."""
    fixed: Mapping[str, Any]
    """Their key -> the only value we can be, which is also what a missing key means."""
    meaning: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Their key -> what it means where it is missing."""
    ours: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Our field -> the value it always has."""


_LLAMA_FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_size": "hidden_size",
    "intermediate_size": "ffn_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_size",
    "rms_norm_eps": "norm_epsilon",
    "tie_word_embeddings": "tied_embeddings",
    "max_position_embeddings": "max_positions",
}
_LLAMA_MEANING = {
    "num_key_value_heads": None,
    "head_dim": None,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
}
_SCALING_FIELDS = {
    "factor": "factor",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
    "original_max_position_embeddings": "original_positions",
}
_LLAMA_FIXED = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
_QWEN_FIXED = {"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False}

KINDS = (
    Kind(
        model_type="llama",
        architecture="LlamaForCausalLM",
        fields=_LLAMA_FIELDS,
        fixed=_LLAMA_FIXED,
        meaning=_LLAMA_MEANING,
        ours={"family": Family.LLAMA, "query_key_norm": False, "experts": 0},
    ),
    Kind(
        model_type="qwen3",
        architecture="Qwen3ForCausalLM",
        fields=_LLAMA_FIELDS,
        fixed=_QWEN_FIXED,
        meaning={**_LLAMA_MEANING, "head_dim": 128},
        ours={"family": Family.LLAMA, "query_key_norm": True, "experts": 0},
    ),
    Kind(
        model_type="qwen3_moe",
        architecture="Qwen3MoeForCausalLM",
        fields={
            **_LLAMA_FIELDS,
            "num_experts": "experts",
            "num_experts_per_tok": "experts_per_token",
            "moe_intermediate_size": "expert_ffn_size",
            "router_aux_loss_coef": "balance_weight",
        },
        fixed={
            **_QWEN_FIXED,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        meaning={**_LLAMA_MEANING, "router_aux_loss_coef": 0.001},
        ours={"family": Family.LLAMA, "query_key_norm": True, "shared_experts": 0},
    ),
    Kind(
        model_type="gpt2",
        architecture="GPT2LMHeadModel",
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
        ours={"family": Family.GPT2, "head_size": None},
    ),
)


def kind_of(config: ModelConfig) -> Kind:
    """Their model type that computes what ours does. Raises HuggingFaceError."""
    for kind in KINDS:
        if config.experts and "num_experts" not in kind.fields:
            continue
        if not config.experts and "num_experts" in kind.fields:
            continue
        if all(getattr(config, name) == value for name, value in kind.ours.items()):
            break
    else:
        raise HuggingFaceError(
            f"a {config.family} model with experts {config.experts}, shared_experts"
            f" {config.shared_experts}, query_key_norm {config.query_key_norm} and head_size"
            f" {config.head_size} has no layout there; llama, Qwen 3, Qwen 3 MoE and GPT-2 have"
        )
    if kind.model_type == "gpt2" and config.kv_heads != config.heads:
        raise HuggingFaceError("GPT-2 has as many key-value heads as heads there")
    return kind


def to_theirs(config: ModelConfig, *, dtype: str) -> dict[str, Any]:
    """Their config.json. Raises HuggingFaceError."""
    kind = kind_of(config)
    values = {theirs: getattr(config, ours) for theirs, ours in kind.fields.items()}
    if "head_dim" in values:
        values["head_dim"] = config.features_per_head
        values |= _rope_to_theirs(config)
    if "moe_intermediate_size" in values:
        values["moe_intermediate_size"] = config.features_per_expert
    return {
        "architectures": [kind.architecture],
        "model_type": kind.model_type,
        **values,
        **kind.fixed,
        "bos_token_id": None,
        "eos_token_id": None,
        "torch_dtype": dtype,
    }


def to_ours(raw: Mapping[str, Any]) -> ModelConfig:
    """The model a config.json describes. Raises HuggingFaceError."""
    kind = next((k for k in KINDS if k.model_type == raw.get("model_type")), None)
    if kind is None:
        known = ", ".join(k.model_type for k in KINDS)
        raise HuggingFaceError(
            f"config.json: model_type is {raw.get('model_type')!r}; one of {known} can be imported"
        )
    for key, value in kind.fixed.items():
        if raw.get(key, value) != value and not (value == [] and raw[key] is None):
            raise HuggingFaceError(
                f"config.json: {key} is {raw[key]!r}; only {value!r} can be imported"
            )
    values = {ours: _field(raw, theirs, kind=kind) for theirs, ours in kind.fields.items()} | dict(
        kind.ours
    )
    if kind.model_type == "gpt2":
        values["kv_heads"] = values["heads"]
        values["ffn_size"] = values["ffn_size"] or 4 * values["hidden_size"]
    else:
        values["kv_heads"] = values["kv_heads"] or values["heads"]
        if values["head_size"] == values["hidden_size"] / values["heads"]:
            values["head_size"] = None
        values |= _rope_to_ours(raw)
    try:
        return decode(ModelConfig, values, path="")
    except (ConfigError, TypeError) as error:
        raise HuggingFaceError(f"config.json: {error}") from error


def _field(raw: Mapping[str, Any], key: str, *, kind: Kind) -> Any:
    if key not in raw:
        key = _OTHER_NAMES.get(key, key)
    value = raw.get(key, kind.meaning.get(key, _MISSING))
    if value is _MISSING:
        raise HuggingFaceError(f"config.json: {key} is missing")
    return value


def _rope_to_theirs(config: ModelConfig) -> dict[str, Any]:
    """In the keys that all their versions read."""
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_theta": config.rope_theta}
    values = {theirs: getattr(scaling, ours) for theirs, ours in _SCALING_FIELDS.items()}
    return {"rope_theta": config.rope_theta, "rope_scaling": {"rope_type": "llama3", **values}}


def _rope_to_ours(raw: Mapping[str, Any]) -> dict[str, Any]:
    """From either place where their versions keep it."""
    rope: Mapping[str, Any] = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    theta = rope.get("rope_theta", raw.get("rope_theta", 10_000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return {"rope_theta": theta, "rope_scaling": None}
    if kind != "llama3":
        raise HuggingFaceError(
            f"config.json: rope_scaling is of type {kind!r}; only default and llama3 can be"
            " imported"
        )
    missing = _SCALING_FIELDS.keys() - rope.keys()
    if missing:
        raise HuggingFaceError(f"config.json: rope_scaling lacks {', '.join(sorted(missing))}")
    scaling = {ours: rope[theirs] for theirs, ours in _SCALING_FIELDS.items()}
    return {"rope_theta": theta, "rope_scaling": scaling}
