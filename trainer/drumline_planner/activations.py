"""Activations that a micro-batch keeps in memory between its forward and its backward pass.

Counted tensor by tensor as autograd keeps them in this trainer's models (a test compares with
`saved_tensors_hooks`), not by a formula of a paper. `setup.Software` names the differences of other
software. Bytes on one rank, of one micro-batch. O(1).

N tokens, D hidden, Q heads · head size, K key-value heads · head size, F feed-forward, w bytes:

    llama layer, no recompute      w·N·(4D + 3Q + 2K + 4F) + 4N·(2 + heads)
    GPT-2 layer                    w·N·(4D + 2Q + 2K + 2F) + 4N·(4 + heads)
    tensor parallelism of t        Q, K, F, heads by t; of the four D, two by t with sequence
                                   parallelism (residuals), two never (inputs of blocks)
    full                           w·N·D, by t with sequence parallelism
    selective                      that, and the outputs of products and attention
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from drumline_contract.config import Family, Recompute
from drumline_contract.config.latent_attention import LatentAttention
from drumline_contract.shapes.attention import scores_computed
from drumline_contract.shapes.flops import norms_of_layer
from drumline_contract.shapes.loss_rows import rows_of_chunk
from drumline_planner.setup import TrainingSetup


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Bytes of one layer by kind."""

    norms: float
    attention: float
    feed_forward: float
    dropout: float

    @property
    def total(self) -> float:
        """Bytes of all kinds together."""
        return self.norms + self.attention + self.feed_forward + self.dropout


def layer_kept(setup: TrainingSetup) -> Kept:
    """Return the bytes that a layer keeps without recompute."""
    model, tensor, width = setup.model, setup.layout.tensor, setup.width
    tokens, own, hidden = setup.tokens, setup.own_tokens, model.hidden_size
    # Llama keeps one statistic for each row (RMSNorm), GPT-2 two (LayerNorm), in fp32.
    llama = model.family is Family.LLAMA
    gathered = own if setup.software.gathers_again else tokens
    statistics = 4 if llama else 8
    again = 0.0 if setup.software.fused_norms or not llama else 4.0 * own * hidden
    # Two norms: each keeps its input, and the next product keeps the norm's result.
    norms = 2 * (width * hidden * (own + gathered) + statistics * own + again)
    if llama and norms_of_layer(model) > 2:  # what attention and feed-forward gave, for its norm
        norms += 2 * (width * hidden * own + statistics * own + again)
    return Kept(
        norms=norms,
        attention=_attention(setup) / tensor,
        feed_forward=_feed_forward(setup) / tensor,
        # Dropout keeps a mask of one byte per value, twice in a layer.
        dropout=2.0 * own * hidden if model.dropout else 0.0,
    )


def _attention(setup: TrainingSetup) -> float:
    """Return queries, keys, values and result, and the log-sum-exp or the scores."""
    model, tokens = setup.model, setup.tokens
    if model.latent_attention is not None:
        return _latent_attention(setup, model.latent_attention)
    head = model.features_per_head
    # Queries and result have all heads, keys and values the key-value heads.
    kept = setup.width * tokens * head * 2.0 * (model.heads + model.kv_heads)
    if setup.software.fused_attention:
        # rotated queries lie head by head, so their result is copied once to lie token by token
        copies = model.family is Family.LLAMA and not setup.software.fused_gate
        turning = sum(map(model.turns, range(model.layers))) / model.layers
        copied = model.heads * head * turning if copies else 0
        if model.writes_scores:
            return kept + setup.width * tokens * copied + _written_scores(setup)
        # The log-sum-exp is one fp32 number for each query and head.
        return kept + setup.width * tokens * copied + 4.0 * tokens * model.heads
    pairs = tokens * setup.sequence_length * model.heads
    # softmax's result; with dropout what it left, and its mask
    return kept + pairs * (2.0 * setup.width + 1.0 if model.dropout else setup.width)


