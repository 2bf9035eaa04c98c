"""Model FLOP utilization. No torch.

Convention (PaLM, Chowdhery et al. 2022, appendix B): training costs per token

    6 · N + 6 · L · A · S    with causal attention
    6 · N + 12 · L · A · S   where every position sees all (vision transformers)

FLOPs: 2 for each product and sum, forward once and backward twice. N are the weights in products
that a token takes part in: the output head counts, tied or not, and looking up an embedding does
not; of a mixture the router, the chosen and the shared experts count. L layers, A = heads · size of
a head (with latent attention the mean of a key's and a value's), S sequence length; in layers with
a window of W positions S becomes 2 · W - W² / S. A token of a vision transformer is a patch; its
embedding is a product, and its classifier, one product per image, is left out. A class token counts
as one more patch. Preferences cost a third more: their reference's forward pass.

MFU divides the achieved FLOP/s of a device by its dense bf16 peak, whatever the precision of the
run; a device without a known peak has no MFU.
"""

from __future__ import annotations

import functools

from drumline_contract.config import Family, ModelConfig, TrainerConfig
from drumline_contract.config.variants import AttentionBias, NormPlacement
from drumline_contract.shapes.layer_kinds import layer_kinds

PEAK_BF16_FLOPS: dict[str, float] = {
    "A100": 312e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "GH200": 989e12,
    "B200": 2250e12,
    "GB200": 2500e12,
    "MI300X": 1307e12,
    "L4": 121e12,
    "L40S": 362e12,
}
"""Dense peaks of the vendor's data sheets."""


def matmul_weights(model: ModelConfig) -> int:
    """Count the weights of the matrix products that one token takes part in."""
    layers = sum(len(own) * layer_products(kind) for kind, own in layer_kinds(model))
    if model.family is Family.VIT:
        return layers + model.channels * model.patch_size**2 * model.hidden_size
    # The head is a product whether tied or not. The embedding is a lookup.
    return layers + model.vocab_size * model.hidden_size


def layer_products(model: ModelConfig) -> int:
    """Return the product weights that a token passes in one layer, if all layers are alike."""
    return _attention_weights(model) + _feed_forward_weights(model, active=active_experts(model))


def active_experts(model: ModelConfig) -> int:
    """Return the number of experts that a token passes, shared ones included."""
    return model.experts_per_token + model.shared_experts if model.experts else 0


def _attention_weights(model: ModelConfig) -> int:
    query_size = model.heads * model.features_per_head
    latent = model.latent_attention
    if latent is None:
        key_value_size = model.kv_heads * model.features_per_head
        # Queries, keys and values, and the output: two products of each size.
        return 2 * model.hidden_size * (query_size + key_value_size)
    value_size = model.heads * latent.value_size
    into_queries = latent.query_rank or model.hidden_size
    # All heads share the turned part of their keys, which `latent_weights` counts.
    unturned = query_size - model.heads * latent.turned_size
    return (
        latent_weights(model)
        + into_queries * query_size
        + latent.key_value_rank * (unturned + value_size)
        + value_size * model.hidden_size
    )


def latent_weights(model: ModelConfig) -> int:
    """Return the weights of one layer that compute latents. Every tensor rank holds all of them."""
    latent = model.latent_attention
    # A model without latents has no such weights.
    if latent is None:
        return 0
    made = (latent.query_rank or 0) + latent.key_value_rank + latent.turned_size
    return model.hidden_size * made


def _feed_forward_weights(model: ModelConfig, *, active: int) -> int:
    """Return the feed-forward weights of one layer, if all layers are alike."""
    if model.family is not Family.LLAMA:
        # Two products: up and down. Gated layers have a third.
        return 2 * model.hidden_size * model.ffn_size
    if not model.experts:
        return 3 * model.hidden_size * model.ffn_size
    # The router sees every token, an expert only its own.
    return model.hidden_size * (model.experts + 3 * active * model.features_per_expert)


def layer_weights(model: ModelConfig) -> int:
    """Count all weights of one layer of a model whose layers are alike."""
    products = _attention_weights(model)
    products += _feed_forward_weights(model, active=model.experts + model.shared_experts)
    if model.family is Family.LLAMA:
        return products + layer_vectors(model)
    hidden, heads = model.hidden_size, model.heads + 2 * model.kv_heads
    # Biases of queries, keys and values, of the feed-forward, and six vectors of the hidden size.
    return products + heads * model.features_per_head + model.ffn_size + 6 * hidden


@functools.lru_cache(maxsize=256)
def weights(model: ModelConfig) -> int:
    """Count all weights of the model: every expert, embeddings, norms and biases too."""
    hidden = model.hidden_size
    layers = sum(len(own) * layer_weights(kind) for kind, own in layer_kinds(model))
    if model.family is Family.VIT:
        patches = model.channels * model.patch_size**2 * hidden
        return (
            layers
            + patches
            + 2 * hidden
            # Bias of the projection, the class token, and a vector for each position.
            + hidden * (1 + model.class_token + model.image_positions)
            + (hidden + 1) * model.classes
        )
    words = model.vocab_size * hidden
    ends = words if model.tied_embeddings else 2 * words
    if model.family is Family.LLAMA:
        return layers + ends + hidden
    # The final norm has a bias here, and positions are learned.
    return layers + ends + 2 * hidden + model.max_positions * hidden


