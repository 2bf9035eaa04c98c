"""Model FLOP utilization. No torch.

Convention (PaLM, Chowdhery et al. 2022, appendix B): training costs per token

    6 · N + 6 · L · A · S    with causal attention
    6 · N + 12 · L · A · S   where every position sees all (vision transformers)

FLOPs: 2 for each product and sum, forward once and backward twice. N are the weights in products
that a token takes part in: the output head counts, tied or not, and looking up an embedding does
not; of a mixture the router, the chosen and the shared experts count. L layers, A = heads · size of
a head, S sequence length; in layers with a window of W positions S becomes 2 · W - W² / S. A token
of a vision transformer is a patch; its embedding is a product, and its classifier, one product per
image, is left out.

MFU divides the achieved FLOP/s of a device by its dense bf16 peak, whatever the precision of the
run; a device without a known peak has no MFU.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from drumline_trainer.config import Family, ModelConfig, TrainerConfig
from drumline_trainer.config.model import AttentionBias, NormPlacement

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
    """Weights of the products that one token takes part in."""
    query_size = model.heads * model.features_per_head
    key_value_size = model.kv_heads * model.features_per_head
    attention = 2 * model.hidden_size * (query_size + key_value_size)
    layers = model.layers * (attention + _feed_forward_weights(model))
    if model.family is Family.VIT:
        return layers + model.channels * model.patch_size**2 * model.hidden_size
    return layers + model.vocab_size * model.hidden_size


def _feed_forward_weights(model: ModelConfig) -> int:
    """Of one layer."""
    if model.family is not Family.LLAMA:
        return 2 * model.hidden_size * model.ffn_size
    if not model.experts:
        return 3 * model.hidden_size * model.ffn_size
    active = model.experts_per_token + model.shared_experts
    return model.hidden_size * (model.experts + 3 * active * model.features_per_expert)


@functools.lru_cache(maxsize=256)
def weights(model: ModelConfig) -> int:
    """All weights of the model: every expert, embeddings, norms and biases too."""
    hidden, layers = model.hidden_size, model.layers
    products = matmul_weights(replace(model, experts_per_token=max(1, model.experts)))
    if model.family is Family.LLAMA:
        looked_up = 0 if model.tied_embeddings else model.vocab_size * hidden
        return products + looked_up + hidden + layers * layer_vectors(model)
    heads = model.heads + 2 * model.kv_heads
    biases = layers * (heads * model.features_per_head + model.ffn_size + 2 * hidden)
    total = products + biases + 2 * (2 * layers + 1) * hidden
    if model.family is Family.VIT:
        return total + hidden * (1 + model.patches) + (hidden + 1) * model.classes
    looked_up = model.max_positions + (0 if model.tied_embeddings else model.vocab_size)
    return total + looked_up * hidden


def norms_of_layer(model: ModelConfig) -> int:
    """Norms on the residual stream of a layer, or on what is added to it."""
    return 4 if model.norm_placement is NormPlacement.AROUND else 2


def layer_vectors(model: ModelConfig) -> int:
    """Weights of biases, norms and sinks of a llama layer."""
    return replicated_vectors(model) + cut_vectors(model) + expert_vectors(model)


def replicated_vectors(model: ModelConfig) -> int:
    """Of these, the ones that every tensor rank holds."""
    norms = norms_of_layer(model) * model.hidden_size
    if model.query_key_norm:
        normed = model.heads + model.kv_heads if model.query_key_norm_over_heads else 2
        norms += normed * model.features_per_head
    output = model.hidden_size if model.attention_bias is AttentionBias.ALL else 0
    return norms + output + (model.experts if model.expert_bias else 0)


def cut_vectors(model: ModelConfig) -> int:
    """Of these, the ones that tensor ranks share out by heads."""
    sinks = model.heads if model.attention_sinks else 0
    if model.attention_bias is AttentionBias.NONE:
        return sinks
    return sinks + (model.heads + 2 * model.kv_heads) * model.features_per_head


def expert_vectors(model: ModelConfig) -> int:
    """Of these, the biases of experts."""
    each = 2 * model.features_per_expert + model.hidden_size
    return model.experts * each if model.expert_bias else 0


def seen_positions(model: ModelConfig, *, sequence_length: int) -> float:
    """Sum over the layers of S, or of what a window leaves of it: 2 W - W² / S of a window W.

    A causal token sees half of it in the mean.
    """
    if model.sliding_window is None:  # of a search with thousands of layouts
        return float(model.layers * sequence_length)
    windows = (model.window(layer) or sequence_length for layer in range(model.layers))
    seen = (min(window, sequence_length) for window in windows)
    return sum(2 * window - window * window / sequence_length for window in seen)


def flops_per_token(model: ModelConfig, *, sequence_length: int) -> int:
    """Forward and backward."""
    each_pair = 12 if model.family is Family.VIT else 6
    attention_size = model.heads * model.features_per_head
    attention = each_pair * attention_size * seen_positions(model, sequence_length=sequence_length)
    return 6 * matmul_weights(model) + round(attention)


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 peak of the device with this marketing name; the longest known name wins."""
    words = f" {device_name.replace('-', ' ')} "
    known = [name for name in PEAK_BF16_FLOPS if f" {name} " in words]
    return PEAK_BF16_FLOPS[max(known, key=len)] if known else None


def mfu_of_run(
    config: TrainerConfig, tokens_per_second: float | None, *, devices: int, peak: float | None
) -> float | None:
    """MFU at a speed over all devices; None where the speed or the peak is not known."""
    if tokens_per_second is None:
        return None
    flops = flops_per_token(config.model, sequence_length=config.tokens_per_sample)
    return mfu(tokens_per_second, flops=flops, devices=devices, peak=peak)


def mfu(tokens_per_second: float, *, flops: int, devices: int, peak: float | None) -> float | None:
    """Share of the devices' peak; `flops` per token. None on an unknown device."""
    return None if peak is None else tokens_per_second * flops / (devices * peak)