def _latent_attention(setup: TrainingSetup, latent: LatentAttention) -> float:
    """Return the bytes of latent attention.

    Latents and their norms are on all tensor ranks. Queries, keys, padded values and the result are
    divided.
    """
    model, tokens = setup.model, setup.tokens
    # Latents are counted once for each tensor rank, hence the factor at the end.
    of_queries = latent.query_rank or 0
    made = of_queries + latent.key_value_rank + latent.turned_size
    again = 0.0 if setup.software.fused_norms else 4.0 * (of_queries + latent.key_value_rank)
    norms = 2 if of_queries else 1
    shared = setup.width * (made + of_queries + latent.key_value_rank) + 4.0 * norms + again
    heads = model.heads * (4.0 * model.features_per_head + latent.value_size)
    of_heads = setup.width * heads + 4.0 * model.heads
    return tokens * (of_heads + shared * setup.layout.tensor)


def _written_scores(setup: TrainingSetup) -> float:
    """Return the bytes of a layer's attention without a torch kernel."""
    model, length = setup.model, setup.sequence_length
    # A sliding window limits the scores of a layer. The mean counts all layers.
    pairs = sum(scores_computed(length, model.window(layer)) for layer in range(model.layers))
    copied = setup.width if setup.width < 4 else 0  # softmax works in fp32
    capped = 0 if model.attention_softcap is None else setup.width
    each = capped + 4.0 + copied
    return setup.tokens / length * pairs / model.layers * model.heads * each


def _feed_forward(setup: TrainingSetup) -> float:
    model, tokens, width = setup.model, setup.tokens, setup.width
    if model.family is not Family.LLAMA:
        # The input of the activation function and its result.
        return 2.0 * width * tokens * model.ffn_size
    # gate and up, which a fused gate takes in as one tensor; its result; else the gate's result too
    tensors = 3.0 if setup.software.fused_gate else 4.0
    if not model.experts:
        return tensors * width * tokens * model.ffn_size
    # Each token passes several experts, so rows exceed tokens.
    rows = tokens * model.experts_per_token
    inner = tensors * width * (rows + model.shared_experts * tokens) * model.features_per_expert
    # the rows before and after the experts are on every tensor rank, and so is the router
    outside = 2.0 * width * rows * model.hidden_size + 4.0 * tokens * model.experts + 56.0 * rows
    return inner + outside * setup.layout.tensor


def layer_input(setup: TrainingSetup) -> float:
    """Return the residual stream at the input of a layer."""
    return setup.width * setup.own_tokens * setup.model.hidden_size


def products_kept(setup: TrainingSetup) -> float:
    """Return the product results that selective recompute keeps of a layer besides its input."""
    model, tokens, width = setup.model, setup.tokens, setup.width
    head, tensor = model.features_per_head, setup.layout.tensor
    if not setup.software.fused_attention:  # all but the attention core (Korthikanti et al. 2022)
        # Everything but the scores, which are quadratic in the length.
        kept = layer_kept(setup)
        scores = tokens * setup.sequence_length * model.heads
        dropped = scores * (2.0 * width + 1.0 if model.dropout else width) / tensor
        return kept.total - dropped - layer_input(setup)
    if setup.software.keeps_every_second:  # queries, values, what attention gave, gate, down
        cut = 2.0 * model.heads * head + model.kv_heads * head + model.ffn_size
        own = width * setup.own_tokens * model.hidden_size
        return (width * tokens * cut + 4.0 * tokens * model.heads) / tensor + own
    # Llama has gate and up, others one product.
    wide = {Family.LLAMA: 2}.get(model.family, 1) * model.ffn_size
    if model.experts:
        active = model.experts_per_token + model.shared_experts
        wide = active * (2 * model.features_per_expert + model.hidden_size * tensor)
    attention = 2.0 * (model.heads + model.kv_heads) * head
    latent = model.latent_attention
    if latent is not None:  # queries, keys and values without what turns, the result; latents
        attention = model.heads * (3.0 * head - latent.turned_size + latent.value_size)
        made = (latent.query_rank or 0) + latent.key_value_rank + latent.turned_size
        attention += made * tensor
    cut = width * tokens * (attention + wide) + 4.0 * tokens * model.heads
    # what output gave and down, or the router
    whole = model.hidden_size + (model.experts or model.hidden_size)
    # The outputs of row-cut products are whole on every tensor rank.
    return cut / tensor + width * tokens * whole