def norms_of_layer(model: ModelConfig) -> int:
    """Count the norms on the residual stream of a layer, or on what is added to it."""
    return 4 if model.norm_placement is NormPlacement.AROUND else 2


def layer_vectors(model: ModelConfig) -> int:
    """Count the weights of biases, norms, sinks and corrections of a llama layer."""
    return replicated_vectors(model) + cut_vectors(model) + expert_vectors(model)


def replicated_vectors(model: ModelConfig) -> int:
    """Return the vector weights of one layer that every tensor rank holds."""
    norms = norms_of_layer(model) * model.hidden_size
    if model.query_key_norm:
        normed = model.heads + model.kv_heads if model.query_key_norm_over_heads else 2
        norms += normed * model.features_per_head
    if model.latent_attention is not None:
        norms += (model.latent_attention.query_rank or 0) + model.latent_attention.key_value_rank
    # Row-cut outputs are summed before the bias, so each rank holds the whole bias.
    output = model.hidden_size if model.attention_bias is AttentionBias.ALL else 0
    of_experts = model.expert_bias + model.corrects_scores
    return norms + output + model.experts * of_experts


def cut_vectors(model: ModelConfig) -> int:
    """Return the vector weights of one layer that tensor ranks divide by heads."""
    sinks = model.heads if model.attention_sinks else 0
    if model.attention_bias is AttentionBias.NONE:
        return sinks
    return sinks + (model.heads + 2 * model.kv_heads) * model.features_per_head


def expert_vectors(model: ModelConfig) -> int:
    """Return the vector weights of one layer that are biases of experts."""
    each = 2 * model.features_per_expert + model.hidden_size
    return model.experts * each if model.expert_bias else 0


def seen_positions(model: ModelConfig, *, sequence_length: int) -> float:
    """Sum over the layers of S, or of what a window leaves of it: 2 W - W² / S of a window W.

    A causal token sees half of it in the mean.
    """
    if model.sliding_window is None:  # of a search with thousands of layouts
        return float(model.layers * sequence_length)
    # None means all positions.
    windows = (model.window(layer) or sequence_length for layer in range(model.layers))
    seen = (min(window, sequence_length) for window in windows)
    # A window of W: the first W positions see less, which gives 2W - W²/S in this convention.
    return sum(2 * window - window * window / sequence_length for window in seen)


def flops_per_token(
    model: ModelConfig, *, sequence_length: int, reference_pass: bool = False
) -> int:
    """Forward and backward, and of preferences the reference's forward pass.

    Args:
        model: shape of the model.
        sequence_length: tokens in a sequence.
        reference_pass: whether preference training runs the reference model.
    """
    # Scores and values: 2 products, 2 operations, 3 passes. Half of them are masked if causal.
    each_pair = 12 if model.family is Family.VIT else 6
    attention_size = model.heads * (model.features_per_head + model.features_per_value) / 2
    attention = each_pair * attention_size * seen_positions(model, sequence_length=sequence_length)
    flops = 6 * matmul_weights(model) + round(attention)
    # Forward and backward cost 3 forward passes, the reference one more.
    return flops + flops // 3 if reference_pass else flops


def flops_of_run(config: TrainerConfig) -> int:
    """Return the operations per token of a run, with its reference pass if it has one."""
    return flops_per_token(
        config.model,
        sequence_length=config.tokens_per_sample,
        reference_pass=config.dpo is not None,
    )


def peak_flops(device_name: str) -> float | None:
    """Return a device's dense bf16 peak by its marketing name; the longest known name wins."""
    # Spaces keep "L4" from matching "L40S".
    words = f" {device_name.replace('-', ' ')} "
    known = [name for name in PEAK_BF16_FLOPS if f" {name} " in words]
    return PEAK_BF16_FLOPS[max(known, key=len)] if known else None


def mfu_of_run(
    config: TrainerConfig, tokens_per_second: float | None, *, devices: int, peak: float | None
) -> float | None:
    """Return the MFU at a speed over all devices, or None if speed, peak or model are not known.

    Args:
        config: configuration of the run.
        tokens_per_second: speed of all devices.
        devices: number of devices.
        peak: dense FLOP/s of a device. None: unknown.
    """
    if tokens_per_second is None or config.model.family is Family.TRANSFORMERS:
        return None
    return mfu(tokens_per_second, flops=flops_of_run(config), devices=devices, peak=peak)


def mfu(tokens_per_second: float, *, flops: int, devices: int, peak: float | None) -> float | None:
    """Share of the devices' peak; `flops` per token. None on an unknown device.

    Args:
        tokens_per_second: speed of all devices.
        flops: FLOPs of a token.
        devices: number of devices.
        peak: dense FLOP/s of a device. None: unknown.
    """
    return None if peak is None else tokens_per_second * flops / (devices * peak)
