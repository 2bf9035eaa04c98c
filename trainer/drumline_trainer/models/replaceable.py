"""The small modules of a model that parallelism replaces, so that the model itself knows no rank.

Shapes: B batch, S sequence, Q and K some queries and their keys, D hidden, V vocabulary, H heads,
G key-value heads, E size of one head.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline_contract.shapes.attention import attention_runs
from drumline_trainer.models.documents import Documents

_VARLEN_TYPES = (torch.bfloat16, torch.float16)
"""Types that PyTorch's attention over runs of different lengths supports."""
_VARLEN_MULTIPLE, _VARLEN_MOST = 8, 256
"""And the features of a head: unlike `scaled_dot_product_attention` it pads nothing."""


class Positions(nn.Module):
    """Positions of the tokens that attention sees on this rank: all of them."""

    def forward(self, x_BSD: Tensor) -> Tensor:
        """Return the positions [sequence], int64."""
        return torch.arange(x_BSD.shape[1], device=x_BSD.device)

    def length(self, x_BSD: Tensor) -> int:
        """Return the length of the whole sequences of these tokens."""
        return x_BSD.shape[1]


class AttentionSinks(nn.Module):
    """A score of each head that takes a share of every softmax and gives nothing (GPT-OSS)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads))

    def forward(self) -> Tensor:
        """Return the sinks, one for each of this rank's heads; shape [heads]."""
        return self.weight


