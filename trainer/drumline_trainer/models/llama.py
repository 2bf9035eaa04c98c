"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Mistral, Mixtral and Qwen are the same with a window, experts, biases or norms of queries and keys.

Single-device code that reads like the papers; parallelism is applied from outside, by replacing
linear layers, embeddings and what `models.seams` holds, and by leaving parts out of pipeline stages
(`models.decoder`). No buffers: rotary tables are recomputed each forward, so a model built on the
meta device needs nothing but its parameters (`models.initialize`).

Shapes: B batch, S sequence, D hidden, F feed-forward, V vocabulary, H heads, G key-value heads,
E size of one head (D = H·E where the configuration does not say it).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from drumline_trainer.config import ModelConfig
from drumline_trainer.config.model import AttentionBias, RopeScaling
from drumline_trainer.models.decoder import Decoder
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.feed_forward import SwiGLU
from drumline_trainer.models.mixture import MixtureOfExperts
from drumline_trainer.models.replaceable import CoreAttention


class LlamaAttention(nn.Module):
    """Causal self-attention; each key-value head serves H / G query heads (Ainslie et al. 2023)."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.head_size = config.features_per_head
        query_size = config.heads * self.head_size
        key_value_size = config.kv_heads * self.head_size
        bias = config.attention_bias is not AttentionBias.NONE
        self.query = nn.Linear(config.hidden_size, query_size, bias=bias)
        self.key = nn.Linear(config.hidden_size, key_value_size, bias=bias)
        self.value = nn.Linear(config.hidden_size, key_value_size, bias=bias)
        bias = config.attention_bias is AttentionBias.ALL
        self.output = nn.Linear(query_size, config.hidden_size, bias=bias)
        self.query_norm, self.key_norm = (
            nn.RMSNorm(self.head_size, eps=config.norm_epsilon)
            if config.query_key_norm
            else nn.Identity()
            for _ in range(2)
        )
        self.core_attention = CoreAttention(causal=True, window=config.window(layer))

    def forward(
        self, x_BSD: Tensor, rotary: tuple[Tensor, Tensor], documents: Documents | None = None
    ) -> Tensor:
        """CoreAttention to this and earlier positions, of the same document."""
        q_BHSE = rotate(self.query_norm(self._split_heads(self.query(x_BSD))), rotary)
        k_BGSE = rotate(self.key_norm(self._split_heads(self.key(x_BSD))), rotary)
        v_BGSE = self._split_heads(self.value(x_BSD))
        out_BHSE = self.core_attention(q_BHSE, k_BGSE, v_BGSE, documents)
        return self.output(out_BHSE.transpose(1, 2).flatten(-2))

    def _split_heads(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.unflatten(-1, (-1, self.head_size)).transpose(1, 2)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - partly untyped in torch


class LlamaLayer(nn.Module):
    """Attention and feed-forward, each behind its norm and added to the residual stream."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.attention = LlamaAttention(config, layer)
        self.feed_forward_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.feed_forward = (
            MixtureOfExperts(config)
            if config.experts
            else SwiGLU(config.hidden_size, config.ffn_size)
        )
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x_BSD: Tensor, rotary: tuple[Tensor, Tensor], documents: Documents | None = None
    ) -> Tensor:
        """One residual block of each kind."""
        mixed_BSD = self.attention(self.attention_norm(x_BSD), rotary, documents)
        x_BSD = x_BSD + self.dropout(mixed_BSD)
        return x_BSD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BSD)))


class Llama(Decoder):
    """The whole decoder, or the layers of one pipeline stage."""

    def __init__(self, config: ModelConfig) -> None:
        norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        super().__init__(config, layer=LlamaLayer, norm=norm)

    def forward(self, inputs: Tensor, documents: Documents | None = None) -> Tensor:
        """Tokens of shape B S or hidden states B S D in, logits B S V or hidden states out.

        With documents: each as if it were alone.
        """
        x_BSD = inputs if inputs.is_floating_point() else self.embedded(inputs)
        rotary = rotary_tables(
            self.places(x_BSD, documents),
            self.config.features_per_head,
            theta=self.config.rope_theta,
            scaling=self.config.rope_scaling,
            like=x_BSD,
        )
        return self.logits(self.layer_loop(self.layers.values(), x_BSD, rotary, documents))


def rotary_tables(
    positions: Tensor,
    head_size: int,
    *,
    theta: float,
    scaling: RopeScaling | None = None,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines (Su et al. 2021): pair i turns by position · theta^(-2i/E).

    Of shape S E/2 from positions of shape S, of shape B 1 S E/2 from B S.

    Angles are computed in fp64 and only the tables are rounded to the type of `like`: a bf16 angle
    would be off by whole turns at long positions.
    """
    pairs = torch.arange(0, head_size, 2, dtype=torch.float64, device=like.device)
    speeds = theta ** (-pairs / head_size)
    if scaling is not None:
        speeds = _slowed(speeds, scaling)
    angles = positions.double().unsqueeze(-1) * speeds
    if positions.dim() > 1:
        angles = angles.unsqueeze(1)  # the same for all heads
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def _slowed(speeds: Tensor, scaling: RopeScaling) -> Tensor:
    """Between `factor` times slower and unchanged, by turns made in the original length."""
    turns = scaling.original_positions * speeds / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return speeds * (kept + (1 - kept) / scaling.factor)


def rotate(x_BHSE: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (first half, second half) of a head by its position's angle."""
    cos, sin = rotary
    first, second = x_BHSE.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
