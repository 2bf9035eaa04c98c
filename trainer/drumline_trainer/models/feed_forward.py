"""What a layer does at each position alone: two or three products around a nonlinearity.

Shapes: B batch, S sequence, D hidden, F feed-forward.
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn


class SwiGLU(nn.Module):
    """A gated expansion (Shazeer 2020), without biases: Llama's."""

    def __init__(self, hidden_size: int, ffn_size: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden_size, ffn_size, bias=False)
        self.up = nn.Linear(hidden_size, ffn_size, bias=False)
        self.down = nn.Linear(ffn_size, hidden_size, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Gate, expand, contract."""
        hidden_BSF = F.silu(self.gate(x_BSD)) * self.up(x_BSD)
        return self.down(hidden_BSF)


class Perceptron(nn.Module):
    """Expansion, GELU (Hendrycks and Gimpel 2016), contraction, with biases: GPT-2's and ViT's."""

    def __init__(
        self, hidden_size: int, ffn_size: int, *, approximate: Literal["none", "tanh"]
    ) -> None:
        super().__init__()
        self.up = nn.Linear(hidden_size, ffn_size)
        self.down = nn.Linear(ffn_size, hidden_size)
        self.approximate: Literal["none", "tanh"] = approximate

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Expand, contract."""
        return self.down(F.gelu(self.up(x_BSD), approximate=self.approximate))