def layers_kept(setup: TrainingSetup, layers: range) -> float:
    """Return the bytes that a stage's layers keep of one micro-batch from forward to backward."""
    match setup.recompute:
        case Recompute.NONE:
            return sum(count * layer_kept(kind).total for kind, count in setup.kinds(layers))
        case Recompute.SELECTIVE:
            products = sum(count * products_kept(kind) for kind, count in setup.kinds(layers))
            return len(layers) * layer_input(setup) + products
        case Recompute.FULL:
            return len(layers) * layer_input(setup)
        case Recompute.BLOCKS:
            # One input for each run; the last run can be shorter.
            runs = math.ceil(len(layers) / run_length(setup, len(layers)))
            return runs * layer_input(setup)


def run_length(setup: TrainingSetup, layers: int) -> int:
    """Return the number of layers in a run, for recompute by blocks."""
    return setup.memory.recompute_every or max(1, math.isqrt(layers))


def recompute_peak(setup: TrainingSetup, layers: range) -> float:
    """Return the additional bytes while the largest layer of a stage is recomputed."""
    kinds = setup.kinds(layers)
    return max((_recompute_peak(kind, len(layers)) for kind, _ in kinds), default=0.0)


def _recompute_peak(setup: TrainingSetup, layers: int) -> float:
    match setup.recompute:
        case Recompute.NONE:
            return 0.0
        case Recompute.BLOCKS:
            # While a run is recomputed, its layers' inputs and one layer's activations exist.
            inside = run_length(setup, layers) * layer_input(setup)
            return inside + layer_kept(setup).total
        case Recompute.SELECTIVE:
            return max(0.0, layer_kept(setup).total - products_kept(setup))
        case Recompute.FULL:
            return layer_kept(setup).total - layer_input(setup)


def embedding_kept(setup: TrainingSetup) -> float:
    """Return the tokens, and rotary tables or positions."""
    model, tokens = setup.model, setup.tokens
    length = setup.sequence_length // setup.layout.context
    # 8 bytes: token numbers and positions are int64.
    places = 8.0 * length
    if model.family is Family.LLAMA:
        places = setup.width * length * model.features_turned
    # A cut vocabulary keeps a mask of one byte for each token.
    cut = tokens if setup.layout.tensor > 1 else 0
    return 8.0 * tokens + cut + places + (tokens * model.hidden_size if model.dropout else 0)


def head_kept(setup: TrainingSetup) -> float:
    """Return the last norm, the input of the head, and the kept part of the logits."""
    model, tokens, own = setup.model, setup.tokens, setup.own_tokens
    hidden, width, tensor = model.hidden_size, setup.width, setup.layout.tensor
    llama = model.family is Family.LLAMA
    gathered = own if setup.software.gathers_again else tokens
    again = 0.0 if setup.software.fused_norms or not llama else 4.0 * own * hidden
    # The last norm, like the norms of a layer.
    norm = width * hidden * (own + gathered) + (4.0 if llama else 8.0) * own + again
    if model.logit_softcap is not None:
        norm += width * tokens * model.outputs / tensor
    if tensor == 1 and setup.software.loss_by_rows:
        # Labels (int64), mask and sums of the loss. Several chunks also keep the largest logits.
        is_one_chunk = width == 4.0 and tokens <= rows_of_chunk(model.outputs)
        return norm + width * tokens * model.outputs + (13.0 if is_one_chunk else 17.0) * tokens
    if tensor == 1 or setup.software.gathers_again:
        return norm + 4.0 * tokens * model.outputs / tensor
    return norm + width * tokens * model.outputs / tensor + 18.0 * tokens


def loss_peak(setup: TrainingSetup) -> float:
    """Return the additional bytes of loss and backward pass: logits and their gradients."""
    words = setup.model.outputs / setup.layout.tensor
    if setup.software.loss_by_rows:
        rows = min(setup.tokens, rows_of_chunk(math.ceil(words)))
        # Only one chunk of rows exists in fp32, logits and gradient.
        return words * (setup.tokens * setup.width + rows * 8.0)
    return setup.tokens * words * (4.0 + setup.width)
