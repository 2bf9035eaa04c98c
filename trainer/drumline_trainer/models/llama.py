"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Mistral, Mixtral, Qwen, Phi, OLMo, Gemma, SmolLM3, Granite and DeepSeek are the same with a window,
experts, biases, other norms, soft caps, multipliers, layers without positions, another activation
or latent attention: each variant is a field of the configuration.

Single-device code that reads like the papers; parallelism is applied from outside, by replacing
linear layers, embeddings and what `models.seams` holds, and by leaving parts out of pipeline stages
(`models.decoder`). No buffers: rotary tables are made by the forward that needs them and kept for
the next one, so a model built on the meta device needs nothing but its parameters
(`models.initialize`).

Shapes: B batch, S sequence, D hidden, F feed-forward, V vocabulary, H heads, G key-value heads,
E size of one head (D = H·E where the configuration does not say it).
"""

from __future__ import annotations

from torch import Tensor, nn

from drumline_contract.config import ModelConfig
from drumline_contract.config.rope import RopeScalingKind
from drumline_contract.config.variants import AttentionBias, NormPlacement
from drumline_trainer.models.decoder import Decoder, times
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.feed_forward import GatedFeedForward
from drumline_trainer.models.latent_attention import MultiHeadLatentAttention
from drumline_trainer.models.mixture import MixtureOfExperts
from drumline_trainer.models.replaceable import AttentionSinks, CoreAttention
from drumline_trainer.models.rotary import Rotary, rotary_tables, rotate


class LlamaAttention(nn.Module):
    """Causal self-attention; each key-value head serves H / G query heads (Ainslie et al. 2023)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.head_size = config.features_per_head
        query_size = config.heads * self.head_size
        key_value_size = config.kv_heads * self.head_size
        # Three levels of biases: none, on queries, keys and values (Qwen 2), or on all four
        # projections.
        bias = config.attention_bias is not AttentionBias.NONE
        self.query = nn.Linear(config.hidden_size, query_size, bias=bias)
        self.key = nn.Linear(config.hidden_size, key_value_size, bias=bias)
        self.value = nn.Linear(config.hidden_size, key_value_size, bias=bias)
        bias = config.attention_bias is AttentionBias.ALL
        self.output = nn.Linear(query_size, config.hidden_size, bias=bias)
        # OLMo 2 normalizes all heads together, Qwen 3 each head by itself.
        self.normed_over_heads = config.query_key_norm_over_heads
        self.query_norm, self.key_norm = (
            nn.RMSNorm(
                size if config.query_key_norm_over_heads else self.head_size,
                eps=config.norm_epsilon,
            )
            if config.query_key_norm
            else nn.Identity()
            for size in (query_size, key_value_size)
        )
        window = config.window(layer)
        self.core_attention = CoreAttention(
            causal=True,
            window=window,
            scale=config.score_scale,
            softcap=config.attention_softcap,
        )
        self.sinks = AttentionSinks(config.heads) if config.attention_sinks else None
        # Gemma 3 has one base for layers with a window and another for the rest. Tables 0 and 1 are
        # the rest's.
        own_tables = window is not None and config.window_rope_theta is not None
        self.tables = slice(2, 4) if own_tables else slice(0, 2)
        self.turns = config.turns(layer)

    def forward(self, x_BSD: Tensor, rotary: Rotary, documents: Documents | None = None) -> Tensor:
        """Attend to earlier positions of the same document; shape [batch, sequence, hidden].

        Args:
            x_BSD: hidden states [batch, sequence, hidden].
            rotary: rotations by position.
            documents: limits of documents in each sequence.
        """
        # Phase 1: queries and keys. Norms come before the rotation, as in Qwen 3 and OLMo 2.
        q_BHSE = self._normed_heads(self.query(x_BSD), self.query_norm)
        k_BGSE = self._normed_heads(self.key(x_BSD), self.key_norm)
        # SmolLM3 leaves positions out of every fourth layer.
        if self.turns:
            cos, sin = rotary[self.tables]
            q_BHSE, k_BGSE = rotate(q_BHSE, (cos, sin)), rotate(k_BGSE, (cos, sin))
        # [B, S, D] becomes [B, G, S, E]. Values are neither normalized nor rotated.
        v_BGSE = self._split_heads(self.value(x_BSD))
        # Phase 2: attention. Sinks are passed only if they exist, because replaced cores need not
        # know them.
        sinks = () if self.sinks is None else (self.sinks(),)
        out_BHSE = self.core_attention(q_BHSE, k_BGSE, v_BGSE, documents, *sinks)
        # Phase 3: [B, H, S, E] becomes [B, S, H * E] again.
        return self.output(out_BHSE.transpose(1, 2).flatten(-2))

    def _normed_heads(self, x_BSD: Tensor, norm: nn.Module) -> Tensor:
        if self.normed_over_heads:
            # The norm over all heads needs them in one dimension, so it comes before the split.
            return self._split_heads(norm(x_BSD))
        return norm(self._split_heads(x_BSD))

    def _split_heads(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.unflatten(-1, (-1, self.head_size)).transpose(1, 2)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - partly untyped in torch


class LlamaLayer(nn.Module):
    """Attention and feed-forward, each between its norms and added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        # Norms lie before the block (Llama), after it (OLMo 2), or on both sides (Gemma 2). A
        # missing norm is an Identity without parameters.
        self.attention_norm, self.feed_forward_norm = (
            _norm(config, unless=NormPlacement.AFTER) for _ in range(2)
        )
        self.attention = (
            LlamaAttention(config, layer)
            if config.latent_attention is None
            else MultiHeadLatentAttention(config, config.latent_attention)
        )
        self.feed_forward = (
            MixtureOfExperts(config)
            if config.has_experts(layer)
            else GatedFeedForward(config.hidden_size, config.ffn_size, config.activation)
        )
        self.attention_out_norm, self.feed_forward_out_norm = (
            _norm(config, unless=NormPlacement.BEFORE) for _ in range(2)
        )
        self.residual_multiplier = config.residual_multiplier
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BSD: Tensor, rotary: Rotary, documents: Documents | None = None) -> Tensor:
        """Apply one residual block of each kind; shape [batch, sequence, hidden].

        Args:
            x_BSD: hidden states [batch, sequence, hidden].
            rotary: rotations by position.
            documents: limits of documents in each sequence.
        """
        # The residual stream itself is never normalized between layers.
        mixed_BSD = self.attention(self.attention_norm(x_BSD), rotary, documents)
        x_BSD = x_BSD + self._added(self.attention_out_norm(mixed_BSD))
        fed_BSD = self.feed_forward(self.feed_forward_norm(x_BSD), *self._routed(documents))
        return x_BSD + self._added(self.feed_forward_out_norm(fed_BSD))

    def _routed(self, documents: Documents | None) -> tuple[Documents, ...]:
        """Return further arguments of the feed-forward: documents for a mixture."""
        mixture = isinstance(self.feed_forward, MixtureOfExperts)
        return (documents,) if mixture and documents is not None else ()

    def _added(self, x_BSD: Tensor) -> Tensor:
        # Granite multiplies what a block adds, before dropout.
        x_BSD = times(x_BSD, self.residual_multiplier)
        return self.dropout(x_BSD) if self.dropout.p else x_BSD


def _norm(config: ModelConfig, *, unless: NormPlacement) -> nn.Module:
    if config.norm_placement is unless:
        return nn.Identity()
    return nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)


class Llama(Decoder):
    """The whole decoder, or the layers of one pipeline stage."""

    def __init__(self, config: ModelConfig) -> None:
        norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        super().__init__(config, layer=LlamaLayer, norm=norm)
        self._kept_tables: tuple[object, Rotary] | None = None

    def forward(self, inputs: Tensor, documents: Documents | None = None) -> Tensor:
        """Run the stage: tokens [batch, sequence] or hidden states in, logits or hidden states out.

        Hidden states have the shape [batch, sequence, hidden], logits [batch, sequence,
        vocabulary]. With documents, each is computed as if it were alone.
        """
        # Tokens are integers, hidden states are not. So a stage needs no flag for its place.
        x_BSD = inputs if inputs.is_floating_point() else self.embedded(inputs)
        # Experts must know which documents their tokens are of, also if a rank has some positions
        # only.
        if documents is not None and self.config.experts:
            documents = documents.at(self.positions(x_BSD))
        rotary = self._rotary(x_BSD) if documents is None else self._tables(x_BSD, documents)
        return self.logits(self.layer_loop(self.layers.values(), x_BSD, rotary, documents))

    def _rotary(self, x_BSD: Tensor) -> Rotary:
        # Without documents the tables follow from the number of positions and from the seam that
        # numbers them. Those of the last forward pass are kept, because a toy spends one hundredth
        # of a step on them.
        key = x_BSD.shape[1], x_BSD.dtype, x_BSD.device, self.positions
        if self._kept_tables is None or self._kept_tables[0] != key:
            self._kept_tables = key, self._tables(x_BSD, None)
        return self._kept_tables[1]

    def _tables(self, x_BSD: Tensor, documents: Documents | None) -> Rotary:
        config, turned = self.config, self.config.features_turned
        places, scaling = self.places(x_BSD, documents), config.rope_scaling
        # Only longrope depends on the length: long documents use other factors.
        by_length = scaling is not None and scaling.kind is RopeScalingKind.LONGROPE
        everywhere = rotary_tables(
            places,
            turned,
            theta=config.rope_theta,
            scaling=scaling,
            lengths=self.lengths(x_BSD, documents) if by_length else 0,
            like=x_BSD,
        )
        if config.window_rope_theta is None:
            return everywhere
        theta = config.window_rope_theta
        # The window's tables have no scaling. Gemma 3 scales only its global layers.
        return everywhere + rotary_tables(places, turned, theta=theta, like=x_BSD)