class CoreAttention(nn.Module):
    """softmax(scale · q · kᵀ) · v; each key-value head serves H / G query heads.

    With a window (Beltagy et al. 2020, Mistral) a position sees itself and `window - 1` before it.
    With a soft cap c (Gemma 2) scores s become c · tanh(s / c). No kernel of torch's knows it, nor
    sinks, so that the scores of a run of queries are written and kept.

    Args:
        causal: whether later positions are masked.
        window: number of positions seen. None: all.
        scale: factor of the scores. None: 1/√E.
        softcap: bound of the scores. None: none.
    """

    def __init__(
        self,
        *,
        causal: bool,
        window: int | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> None:
        """Scale products of queries and keys by `scale`, or by 1 / √E if it is None."""
        super().__init__()
        self.causal = causal
        self.window = window
        self.scale = scale
        self.softcap = softcap

    def forward(
        self,
        q_BHSE: Tensor,
        k_BGSE: Tensor,
        v_BGSE: Tensor,
        documents: Documents | None = None,
        sinks_H: Tensor | None = None,
    ) -> Tensor:
        """Attend from every position to all, or where causal to this and the earlier ones.

        Queries and the result have the shape [batch, heads, sequence, head size]; keys and values
        have fewer heads. With documents, only positions of the same document are seen. Sinks need
        causality.

        Args:
            q_BHSE: queries [batch, heads, sequence, head size].
            k_BGSE: keys, with G key-value heads.
            v_BGSE: values, with G key-value heads.
            documents: limits of documents in each sequence.
            sinks_H: score of the sink of each head [H].
        """
        if documents is None:
            return self._whole(q_BHSE, k_BGSE, v_BGSE, sinks_H)
        return self.attend_documents(q_BHSE, k_BGSE, v_BGSE, documents, sinks_H)

    def attend_documents(
        self,
        q_BHSE: Tensor,
        k_BGSE: Tensor,
        v_BGSE: Tensor,
        documents: Documents,
        sinks_H: Tensor | None,
    ) -> Tensor:
        """Attend within documents, whose sizes vary. Return [B, H, S, E].

        Args:
            q_BHSE: queries [batch, heads, sequence, head size].
            k_BGSE: keys, with G key-value heads.
            v_BGSE: values, with G key-value heads.
            documents: limits of documents in each sequence.
            sinks_H: score of the sink of each head [H].
        """
        # Torch's fused kernels know neither a soft cap nor sinks.
        fused = self.softcap is None and sinks_H is None
        if fused and _fits_varlen(q_BHSE):
            return self.varlen(q_BHSE, k_BGSE, v_BGSE, documents)
        # The slow path: one call for each run of each window. Shapes are [1, H, run, E], joined
        # along the sequence.
        windows = [
            torch.cat(
                [
                    self._whole(
                        q_BHSE[row : row + 1, :, run],
                        k_BGSE[row : row + 1, :, run],
                        v_BGSE[row : row + 1, :, run],
                        sinks_H,
                    )
                    for run in runs
                ],
                dim=2,
            )
            for row, runs in enumerate(documents.runs())
        ]
        return torch.cat(windows)

    def _whole(
        self, q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, sinks_H: Tensor | None
    ) -> Tensor:
        # A window as long as the sequence hides nothing, so the causal kernel without a mask is
        # used.
        length = q_BHSE.shape[2]
        window = length if self.window is None else min(self.window, length)
        fused = self.softcap is None and sinks_H is None
        if window == length and fused:
            return self._fused(q_BHSE, k_BGSE, v_BGSE, mask_QK=None)
        # what no query of a run can see is not computed, and no mask is S · S
        out_BHQE: list[Tensor] = []
        # Queries begin..end-1 see keys first..end-1. A run has at least 512 queries, and the mask
        # is [Q, K].
        for begin, end, first in attention_runs(length, window):
            mask_QK = window_mask(begin, end, first, window=window, device=q_BHSE.device)
            parts = q_BHSE[:, :, begin:end], k_BGSE[:, :, first:end], v_BGSE[:, :, first:end]
            out_BHQE.append(
                self._fused(*parts, mask_QK=mask_QK)
                if fused
                else self._written(*parts, mask_QK=mask_QK, sinks_H=sinks_H)
            )
        return torch.cat(out_BHQE, dim=2)

    def _fused(
        self, q_BHQE: Tensor, k_BGKE: Tensor, v_BGKE: Tensor, *, mask_QK: Tensor | None
    ) -> Tensor:
        return F.scaled_dot_product_attention(
            q_BHQE,
            k_BGKE,
            v_BGKE,
            attn_mask=mask_QK,
            # SDPA accepts a mask or causality, not both. The mask of a run is causal already.
            is_causal=self.causal and mask_QK is None,
            scale=self.scale,
            # With `enable_gqa` the kernel shares key-value heads among queries, and no copy is
            # made.
            enable_gqa=q_BHQE.shape[1] != k_BGKE.shape[1],
        )

    def _written(
        self,
        q_BHQE: Tensor,
        k_BGKE: Tensor,
        v_BGKE: Tensor,
        *,
        mask_QK: Tensor,
        sinks_H: Tensor | None,
    ) -> Tensor:
        # [B, H, Q, E] becomes [B, G, R, E] with R = H / G * Q rows for each key-value head.
        (groups, keys), (heads, queries) = k_BGKE.shape[1:3], q_BHQE.shape[1:3]
        # the heads of a group one below another: keys and values are not repeated
        q_BGRE = q_BHQE.reshape(len(q_BHQE), groups, -1, q_BHQE.shape[-1])
        # Scores are scaled after the product, as transformers does in its eager attention.
        scores_BGRK = q_BGRE @ k_BGKE.mT * (self.scale or q_BHQE.shape[-1] ** -0.5)
        # The cap comes before the mask: tanh of -inf would be a finite score.
        if self.softcap is not None:
            scores_BGRK = (scores_BGRK / self.softcap).tanh() * self.softcap
        scores_BHQK = scores_BGRK.view(-1, heads, queries, keys)
        scores_BHQK = scores_BHQK.masked_fill(~mask_QK, float("-inf"))
        # Sinks are one more column of scores. They take part in the softmax and have no value.
        if sinks_H is not None:
            sinks_BHQ1 = (
                sinks_H.to(scores_BHQK.dtype)
                .view(1, -1, 1, 1)
                .expand(len(scores_BHQK), -1, queries, 1)
            )
            scores_BHQK = torch.cat((scores_BHQK, sinks_BHQ1), dim=-1)
        # The softmax is fp32, as in transformers' eager attention of Gemma 2. Its result has the
        # type of the values.
        shares_BHQK = scores_BHQK.softmax(dim=-1, dtype=torch.float32).to(v_BGKE.dtype)
        # Without the column of the sinks, rows of shares add up to less than 1.
        shares_BGRK = shares_BHQK[..., :keys].reshape(*q_BGRE.shape[:3], keys)
        return (shares_BGRK @ v_BGKE).view(len(q_BHQE), heads, queries, -1)

    def varlen(
        self, q_BHSE: Tensor, k_BGSE: Tensor, v_BGSE: Tensor, documents: Documents
    ) -> Tensor:
        """Attend within documents by one kernel. Needs a GPU; not yet run on one.

        Torch 2.11 does not support grouped heads, so keys and values are repeated. Later versions
        prefer cuDNN if possible, whose gradients need not have the same bits each time.

        Args:
            q_BHSE: queries [batch, heads, sequence, head size].
            k_BGSE: keys, with G key-value heads.
            v_BGSE: values, with G key-value heads.
            documents: limits of documents in each sequence.
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: PLC0415 - imports torch's compiler, 2 s
        from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415 - imports torch's compiler, 2 s

        # Query heads H / G * g to H / G * (g + 1) - 1 use key-value head g: repeats are neighbours.
        repeats = q_BHSE.shape[1] // k_BGSE.shape[1]
        # [B, H, S, E] becomes [T, H, E] with T = B * S, because runs of all windows lie end to end.
        q_THE, k_THE, v_THE = (
            x.transpose(1, 2).flatten(0, 1)
            for x in (
                q_BHSE,
                k_BGSE.repeat_interleave(repeats, 1),
                v_BGSE.repeat_interleave(repeats, 1),
            )
        )
        # cuDNN is excluded, because its gradients may differ in their last bits between two runs.
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out_THE: Any = varlen_attn(
                q_THE,
                k_THE,
                v_THE,
                # Queries and keys have the same borders, because attention is within a document.
                documents.ends,
                documents.ends,
                documents.longest,
                documents.longest,
                scale=self.scale,
                # (left, right): -1 is unlimited. A window of w sees w - 1 positions before itself.
                window_size=(
                    -1 if self.window is None else self.window - 1,
                    0 if self.causal else -1,
                ),
            )
        return out_THE.unflatten(0, (len(q_BHSE), -1)).transpose(1, 2)


def _fits_varlen(q_BHSE: Tensor) -> bool:
    size = q_BHSE.shape[-1]
    fits = size % _VARLEN_MULTIPLE == 0 and size <= _VARLEN_MOST
    return fits and q_BHSE.device.type == "cuda" and q_BHSE.dtype in _VARLEN_TYPES


def window_mask(begin: int, end: int, first: int, *, window: int, device: torch.device) -> Tensor:
    """Return a mask, bool [Q, K], of queries begin..end-1 and keys first..end-1 in a window.

    Args:
        begin: first query.
        end: query after the last one.
        first: first key.
        window: number of positions seen.
        device: device of the mask.
    """
    queries_Q = torch.arange(begin, end, device=device).unsqueeze(1)
    keys_K = torch.arange(first, end, device=device)
    # Causal and inside the window; bool [Q, K], True is visible.
    return (keys_K <= queries_Q) & (keys_K > queries_Q - window)


class LayerLoop(nn.Module):
    """Applies the layers one after the other."""

    def forward(self, layers: Iterable[nn.Module], x_BSD: Tensor, *rest: Any) -> Tensor:
        """Return hidden states after the last layer; `rest` goes to every layer.

        Args:
            layers: layers to pass, in order.
            x_BSD: hidden states [batch, sequence, hidden].
            *rest: arguments of every layer.
        """
        for layer in layers:
            x_BSD = layer(x_BSD, *rest)
        return x_BSD


class TokenEmbedding(nn.Embedding):
    """A vector for every word of the vocabulary. It is also the head if embeddings are tied."""

    head_weight: Tensor | None = None
    """Weight [V, D] of the head, if that is another copy of the embedding."""

    def logits(self, x_BSD: Tensor) -> Tensor:
        """Score every word by the product with its vector; shape [batch, sequence, vocabulary]."""
        # Mixed precision casts embedding and head apart, so the head may read another copy.
        return F.linear(x_BSD, self.weight if self.head_weight is None else self.head_weight)
