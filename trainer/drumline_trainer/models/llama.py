"""A Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

Single-device code that reads like the papers; parallelism is applied from outside, by replacing
linear layers, embeddings and what `models.seams` holds. Layers live in a ModuleDict, so that a
parameter's name survives when a pipeline stage drops some. A stage is this same class with parts
set to None: without `embedding` it is fed hidden states, without `norm` it returns them.
No buffers: rotary tables are recomputed each forward, so a model built on the meta device needs
nothing but its parameters (`models.initialize`).

Shapes: B batch, S sequence, D hidden, F feed-forward, V vocabulary, H heads, G key-value heads,
E size of one head, D = H·E.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline_trainer.config import ModelConfig
from drumline_trainer.models.seams import Attend, Positions, TokenEmbedding


class Attention(nn.Module):
    """Causal self-attention; each key-value head serves H / G query heads (Ainslie et al. 2023)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.heads
        key_value_size = config.kv_heads * self.head_size
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.key = nn.Linear(config.hidden_size, key_value_size, bias=False)
        self.value = nn.Linear(config.hidden_size, key_value_size, bias=False)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.attend = Attend(causal=True)

    def forward(self, x_BSD: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Attend to this and earlier positions."""
        q_BHSE = rotate(self._split_heads(self.query(x_BSD)), rotary)
        k_BGSE = rotate(self._split_heads(self.key(x_BSD)), rotary)
        v_BGSE = self._split_heads(self.value(x_BSD))
        out_BHSE = self.attend(q_BHSE, k_BGSE, v_BGSE)
        return self.output(out_BHSE.transpose(1, 2).flatten(-2))

    def _split_heads(self, x_BSD: Tensor) -> Tensor:
        return x_BSD.unflatten(-1, (-1, self.head_size)).transpose(1, 2)


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.down = nn.Linear(config.ffn_size, config.hidden_size, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Gate, expand, contract."""
        hidden_BSF = F.silu(self.gate(x_BSD)) * self.up(x_BSD)
        return self.down(hidden_BSF)


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each behind its norm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.attention = Attention(config)
        self.feed_forward_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BSD: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """One residual block of each kind."""
        x_BSD = x_BSD + self.dropout(self.attention(self.attention_norm(x_BSD), rotary))
        return x_BSD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BSD)))


class Llama(nn.Module):
    """The whole decoder, or the layers of one pipeline stage."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding: TokenEmbedding | None = TokenEmbedding(
            config.vocab_size, config.hidden_size
        )
        self.positions = Positions()
        self.layers = nn.ModuleDict(
            {str(index): DecoderLayer(config) for index in range(config.layers)}
        )
        self.norm: nn.Module | None = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.output: nn.Module | None = (
            None
            if config.tied_embeddings
            else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Tokens of shape B S or hidden states B S D in, logits B S V or hidden states out."""
        x_BSD = inputs if inputs.is_floating_point() else self._embedded(inputs)
        head_size = self.config.hidden_size // self.config.heads
        rotary = rotary_tables(
            self.positions(x_BSD), head_size, theta=self.config.rope_theta, like=x_BSD
        )
        for layer in self.layers.values():
            x_BSD = layer(x_BSD, rotary)
        return x_BSD if self.norm is None else self._logits(self.norm(x_BSD))

    def _embedded(self, tokens_BS: Tensor) -> Tensor:
        if self.embedding is None:
            raise TypeError("a stage without embedding is fed hidden states, not tokens")
        return self.embedding(tokens_BS)

    def _logits(self, x_BSD: Tensor) -> Tensor:
        if self.output is not None:
            return self.output(x_BSD)
        if self.embedding is None:
            raise TypeError("the last stage of a model with tied embeddings keeps its embedding")
        return self.embedding.logits(x_BSD)


def build_on_meta(config: ModelConfig) -> Llama:
    """A model without storage: shard it, then fill it with `models.initialize` or a checkpoint."""
    with torch.device("meta"):
        return Llama(config)


def next_token_loss(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """Mean cross entropy over all positions, in nats, computed in fp32."""
    return F.cross_entropy(logits_BSV.flatten(0, 1).float(), targets_BS.flatten())


def rotary_tables(
    positions_S: Tensor, head_size: int, *, theta: float, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of shape S E/2 (Su et al. 2021): pair i turns by position · theta^(-2i/E).

    Angles are computed in fp64 and only the tables are rounded to the type of `like`: a bf16 angle
    would be off by whole turns at long positions.
    """
    pairs = torch.arange(0, head_size, 2, dtype=torch.float64, device=like.device)
    angles = torch.outer(positions_S.double(), theta ** (-pairs / head_size))
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x_BHSE: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (first half, second half) of a head by its position's angle."""
    cos, sin = rotary
    first, second = x_BHSE.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def layer_modules(model: Llama) -> list[DecoderLayer]:
    """The decoder layers in order: the units of sharding."""
    return [cast("DecoderLayer", layer) for layer in model.layers.values()]
