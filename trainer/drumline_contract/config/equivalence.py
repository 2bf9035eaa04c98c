"""When two models compute the same from the same weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from drumline_contract.config.model import ModelConfig
from drumline_contract.config.routing import Routing
from drumline_contract.config.variants import Family

FREE_TO_CHOOSE: Final = ("dropout", "balance_weight")
"""Settings that may differ between two runs that use the same weights."""
_OF_MIXTURES: Final = ("experts_per_token", "expert_ffn_size", "dense_layers")
_OF_IMAGES: Final = ("image_size", "patch_size", "channels", "classes", "class_token")
_OF_TEXT: Final = ("vocab_size", "tied_embeddings")
_OF_ROTARY: Final = ("rope_theta", "rope_scaling")


def canonical(model: ModelConfig) -> ModelConfig:
    """Return a normal form that is equal for models that compute the same.

    Derived sizes are written out. Settings that are not read, or that a run may choose freely, get
    their defaults.
    """
    if model.family is Family.TRANSFORMERS:
        return model
    without_effect = {*FREE_TO_CHOOSE}
    if model.family is not Family.GPT2:
        without_effect.add("max_positions")
    if not model.experts:
        without_effect |= {*_OF_MIXTURES}
    if model.family is not Family.VIT:
        without_effect |= {*_OF_IMAGES}
    else:
        without_effect |= {*_OF_TEXT}
    if model.family is not Family.LLAMA:
        without_effect |= {*_OF_ROTARY}
    if model.query_divisor == model.features_per_head:
        without_effect.add("query_divisor")
    if model.window_rope_theta == model.rope_theta and model.rope_scaling is None:
        without_effect.add("window_rope_theta")
    for name in ("full_attention_every", "no_rope_every"):
        if getattr(model, name) > model.layers:
            without_effect.add(name)
    defaults = ModelConfig()
    values: dict[str, Any] = {"head_size": model.features_per_head}
    values["routing"] = _same_routing(model)
    if model.experts:
        values["expert_ffn_size"] = model.features_per_expert
    return replace(model, **values, **{name: getattr(defaults, name) for name in without_effect})


def _same_routing(model: ModelConfig) -> Routing:
    """Normalize the routing: drop the rate, and a group limit that excludes no group."""
    routing = replace(model.routing, correction_rate=0.0) if model.experts else Routing()
    if routing.groups == routing.groups_per_token:
        return replace(routing, groups=1, groups_per_token=1)
    return routing
