"""Every weight of a model by name with how many numbers it has. No torch: bills are made of it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from drumline_contract.config import Family, ModelConfig
from drumline_contract.config.latent_attention import LatentAttention
from drumline_contract.config.learning import name_patterns
from drumline_contract.config.variants import AttentionBias, NormPlacement
from drumline_contract.shapes.flops import weights

Sizes = Iterator[tuple[str, int]]
_LAYERS: Final = "layers."


def weight_sizes(model: ModelConfig) -> Sizes:
    """Yield name and number of elements of each weight, with the names of `models.build`."""
    hidden, llama = model.hidden_size, model.family is Family.LLAMA
    if model.family is Family.VIT:
        yield from _linear("embedding.projection", model.channels * model.patch_size**2, hidden)
        if model.class_token:
            yield "embedding.class_token", hidden
        yield "position_embedding.weight", model.image_positions * hidden
        yield from _linear("output", hidden, model.classes)
    else:
        yield "embedding.weight", model.vocab_size * hidden
        if not llama:
            yield "position_embedding.weight", model.max_positions * hidden
        if not model.tied_embeddings:
            yield "output.weight", model.vocab_size * hidden
    yield from _norm("norm", hidden, bias=not llama)
    for layer in range(model.layers):
        of_layer = _llama_layer(model, layer) if llama else _gpt2_layer(model)
        yield from ((f"{_LAYERS}{layer}.{name}", size) for name, size in of_layer)


def learning_shares(
    model: ModelConfig, *, trainable: str | None, freeze: str | None
) -> tuple[float, float]:
    """Return the trained shares of a model's weights: outside of experts, and of experts.

    Args:
        model: shape of the model.
        trainable: pattern of names that are trained. None: all.
        freeze: pattern of names that are not trained. None: none.
    """
    if trainable is None and freeze is None:
        return 1.0, 1.0
    # Names match either the trained or the frozen weights.
    totals, matched = _matched(model, trainable or freeze or "")
    dense, experts = (mine / max(1, all_) for mine, all_ in zip(matched, totals, strict=True))
    return (dense, experts) if freeze is None else (1 - dense, 1 - experts)


def learning_weights(model: ModelConfig, *, trainable: str | None, freeze: str | None) -> int:
    """Return the number of a model's weights that are trained.

    Args:
        model: shape of the model.
        trainable: pattern of names that are trained. None: all.
        freeze: pattern of names that are not trained. None: none.
    """
    if trainable is None and freeze is None:
        return weights(model)
    totals, matched = _matched(model, trainable or freeze or "")
    return sum(matched) if freeze is None else sum(totals) - sum(matched)


@functools.lru_cache(maxsize=64)
def _matched(model: ModelConfig, text: str) -> tuple[tuple[int, int], tuple[int, int]]:
    """Count all weights, and those of the patterns; each as (outside of experts, of experts)."""
    patterns = name_patterns(text)
    # in halves, as layers have their rests in common, and a layer's weights its number
    after, before = functools.cache(patterns.after), functools.cache(patterns.before)
    totals, matched = [0, 0], [0, 0]
    for name, size in weight_sizes(model):
        kind = int(".experts." in name)
        totals[kind] += size
        cut = name.index(".", len(_LAYERS)) if name.startswith(_LAYERS) else 0
        # A name matches if some state is reached from both sides.
        if after(name[:cut]) & before(name[cut:]):
            matched[kind] += size
    return (totals[0], totals[1]), (matched[0], matched[1])


def _linear(name: str, inputs: int, outputs: int, *, bias: bool = True) -> Sizes:
    yield f"{name}.weight", inputs * outputs
    if bias:
        yield f"{name}.bias", outputs


def _norm(name: str, size: int, *, bias: bool = False) -> Sizes:
    yield f"{name}.weight", size
    if bias:
        yield f"{name}.bias", size


def _gpt2_layer(model: ModelConfig) -> Sizes:
    hidden = model.hidden_size
    query, keys = (n * model.features_per_head for n in (model.heads, model.kv_heads))
    yield from _norm("attention_norm", hidden, bias=True)
    # GPT-2 has biases everywhere.
    for name, outputs in (("query", query), ("key", keys), ("value", keys)):
        yield from _linear(f"attention.{name}", hidden, outputs)
    yield from _linear("attention.output", query, hidden)
    yield from _norm("feed_forward_norm", hidden, bias=True)
    yield from _linear("feed_forward.up", hidden, model.ffn_size)
    yield from _linear("feed_forward.down", model.ffn_size, hidden)


def _llama_layer(model: ModelConfig, layer: int) -> Sizes:
    hidden = model.hidden_size
    for block in ("attention", "feed_forward"):
        if model.norm_placement is not NormPlacement.AFTER:
            yield from _norm(f"{block}_norm", hidden)
        if model.norm_placement is not NormPlacement.BEFORE:
            yield from _norm(f"{block}_out_norm", hidden)
    latent = model.latent_attention
    yield from _attention(model) if latent is None else _latent_attention(model, latent)
    if model.has_experts(layer):
        yield from _mixture(model)
    else:
        yield from _gated("feed_forward", hidden, model.ffn_size)


def _gated(name: str, hidden: int, inner: int) -> Sizes:
    for projection in ("gate", "up", "down"):
        yield f"{name}.{projection}.weight", hidden * inner


def _attention(model: ModelConfig) -> Sizes:
    hidden, size = model.hidden_size, model.features_per_head
    query, keys = model.heads * size, model.kv_heads * size
    biased = model.attention_bias is not AttentionBias.NONE
    for name, outputs in (("query", query), ("key", keys), ("value", keys)):
        yield from _linear(f"attention.{name}", hidden, outputs, bias=biased)
    ends_biased = model.attention_bias is AttentionBias.ALL
    yield from _linear("attention.output", query, hidden, bias=ends_biased)
    if model.query_key_norm:
        whole = model.query_key_norm_over_heads
        yield from _norm("attention.query_norm", query if whole else size)
        yield from _norm("attention.key_norm", keys if whole else size)
    if model.attention_sinks:
        yield "attention.sinks.weight", model.heads


def _latent_attention(model: ModelConfig, latent: LatentAttention) -> Sizes:
    hidden, heads = model.hidden_size, model.heads
    query = heads * model.features_per_head
    if latent.query_rank is None:
        yield "attention.query.weight", hidden * query
    else:
        yield "attention.query_latent.weight", hidden * latent.query_rank
        yield from _norm("attention.query_latent_norm", latent.query_rank)
        yield "attention.query.weight", latent.query_rank * query
    rank, values = latent.key_value_rank, heads * latent.value_size
    # The turned part of the keys is shared by all heads.
    yield "attention.key_value_latent.weight", hidden * (rank + latent.turned_size)
    yield from _norm("attention.key_value_latent_norm", rank)
    yield "attention.key_value.weight", rank * (query - heads * latent.turned_size + values)
    yield "attention.output.weight", values * hidden


def _mixture(model: ModelConfig) -> Sizes:
    hidden, inner, experts = model.hidden_size, model.features_per_expert, model.experts
    yield from _linear("feed_forward.router", hidden, experts, bias=model.expert_bias)
    if model.corrects_scores:
        yield "feed_forward.correction", experts
    for name, biases in (("gate", inner), ("up", inner), ("down", hidden)):
        yield f"feed_forward.experts.{name}", experts * hidden * inner
        if model.expert_bias:
            yield f"feed_forward.experts.{name}_bias", experts * biases
    if model.shared_experts:
        yield from _gated("feed_forward.shared", hidden, model.shared_experts * inner)
