"""Keys of DeepSeek's alone: latent attention, its rotary positions, routing by groups."""

from __future__ import annotations

from typing import Any

from drumline_contract.config import ModelConfig
from drumline_contract.config.latent_attention import LatentAttention
from drumline_contract.config.rope import RopeScaling, RopeScalingKind
from drumline_contract.shapes.hugging_face.kind import HuggingFaceError, Part, Raw
from drumline_contract.shapes.hugging_face.rope import of_sections, rope

_SIZES = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
"""With what a missing one means; null queries have no latent."""
_ALL_DIM = "mscale_all_dim"
_GREEDY, _BY_GROUPS = "greedy", "group_limited_greedy"


def latent_attention(*, says_order: bool) -> Part:
    """Describe how sizes of heads and latents are read and written.

    Args:
        says_order: `rope_interleave` says which features turn together; else neighbours do.
    """
    order = {"rope_interleave"} if says_order else set[str]()

    def read(raw: Raw) -> dict[str, Any]:
        sizes: dict[str, Any] = {key: raw.get(key, size) for key, size in _SIZES.items()}
        parts = sizes["qk_nope_head_dim"], sizes["qk_rope_head_dim"]
        if not all(type(size) is int for size in parts):
            raise HuggingFaceError(
                "config.json: qk_nope_head_dim and qk_rope_head_dim must be numbers"
            )
        heads = raw.get("num_attention_heads")
        kv_heads = raw.get("num_key_value_heads")
        return {
            # A head is its part without rotation and its turned part.
            "head_size": sum(parts),
            "kv_heads": heads if kv_heads is None else kv_heads,
            "latent_attention": {
                "query_rank": sizes["q_lora_rank"],
                "key_value_rank": sizes["kv_lora_rank"],
                "turned_size": sizes["qk_rope_head_dim"],
                "value_size": sizes["v_head_dim"],
                # DeepSeek-V2 always rotates neighbouring features.
                "interleaved": raw.get("rope_interleave", True) if says_order else True,
            },
        }

    def write(config: ModelConfig) -> dict[str, Any]:
        latent = config.latent_attention
        if latent is None:
            raise HuggingFaceError("the model has no latent attention")
        return {
            **_written_sizes(config, latent),
            "num_key_value_heads": config.kv_heads,
            **({"rope_interleave": latent.interleaved} if says_order else {}),
        }

    # the last two follow from the others, and their code works them out
    keys = _SIZES.keys() | order | {"num_key_value_heads", "head_dim", "qk_head_dim"}
    return Part(keys=frozenset(keys), read=read, write=write)


def _written_sizes(config: ModelConfig, latent: LatentAttention) -> dict[str, Any]:
    return {
        "q_lora_rank": latent.query_rank,
        "kv_lora_rank": latent.key_value_rank,
        "qk_nope_head_dim": config.features_per_head - latent.turned_size,
        "qk_rope_head_dim": latent.turned_size,
        "v_head_dim": latent.value_size,
    }


def scores_rope() -> Part:
    """Describe rotary positions; with yarn, scores grow by `mscale_all_dim`."""
    plain = rope()

    def read(raw: Raw, section: Raw) -> dict[str, Any]:
        values = plain.read({**raw, "rope_parameters": section, "rope_scaling": None})
        scaling = values["rope_scaling"]
        if scaling is not None and scaling["kind"] == RopeScalingKind.YARN:
            scaling["score_growth"] = section.get(_ALL_DIM) or 0.0
        return values

    def write(config: ModelConfig) -> dict[str, Any]:
        scaling, values = config.rope_scaling, plain.write(config)
        if scaling is not None and scaling.score_growth:
            values["rope_scaling"] |= _written_growth(scaling)
            if scaling.multiplier == 1:  # which follows, also for code that does not know the key
                del values["rope_scaling"]["attention_factor"]
        return values

    return Part(keys=plain.keys, read=of_sections(read), write=write)


def _written_growth(scaling: RopeScaling) -> dict[str, float]:
    return {"mscale": scaling.score_growth, _ALL_DIM: scaling.score_growth}


def _read_sigmoid(raw: Raw) -> dict[str, Any]:
    return {
        "routing": {
            "scores": "sigmoid",
            "groups": raw.get("n_group", 8),
            "groups_per_token": raw.get("topk_group", 4),
            "normalized": raw.get("norm_topk_prob", True),
            "scale": raw.get("routed_scaling_factor", 2.5),
        }
    }


def _write_sigmoid(config: ModelConfig) -> dict[str, Any]:
    return {**_write_groups(config), "norm_topk_prob": config.routing.normalized}


def _write_groups(config: ModelConfig) -> dict[str, Any]:
    routing = config.routing
    return {
        "n_group": routing.groups,
        "topk_group": routing.groups_per_token,
        "routed_scaling_factor": routing.scale,
    }


def _read_softmax(raw: Raw) -> dict[str, Any]:
    method = raw.get("topk_method", _GREEDY)
    if method not in (_GREEDY, _BY_GROUPS):
        raise HuggingFaceError(
            f"config.json: topk_method is {method!r}; only {_GREEDY} and {_BY_GROUPS} can be"
            " imported"
        )
    names = {"groups": "n_group", "groups_per_token": "topk_group"}
    by_groups = method == _BY_GROUPS
    # Greedy choice ignores groups, even if the file has them.
    groups = {ours: raw.get(theirs) for ours, theirs in names.items()} if by_groups else {}
    scale = raw.get("routed_scaling_factor", 1.0)
    return {"routing": {"scores": "softmax", "normalized": False, "scale": scale, **groups}}


def _write_softmax(config: ModelConfig) -> dict[str, Any]:
    method = _GREEDY if config.routing.groups == 1 else _BY_GROUPS
    return {**_write_groups(config), "topk_method": method}


_ROUTING = frozenset({"n_group", "topk_group", "norm_topk_prob", "routed_scaling_factor"})
SIGMOID_ROUTING = Part(keys=_ROUTING, read=_read_sigmoid, write=_write_sigmoid)
SOFTMAX_ROUTING = Part(
    keys=_ROUTING - {"norm_topk_prob"} | {"topk_method"}, read=_read_softmax, write=_write_softmax
)
