"""Multi-head latent attention (DeepSeek-V2, 2024): keys and values of all heads from one latent.

    queries          hidden -> latent -> norm -> heads · (unturned, turned), or straight from hidden
    keys, values     hidden -> latent, turned;   latent -> norm -> heads · (unturned key, value)

The features that turn with the position are the same in the keys of all heads. Only the layers
`query` and `key_value` make heads, so they can be cut by heads like those of other models. The
computation between `before_latents` and `after_latent` is common to all heads.

A value is smaller than a key, but torch's fused kernels need the same size. So values are padded
with zeros, and the outputs of the padding are dropped.

Shapes: B batch, S sequence, D hidden, H heads, E size of a query or key of one head, V of a value,
T of what turns, L of a latent.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline_contract.config import ModelConfig
from drumline_contract.config.latent_attention import LatentAttention
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.replaceable import CoreAttention
from drumline_trainer.models.rotary import Rotary, rotate, rotate_neighbours

_EPSILON = 1e-6
"""Epsilon of the latents' norms, independent of the model's."""


class MultiHeadLatentAttention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: ModelConfig, latent: LatentAttention) -> None:
        super().__init__()
        hidden, self.head_size = config.hidden_size, config.features_per_head
        self.turned, self.value_size = latent.turned_size, latent.value_size
        # A query or key is an unturned and a turned part, in this order.
        self.unturned = self.head_size - self.turned
        self.latent_size = latent.key_value_rank
        self.interleaved = latent.interleaved
        self.before_latents, self.after_latent = nn.Identity(), nn.Identity()
        # DeepSeek-V2-Lite has no latent for queries: they come straight from the hidden state.
        self.query_latent, self.query_latent_norm = (
            (None, nn.Identity())
            if latent.query_rank is None
            else (
                nn.Linear(hidden, latent.query_rank, bias=False),
                nn.RMSNorm(latent.query_rank, eps=_EPSILON),
            )
        )
        self.query = nn.Linear(
            latent.query_rank or hidden, config.heads * self.head_size, bias=False
        )
        # One product makes the latent and the turned key, which the norm must leave out.
        self.key_value_latent = nn.Linear(hidden, self.latent_size + self.turned, bias=False)
        self.key_value_latent_norm = nn.RMSNorm(self.latent_size, eps=_EPSILON)
        self.key_value = nn.Linear(
            self.latent_size, config.heads * (self.unturned + self.value_size), bias=False
        )
        self.output = nn.Linear(config.heads * self.value_size, hidden, bias=False)
        self.core_attention = CoreAttention(causal=True, scale=config.score_scale)

    def forward(self, x_BSD: Tensor, rotary: Rotary, documents: Documents | None = None) -> Tensor:
        """Attend to earlier positions of the same document; shape [batch, sequence, hidden].

        Args:
            x_BSD: hidden states [batch, sequence, hidden].
            rotary: rotations by position.
            documents: limits of documents in each sequence.
        """
        # Phase 1: queries. Both seams are identities, and the tensor axis adds hooks to them.
        shared_BSD = self.before_latents(x_BSD)
        q_BSHE = self._split_heads(self.query(self._of_queries(x_BSD, shared_BSD)))
        q_BHSE, kept = q_BSHE.transpose(1, 2), self.unturned
        # Only the turned part takes positions. The tables have its size.
        turned = self._rotate(q_BHSE[..., kept:], rotary)
        q_BHSE = torch.cat((q_BHSE[..., :kept], turned), dim=-1)

        # Phase 2: keys and values from one latent [B, S, L] and one turned key [B, S, T].
        made_BSL = self.after_latent(self.key_value_latent(shared_BSD))
        latent_BSL, turned_BST = (
            made_BSL[..., : self.latent_size],
            made_BSL[..., self.latent_size :],
        )
        # [B, S, L] becomes [B, H, S, unturned + value].
        heads_BHS = self._split_heads(
            self.key_value(self.key_value_latent_norm(latent_BSL)),
            size=kept + self.value_size,
        ).transpose(1, 2)
        # The turned key is the same for all heads. `expand` makes no copy; the concatenation does.
        of_all = self._rotate(turned_BST.unsqueeze(1), rotary)
        of_all = of_all.expand(-1, heads_BHS.shape[1], -1, -1)
        k_BHSE = torch.cat((heads_BHS[..., :kept], of_all), dim=-1)

        # Phase 3: attention. Padded values give zeros in the last columns, which are cut off below.
        v_BHSE = F.pad(heads_BHS[..., kept:], (0, self.head_size - self.value_size))
        out_BHSE = self.core_attention(q_BHSE, k_BHSE, v_BHSE, documents)
        return self.output(out_BHSE[..., : self.value_size].transpose(1, 2).flatten(-2))

    @property
    def heads_of_latents(self) -> tuple[nn.Module, ...]:
        """The layers whose input is a latent."""
        return (self.key_value,) if self.query_latent is None else (self.query, self.key_value)

    def _of_queries(self, x_BSD: Tensor, shared_BSD: Tensor) -> Tensor:
        """Return the input of the query projection: x [B, S, D] or the query latent [B, S, R]."""
        if self.query_latent is None:
            return x_BSD
        return self.query_latent_norm(self.after_latent(self.query_latent(shared_BSD)))

    def _rotate(self, x_BHST: Tensor, rotary: Rotary) -> Tensor:
        turn = rotate_neighbours if self.interleaved else rotate
        return turn(x_BHST, (rotary[0], rotary[1]))

    def _split_heads(self, x_BSD: Tensor, *, size: int | None = None) -> Tensor:
        return x_BSD.unflatten(-1, (-1, size or self.head_size))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - partly untyped in torch
