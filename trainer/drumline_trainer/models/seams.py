"""The small modules of a model that parallelism replaces, so that the model itself knows no rank.

Shapes: B batch, S sequence, D hidden, V vocabulary, H heads, G key-value heads, E size of one head.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Positions(nn.Module):
    """Which positions of their sequences the tokens have that attention sees here: all of them."""

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Positions of shape S, int64."""
        return torch.arange(x_BSD.shape[1], device=x_BSD.device)


class Attend(nn.Module):
    """softmax(q · kᵀ / √E) · v; each key-value head serves H / G query heads."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor) -> Tensor:
        """Shape B H S E: of every position, or where causal of this and the earlier ones."""
        grouped = q_BHSE.shape[1] != k_BGSE.shape[1]
        return F.scaled_dot_product_attention(
            q_BHSE, k_BGSE, v_BGSE, is_causal=self.causal, enable_gqa=grouped
        )


class Through(nn.Module):
    """The way through the layers: one after the other."""

    def forward(self, layers: Iterable[nn.Module], x_BSD: Tensor, *rest: Any) -> Tensor:
        """Hidden states after the last layer; `rest` is what every layer is given besides."""
        for layer in layers:
            x_BSD = layer(x_BSD, *rest)
        return x_BSD


class TokenEmbedding(nn.Embedding):
    """A vector for every word of the vocabulary; where embeddings are tied also the head."""

    def logits(self, x_BSD: Tensor) -> Tensor:
        """Every word's score, of shape B S V: the inner product with its vector."""
        return F.linear(x_BSD, self.weight)
