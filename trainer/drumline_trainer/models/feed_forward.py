"""The feed-forward of a layer: two or three products around a nonlinearity, at each position.

Shapes: B batch, S sequence, D hidden, F feed-forward.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline_contract.config.variants import Activation

_LIMIT, _STEEPNESS = 7.0, 1.702
"""Constants of GPT-OSS."""


class GatedFeedForward(nn.Module):
    """A gated expansion (Shazeer 2020), without biases: SwiGLU, as Llama's, or Gemma's GeGLU.

    Args:
        hidden_size: size of the input and output.
        ffn_size: size of the expansion.
        activation: function of the gate.
    """

    def __init__(
        self, hidden_size: int, ffn_size: int, activation: Activation = Activation.SILU
    ) -> None:
        super().__init__()
        self.activation = activation
        self.gate = nn.Linear(hidden_size, ffn_size, bias=False)
        self.up = nn.Linear(hidden_size, ffn_size, bias=False)
        self.down = nn.Linear(ffn_size, hidden_size, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Gate, expand and contract hidden states; shape [batch, sequence, hidden]."""
        hidden_BSF = gated(self.gate(x_BSD), self.up(x_BSD), self.activation)
        return self.down(hidden_BSF)


def gated(gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
    """Apply a gate to `up`, elementwise; both [..., F].

    Args:
        gate: input of the activation [..., F].
        up: factor of its result [..., F].
        activation: function of the gate.
    """
    match activation:
        case Activation.SILU:
            # Gate and up are separate layers, so the tensor axis cuts both by the same features.
            return F.silu(gate) * up
        case Activation.GELU_TANH:
            return F.gelu(gate, approximate="tanh") * up
        case Activation.CLAMPED_SWIGLU:
            # The gate is clamped from above only, as in GPT-OSS: sigmoid makes its lower side small
            # anyway.
            gate = gate.clamp(max=_LIMIT)
            return (up.clamp(-_LIMIT, _LIMIT) + 1) * (gate * torch.sigmoid(_STEEPNESS * gate))


class Perceptron(nn.Module):
    """Expansion, GELU (Hendrycks and Gimpel 2016), contraction, with biases: GPT-2's and ViT's.

    Args:
        hidden_size: size of the input and output.
        ffn_size: size of the expansion.
        approximate: variant of GELU.
    """

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
